"""From the ranks' logs in shared memory to a `Ledger`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from course_lib.ledger import rows
from course_lib.ledger.ledger import Ledger
from course_lib.ledger.operation import Operation


def read_ledger(
    board: rows.Board,
    logs: Sequence[tuple[int, int]],
    began: float,
    where: Callable[[str], tuple[str, str]],
    backend: str,
    ended: float,
    most: rows.Most = rows.OWN,
) -> Ledger:
    """The ledger of a run, also of one whose ranks were killed.

    `logs`: each rank's (rows, texts) descriptors. `began`, `ended`: the run's start and end on the
    monotonic clock; a rank that is still blocked at the end was so until then.
    `where` turns "file|line" into ("Cell In[5], line 3", the line's text).
    """
    operations, damaged = [], []
    for rank, fds in enumerate(logs):
        state = board.read(rank)
        log, texts, broken = rows.read_log(*fds, state, len(logs), most)
        if broken:
            damaged.append(rank)
        stuck = state.blocked_row
        if state.state == rows.RUNNING and 0 <= stuck < len(log):
            waited = max(0.0, ended - state.since)
            log[stuck] = log[stuck]._replace(blocked=log[stuck].blocked + waited)
        operations.append(
            [operation(rank, i, row, texts, began, where) for i, row in enumerate(log)]
        )
    return Ledger(len(logs), operations, backend, damaged=damaged)


def operation(
    rank: int,
    index: int,
    row: rows.Row,
    texts: dict[int, str],
    began: float,
    where: Callable[[str], tuple[str, str]],
) -> Operation:
    dtype, shape, *parts = texts.get(row.tensor, "|").split("|")
    group_name, _, members = texts.get(row.group, "|").partition("|")
    line, source = where(texts.get(row.line, ""))
    done = bool(row.flags & rows.DONE)
    return Operation(
        rank=rank,
        index=index,
        op=rows.OPS[row.op],
        peer=row.peer if row.peer >= 0 else None,
        group=tuple(int(member) for member in members.split(",") if member),
        tag=row.tag,
        dtype=dtype,
        shape=tuple(int(size) for size in shape.split(",") if size),
        nbytes=row.nbytes,
        bytes_sent=int(row.bytes_sent) if row.bytes_sent == int(row.bytes_sent) else row.bytes_sent,
        issued=row.issued - began,
        blocked=row.blocked,
        completed=row.completed - began if done else None,
        waited=bool(row.flags & rows.WAITED),
        line=line,
        source=source,
        waited_at=row.waited - began if row.flags & rows.WAITED and row.waited else None,
        joined=bool(row.flags & rows.JOINED),
        at_once=bool(row.flags & rows.WAITED) and row.wait_line == row.line != 0,
        parts=tuple(int(nbytes) for nbytes in parts[0].split(",")) if parts else (),
        group_name=group_name,
    )
