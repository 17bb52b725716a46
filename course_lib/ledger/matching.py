"""Which send belongs to which receive, and which calls of the ranks are one collective.

Both follow from the order of issue, because messages between two ranks with the same tag in the same
group do not overtake each other, and the k-th collective of a group is the k-th call of each of its
members. Times play no part, so the answer is the same in every run.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from course_lib.ledger.operation import Operation

POINT_TO_POINT = ("send", "recv")
BUILT_IN = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "barrier",
)
OPERATIONS = (*POINT_TO_POINT, *BUILT_IN, "new_group")


@dataclass(frozen=True, slots=True)
class Message:
    """A send and the receive that took it. `src` and `dst` are global ranks."""

    send: Operation
    recv: Operation
    src: int
    dst: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Collective:
    """The calls of a group's members that make up one built-in collective, by global rank.

    Members are missing if the run ended before they called.
    """

    op: str
    group: tuple[int, ...]
    calls: dict[int, Operation]

    @property
    def nbytes(self) -> int:
        return max(call.nbytes for call in self.calls.values())


def pair(operations: Sequence[Sequence[Operation]]) -> tuple[list[Message], list[Operation]]:
    """Pair sends with receives, first in, first out, per (src, dst, tag, group).

    Returns the messages, ordered by sender and its order of issue, and the sends and receives
    without a partner. A receive from any source takes one of the sends left over by the receives with a
    source, the earliest issued send first (times play a part only here).
    """
    sends: dict[tuple, deque[Operation]] = defaultdict(deque)
    for send in _flat(operations, "send"):
        sends[send.rank, send.peer, send.tag, send.group].append(send)
    receives = _flat(operations, "recv")
    messages: list[Message] = []
    lonely: list[Operation] = []
    for recv in [r for r in receives if r.peer is not None]:
        queue = sends[recv.peer, recv.rank, recv.tag, recv.group]
        _take(queue, recv, messages, lonely)
    for recv in [r for r in receives if r.peer is None]:
        queues = [
            queue
            for (_, dst, tag, group), queue in sends.items()
            if queue and (dst, tag, group) == (recv.rank, recv.tag, recv.group)
        ]
        queue = min(queues, key=lambda q: (q[0].issued, q[0].rank), default=deque())
        _take(queue, recv, messages, lonely)
    lonely.extend(send for queue in sends.values() for send in queue)
    messages.sort(key=lambda message: (message.src, message.send.index))
    return messages, sorted(lonely, key=lambda op: (op.rank, op.index))


def _flat(operations: Iterable[Iterable[Operation]], op: str) -> list[Operation]:
    return [operation for rank in operations for operation in rank if operation.op == op]


def _take(
    queue: deque[Operation], recv: Operation, messages: list[Message], lonely: list[Operation]
) -> None:
    if not queue:
        lonely.append(recv)
        return
    send = queue.popleft()
    messages.append(Message(send, recv, send.rank, recv.rank, send.nbytes))


def collectives(operations: Sequence[Sequence[Operation]]) -> list[Collective]:
    """The built-in collectives, ordered by group and turn."""
    turns: dict[tuple[int, ...], list[dict[int, Operation]]] = defaultdict(list)
    for rank in operations:
        called: dict[tuple[int, ...], int] = defaultdict(int)
        for call in rank:
            if call.op not in BUILT_IN:
                continue
            turn = called[call.group]
            called[call.group] += 1
            if turn == len(turns[call.group]):
                turns[call.group].append({})
            turns[call.group][turn][call.rank] = call
    return [
        Collective(next(iter(calls.values())).op, group, calls)
        for group, listed in sorted(turns.items())
        for calls in listed
    ]
