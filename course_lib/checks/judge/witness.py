"""The ranks' record of what they sent, compared with the kernel's count of the bytes on their network.

A student's code runs in the ranks, and so can reach gloo behind the group that records
(`dist.group.WORLD._get_backend(device)`), or send by other means. It cannot reach the counter of the
sandbox's loopback interface. So the record is believed only as far as it agrees with the counter, either way.
The limit: a forged record around gloo's own algorithm, which sends the same bytes on the same connections,
looks like the real thing. Code that names the recorder is listed for a person to look at.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from course_lib.checks import words
from course_lib.checks.judge.case import Finding, wrong
from course_lib.ledger.ledger import Ledger
from course_lib.ledger.operation import Operation
from course_lib.ledger.rows import REFUSED

# Bytes of a message beside its own, gloo's three headers, without TCP's. Any allowance beyond them would be
# room for messages that are not in the record, however many small ones are.
BESIDE_A_MESSAGE, BESIDE_A_RANK = 144, 1_000
SPARE = 1.1  # of the bytes themselves: TCP may send again the packets that were dropped
SEGMENT = 1 << 20  # bytes of an all-reduce that are sent in one message at most
OF_A_SPARSE_ONE = 72  # bytes that tell of a sparse tensor's shape
TAMPERED = "tampered record"


class Sent(NamedTuple):
    """An operation's traffic on the network: at least and at most so many bytes, in so many messages."""

    least: float
    most: float
    messages: float


def gloo(op: str, n: int, nbytes: float, itemsize: int = 1, count: int = 1) -> Sent:
    """The traffic of the built-in `op` on a full tensor of `nbytes` bytes, all `n` ranks together.

    count: the tensors of one call, which are sent one after the other.

    gloo's algorithms: rings in 2 n segments for all-reduce, all-gather and reduce (which collects the
    reduced segments at the root), a binomial tree for broadcast, pairs for all-to-all, dissemination for
    the barrier. Segments without elements are not sent. reduce-scatter is an all-reduce of everything, n of
    them where it is given a list. Source:
    gloo's `allreduce.cc`, `allgather.cc`, `reduce.cc`, `broadcast.cc`, `alltoall.cc`, `barrier.cc`, and
    PyTorch's `ProcessGroupGloo.cpp`. Measured with PyTorch 2.13 in the sandbox, from 4 bytes to 4 MB on 2,
    3, 4, 5 and 8 ranks: these bytes, and 144 more for each of these messages.

    Raises ValueError for an operation that is not one of gloo's.
    """
    whole, share = (n - 1) * nbytes, (n - 1) / n * nbytes
    elements = nbytes / itemsize / max(count, 1)
    segments = count * (min(2 * n, elements) + nbytes // SEGMENT)
    if n == 1 or op in ("recv", "new_group"):
        return Sent(0, 0, 0)
    if op == "all_reduce":
        return Sent(2 * whole, 2 * whole, 2 * (n - 1) * segments)
    if op == "reduce_scatter":  # half of it, should gloo ever have one of its own
        return Sent(whole, 2 * whole, 2 * (n - 1) * segments)
    if op == "all_gather":
        return Sent(whole, whole, 2 * n * (n - 1) if nbytes else 0)
    if op == "all_to_all":  # of equal parts
        return Sent(whole, whole, n * (n - 1))
    if op == "broadcast":
        return Sent(whole, whole, n - 1)
    if op == "reduce":
        return Sent(whole + share, whole + share, (n - 1) * segments + min(n - 1, elements // 2))
    if op in ("gather", "scatter"):
        return Sent(share, share, n - 1)
    if op == "barrier":
        return Sent(0, 0, n * math.ceil(math.log2(n)))
    raise ValueError(f"nothing is known of what gloo sends in {op!r}")


def of_one_rank(operation: Operation) -> Sent:
    """A rank's part of its operation's traffic on the network.

    An operation that was never waited for may not have sent anything yet.
    """
    if operation.op == "send":
        sent = Sent(operation.nbytes, operation.nbytes, 1)
    elif operation.parts:  # a message to each other member, also one without elements
        sent = Sent(operation.bytes_sent, operation.bytes_sent, len(operation.group) - 1)
    else:
        n, sparse = len(operation.group), "sparse" in operation.dtype
        kind = operation.dtype.removeprefix("sparse ")
        dtype = getattr(torch, kind, None)
        itemsize = dtype.itemsize if isinstance(dtype, torch.dtype) else 1
        if sparse:  # indices and values that are there, to all others
            each = OF_A_SPARSE_ONE + operation.tag * (itemsize + 8 * len(operation.shape))
            return Sent(0, (n - 1) * each, 4 * (n - 1))
        # gloo lays the tensors of others side by side
        count = operation.tag if operation.op == "reduce_scatter" else 1
        of_all = gloo(operation.op, n, operation.nbytes, itemsize, count)
        sent = Sent(*(part / n for part in of_all))
    return sent if operation.waited else sent._replace(least=0)


def begun(ledger: Ledger) -> list[Operation]:
    """Operations that can have sent something: all but collectives that some member did not begin."""
    refused = {
        id(operation)
        for operation in ledger.operations()
        if operation.op != "send" and operation.tag == REFUSED
    }
    alone = {
        id(call)
        for collective in ledger.collectives()
        for call in collective.calls.values()
        if len(collective.calls) < len(collective.group) or refused & {*map(id, collective.calls.values())}
    }
    return [operation for operation in ledger.operations() if id(operation) not in alone | refused]


def contradicted(ledger: Ledger, on_the_wire: int | None, unrecorded: Iterable[int] = ()) -> Finding | None:
    """The finding for a record that the sandbox's network contradicts, either way; None if they agree.

    on_the_wire: bytes, counted by the operating system; None: not counted. unrecorded: the bytes of
    each tensor that the recipe summed over all ranks beside the record.
    """
    if on_the_wire is None:
        return None
    alone = {id(operation) for operation in ledger.unmatched()}
    sends = [operation for operation in ledger.operations() if operation.op == "send"]
    left = [send for send in sends if not send.waited or id(send) in alone]
    if left:
        many, them = words.counted(len(left), "message"), "it" if len(left) == 1 else "them"
        return wrong(
            f"the record does not show that {many} left: no rank waited for {them}, or none received {them}.",
            "Call wait() on every handle before the function returns, and receive what is sent.",
            cause="never waited for",
        )
    n = ledger.world_size
    parts_of_it = [of_one_rank(operation) for operation in begun(ledger)]
    parts_of_it += [gloo("all_reduce", n, nbytes) for nbytes in unrecorded]
    least, most, messages = (sum(column) for column in zip(Sent(0, 0, 0), *parts_of_it, strict=True))
    if math.floor(least) <= on_the_wire <= SPARE * most + BESIDE_A_MESSAGE * messages + BESIDE_A_RANK * n:
        return None
    less = on_the_wire < least
    recorded = words.number(round(least if less else most))
    return wrong(
        f"the record holds {recorded} bytes in {operations(ledger)}, but "
        f"{'only ' if less else ''}{words.number(on_the_wire)} went over the network.",
        "The record of the operations was changed." if less else "Something else was sent besides.",
        cause=TAMPERED,
    )


def operations(ledger: Ledger) -> str:
    """ "12 messages", or "30 operations" if there are others than messages."""
    begun: Sequence[Operation] = [operation for operation in ledger.operations() if operation.op != "recv"]
    kind = "message" if all(operation.op == "send" for operation in begun) else "operation"
    return words.counted(len(begun), kind)
