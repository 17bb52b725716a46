"""Rounds: how many messages had to follow one another.

A message belongs to round 1 + r, where r is the latest round that its sender had finished before it
began to send or its receiver before it began to receive. Messages that are under way together are
in one round, but a rank that sends three messages, each after the last, needs three rounds. So a ring
all-reduce over N ranks has 2 (N-1) rounds, a binomial tree has ceil(log2 N), and collecting N - 1 messages
one by one takes N - 1. A message is "finished" when the program has waited for it, so a handle without a
wait delays nothing. On a GPU, whose stream waits, the next message counts as later although the host runs
ahead.

A built-in collective is a round of its own for its members. A barrier holds them together but moves
nothing, so it does not count.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from course_lib.ledger.matching import Collective, Message
from course_lib.ledger.operation import Operation

Exchange = Message | Collective


@dataclass
class Round:
    """One round: its messages, in the order of their senders, and its collectives."""

    number: int
    messages: list[Message] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        return sum(message.nbytes for message in self.messages)


@dataclass(frozen=True, slots=True)
class _Event:
    operation: Operation
    is_completion: bool


def rounds(
    operations: Sequence[Sequence[Operation]],
    messages: Sequence[Message],
    collectives: Sequence[Collective],
) -> list[Round]:
    """The rounds of a run, in order. Operations without a partner belong to none."""
    depth = _Depths(operations, messages, collectives).run()
    by_number: dict[int, Round] = {}
    for exchange, number in depth:
        round_ = by_number.setdefault(number, Round(number))
        if isinstance(exchange, Message):
            round_.messages.append(exchange)
        elif exchange.op != "barrier":
            round_.collectives.append(exchange)
    filled = [
        by_number[n] for n in sorted(by_number) if by_number[n].messages or by_number[n].collectives
    ]
    return [
        Round(n, round_.messages, round_.collectives) for n, round_ in enumerate(filled, start=1)
    ]


def events(operations: Sequence[Operation]) -> list[_Event]:
    """One rank's issues and completions in the order in which they happened.

    Issues keep their order, and a completion comes before the first issue that is not earlier.
    """
    listed: list[_Event] = []
    pending: list[tuple[float, int]] = []
    for place, operation in enumerate(operations):
        while pending and pending[0][0] <= operation.issued:
            listed.append(_Event(operations[heapq.heappop(pending)[1]], True))
        listed.append(_Event(operation, False))
        if (moment := known(operation)) is not None:
            heapq.heappush(pending, (moment, place))
    while pending:
        listed.append(_Event(operations[heapq.heappop(pending)[1]], True))
    return listed


def known(operation: Operation) -> float | None:
    """When the program had waited for the operation; None if it never did."""
    return operation.completed if operation.waited_at is None else operation.waited_at


class _Depths:
    """Walks through the ranks' events. A completion waits until both ends have issued."""

    def __init__(
        self,
        operations: Sequence[Sequence[Operation]],
        messages: Sequence[Message],
        collectives: Sequence[Collective],
    ):
        self.exchanges: list[Exchange] = [*messages, *collectives]
        self.exchange_of: dict[tuple[int, int], int] = {}
        self.missing: list[int] = []
        for number, exchange in enumerate(self.exchanges):
            ends = _ends(exchange)
            self.missing.append(len(ends))
            for end in ends:
                self.exchange_of[end.rank, end.index] = number
        self.depth = [0] * len(self.exchanges)
        self.reached = [0] * len(operations)
        self.queues = [events(rank) for rank in operations]
        self.place = [0] * len(operations)

    def run(self) -> list[tuple[Exchange, int]]:
        while any(place < len(q) for place, q in zip(self.place, self.queues, strict=True)):
            moved = [self.advance(rank) for rank in range(len(self.queues))]
            if not any(moved):
                self.release()
        return list(zip(self.exchanges, self.depth, strict=True))

    def advance(self, rank: int) -> bool:
        start, queue = self.place[rank], self.queues[rank]
        while self.place[rank] < len(queue) and self.step(rank, queue[self.place[rank]]):
            self.place[rank] += 1
        return self.place[rank] > start

    def step(self, rank: int, event: _Event) -> bool:
        number = self.exchange_of.get((rank, event.operation.index))
        if number is None:  # it has no partner
            return True
        if not event.is_completion:
            exchange = self.exchanges[number]
            counts = isinstance(exchange, Message) or exchange.op != "barrier"
            self.depth[number] = max(self.depth[number], self.reached[rank] + counts)
            self.missing[number] -= 1
            return True
        if self.missing[number] > 0:
            return False
        self.reached[rank] = max(self.reached[rank], self.depth[number])
        return True

    def release(self) -> None:
        """Go on when every rank is at a completion whose other end has not issued yet.

        This happens if a send completes from a buffer and its receive is posted only after a later
        message has arrived. The earliest completion then goes ahead with the depth known so far.
        """
        waiting = [
            (known(queue[place].operation), rank)
            for rank, (place, queue) in enumerate(zip(self.place, self.queues, strict=True))
            if place < len(queue)
        ]
        _, rank = min(waiting)
        number = self.exchange_of[rank, self.queues[rank][self.place[rank]].operation.index]
        self.reached[rank] = max(self.reached[rank], self.depth[number])
        self.place[rank] += 1


def _ends(exchange: Exchange) -> list[Operation]:
    if isinstance(exchange, Message):
        return [exchange.send, exchange.recv]
    return list(exchange.calls.values())
