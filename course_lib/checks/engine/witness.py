"""The ranks' record of what they sent, held against what the kernel counted on their network.

A student's code runs in the ranks, and so can reach gloo behind the group that records
(`dist.group.WORLD._get_backend(device)`), or send by other means. What it cannot reach is the counter of the
sandbox's loopback interface. So the record is believed no further than it agrees with the counter, either
way. The limit: a forged record around gloo's own algorithm, which sends the same bytes on the same
connections, looks like the real thing; the modules that record have no names there (`engine.reach`), and code
that searches for them is listed for eyes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from course_lib.checks.engine import words
from course_lib.checks.engine.case import Finding, wrong
from course_lib.ledger.ledger import Ledger
from course_lib.ledger.operation import Operation

# Bytes of a message beside its own: gloo's header, TCP's, the acknowledgements. Between 320 and 460 were
# seen, and up to 500 more for the members of a group that is made; allowed is twice that.
BESIDE_A_MESSAGE, BESIDE_A_RANK = 900, 1_000
SPARE = 1.1  # of the bytes themselves; 1.03 was seen
# Tensors allowed for in one call with several, of which the record names the first.
UNKNOWN_PARTS = 64
TAMPERED = "tampered record"


class Sent(NamedTuple):
    """What an operation puts on the network: at least and at most so many bytes, in so many messages."""

    least: float
    most: float
    messages: float


def gloo(op: str, n: int, nbytes: float) -> Sent:
    """What the built-in `op` on a full tensor of `nbytes` bytes sends, all `n` ranks together.

    gloo's algorithms: rings in 2 n segments for all-reduce, all-gather and reduce (which collects the
    reduced segments at the root), a binomial tree for broadcast, pairs for all-to-all, dissemination for
    the barrier. reduce-scatter is an all-reduce of everything, n of them where it is given a list. Source:
    gloo's `allreduce.cc`, `allgather.cc`, `reduce.cc`, `broadcast.cc`, `alltoall.cc`, `barrier.cc`, and
    PyTorch's `ProcessGroupGloo.cpp`. Measured with PyTorch 2.13 in the sandbox, from 4 bytes to 4 MB on 2,
    3, 4, 5 and 8 ranks: these bytes within 1 %, and 320 to 360 more for each of these messages.

    Raises ValueError for an operation that is none of gloo's.
    """
    whole, share = (n - 1) * nbytes, (n - 1) / n * nbytes
    if n == 1 or op in ("recv", "new_group"):
        return Sent(0, 0, 0)
    if op == "all_reduce":
        return Sent(2 * whole, 2 * whole, 4 * n * (n - 1))
    if op == "reduce_scatter":  # half of it, should gloo ever have one of its own
        return Sent(whole, 2 * whole, 4 * n * n * (n - 1))
    if op == "all_gather":
        return Sent(whole, whole, 2 * n * (n - 1))
    if op == "all_to_all":
        # What a rank keeps for itself is not sent: of unequal parts it may be all.
        return Sent(0, n * nbytes, n * (n - 1))
    if op == "broadcast":
        return Sent(whole, whole, n - 1)
    if op == "reduce":
        return Sent(whole + share, whole + share, (2 * n + 1) * (n - 1))
    if op in ("gather", "scatter"):
        return Sent(share, share, n - 1)
    if op == "barrier":
        return Sent(0, 0, n * math.ceil(math.log2(n)))
    raise ValueError(f"nothing is known of what gloo sends in {op!r}")


def of_one_rank(one: Operation) -> Sent:
    """A rank's part of what its operation puts on the network.

    Nobody knows when an operation that was never waited for is over: it may not have sent anything yet.
    """
    if one.op == "send":
        sent = Sent(one.nbytes, one.nbytes, 1)
    else:
        n = len(one.group)
        least, most, messages = gloo(one.op, n, one.nbytes)
        if one.dtype.startswith("sparse"):  # indices and values that are there, to all others
            least, most = 0, n * (n - 1) * one.nbytes * (1 + 8 * len(one.shape))
        sent = Sent(least / n, most / n, messages * parts(one) / n)
    return sent if one.waited else sent._replace(least=0)


def parts(one: Operation) -> int:
    """How many tensors a call may have had: one, or UNKNOWN_PARTS where its bytes are not the first's."""
    if one.op not in ("all_gather", "reduce_scatter"):
        return 1  # gloo lays the tensors of an all-reduce side by side
    dtype = getattr(torch, one.dtype, None)
    itemsize = dtype.itemsize if isinstance(dtype, torch.dtype) else 0
    first = math.prod(one.shape) * itemsize * len(one.group)
    return 1 if first == one.nbytes else UNKNOWN_PARTS


def contradicted(
    ledger: Ledger, on_the_wire: int | None, unrecorded: Iterable[int] = ()
) -> Finding | None:
    """A record that what went over the sandbox's network contradicts, either way; None where it agrees.

    on_the_wire: bytes, counted by the operating system; None: nobody counted. unrecorded: the bytes of
    each tensor that the recipe summed over all ranks beside the record.
    """
    if on_the_wire is None:
        return None
    alone = {id(one) for one in ledger.unmatched()}
    sends = [one for one in ledger.operations() if one.op == "send"]
    left = [one for one in sends if not one.waited or id(one) in alone]
    if left:
        many = words.counted(len(left), "message")
        return wrong(
            f"of {many} in the record nothing says that it left: nobody waited for it, or received it.",
            "Call wait() on every handle before the function returns, and receive what is sent.",
            cause="never waited for",
        )
    n = ledger.world_size
    parts_of_it = [of_one_rank(one) for one in ledger.operations()]
    parts_of_it += [gloo("all_reduce", n, nbytes) for nbytes in unrecorded]
    least, most, messages = (
        sum(column) for column in zip(Sent(0, 0, 0), *parts_of_it, strict=True)
    )
    if (
        math.floor(least)
        <= on_the_wire
        <= SPARE * most + BESIDE_A_MESSAGE * messages + BESIDE_A_RANK * n
    ):
        return None
    less = on_the_wire < least
    told = words.number(round(least if less else most))
    return wrong(
        f"the record tells of {told} bytes in {operations(ledger)}, but "
        f"{'only ' if less else ''}{words.number(on_the_wire)} went over the network.",
        "The record of the operations was changed." if less else "Something else was sent besides.",
        cause=TAMPERED,
    )


def operations(ledger: Ledger) -> str:
    """ "12 messages", or "30 operations" where there are others than messages."""
    begun: Sequence[Operation] = [one for one in ledger.operations() if one.op != "recv"]
    kind = "message" if all(one.op == "send" for one in begun) else "operation"
    return words.counted(len(begun), kind)
