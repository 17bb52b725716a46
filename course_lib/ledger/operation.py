"""One communication operation of one rank, as the ledger reports it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Operation:
    """One rank's part in one communication operation.

    Times are in seconds since the run began, on a clock that all ranks of a machine share.
    Sizes are in bytes.
    """

    rank: int
    index: int  # order of issue on this rank, from 0
    op: str  # "send", "recv", "all_reduce", ..., "barrier", "new_group"
    peer: int | None  # global rank of the other end, or the root of a rooted collective
    group: tuple[int, ...]  # global ranks of the group
    tag: int  # of a message; of a collective see `group.count` and `rows.REFUSED`
    dtype: str  # "float32"
    shape: tuple[int, ...]
    nbytes: int  # of the message, or of the full tensor of a collective
    bytes_sent: float  # by this rank; for built-ins, the bandwidth-optimal volume
    issued: float
    blocked: float  # seconds for which it held up the program: the host, or the stream of its GPU
    completed: float | None  # when the rank knew that it was complete; None: it never asked
    waited: bool
    line: str  # "Cell In[5], line 3" or "train.py, line 3"
    source: str  # the text of that line, or ""
    joined: bool = False  # begun in one `batch_isend_irecv` with the operation before it
    waited_at: float | None = (
        None  # when the wait returned: on a GPU before the operation is complete
    )
    at_once: bool = (
        False  # waited for by the line that began it: `dist.send`, `dist.isend(...).wait()`
    )
    parts: tuple[int, ...] = ()  # of an all-to-all: the bytes for each member of the group
    group_name: str = ""  # tells groups of the same members apart
