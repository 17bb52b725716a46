"""The communication between the ranks of one run in numbers: bytes, messages, collectives, rounds.

A `Record` is made from the operations written down by the recorder, rank by rank, in order of issue. Counts
and bytes are the same in every run of the same program, but times are not. `Ledger` adds a table and figures.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from course_lib.ledger import wording
from course_lib.ledger.matching import (
    OPERATIONS,
    POINT_TO_POINT,
    Collective,
    Message,
    collectives,
    pair,
)
from course_lib.ledger.operation import Operation
from course_lib.ledger.rounds import Round, rounds


class Record:
    """The numbers of a run, without tables and figures; `Ledger` explains the arguments."""

    def __init__(
        self,
        world_size: int,
        operations: Sequence[Sequence[Operation]],
        backend: str = "gloo",
        ended: float | None = None,
        damaged: Sequence[int] = (),
    ):
        if len(operations) != world_size:
            raise ValueError(
                f"a ledger of {wording.counted(world_size, 'rank')} needs that many lists of "
                f"operations, but {len(operations)} came."
            )
        self.world_size = world_size
        self.backend = backend
        self.damaged = list(damaged)
        self._operations = [list(rank) for rank in operations]
        self.ended = self._last_time() if ended is None else ended

    # ---- operations and bytes

    def operations(self, rank: int | None = None, op: str | None = None) -> list[Operation]:
        """The operations of one rank, or of all in the order of ranks; of one kind, or of all."""
        if op is not None:
            self._check_op(op)
        ranks = range(self.world_size) if rank is None else [self._check_rank(rank)]
        return [
            operation
            for r in ranks
            for operation in self._operations[r]
            if op is None or operation.op == op
        ]

    def bytes_sent(self, rank: int) -> int | float:
        """Bytes sent by this rank; an int if the number is whole, as it always is for messages."""
        total = math.fsum(operation.bytes_sent for operation in self.operations(rank))
        return _whole(total)

    def messages_sent(self, rank: int) -> int:
        """Point-to-point messages that this rank sent. Built-in collectives count none."""
        return len(self.operations(rank, "send"))

    def matrix(self) -> np.ndarray:
        """Bytes sent from rank to rank: numpy, (world_size, world_size), [src][dst].

        int64 if every entry is whole, else float64. A message counts in the column of its receiver. A
        built-in collective counts where the algorithm booked for it sends: to the next rank of the group
        (rings and chains), spread over the group (scatter), or to the root (gather). Each part of an
        all-to-all counts in the column of the rank that receives it.
        """
        sent = np.zeros((self.world_size, self.world_size))
        for operation in self.operations():
            if operation.parts:
                for member, nbytes in zip(operation.group, operation.parts, strict=True):
                    sent[operation.rank, member] += nbytes if member != operation.rank else 0
            elif operation.bytes_sent:
                receivers = _receivers(operation)
                sent[operation.rank, receivers] += operation.bytes_sent / len(receivers)
        nearest = np.round(sent)
        return nearest.astype(np.int64) if np.allclose(sent, nearest, rtol=0, atol=1e-6) else sent

    # ---- operations that belong together

    def messages(self) -> list[Message]:
        """Sends with their receives, ordered by sender and its order of issue."""
        return list(self._pairing[0])

    def unmatched(self) -> list[Operation]:
        """Sends without a receive and receives without a send, by rank."""
        return list(self._pairing[1])

    def collectives(self) -> list[Collective]:
        """The built-in collectives, each with the calls of its members."""
        return collectives(self._operations)

    def rounds(self) -> list[Round]:
        """Messages and collectives by round; the rounds had to follow one another (see `rounds`)."""
        return rounds(self._operations, self._pairing[0], self.collectives())

    # ---- helpers

    @functools.cached_property
    def _pairing(self) -> tuple[list[Message], list[Operation]]:
        return pair(self._operations)

    def _last_time(self) -> float:
        times = [0.0]
        for operation in self.operations():
            times.append(
                operation.issued + operation.blocked
                if operation.completed is None
                else operation.completed
            )
        return max(times)

    def _check_rank(self, rank: int) -> int:
        if not isinstance(rank, (int, np.integer)) or not 0 <= rank < self.world_size:
            held = "only rank 0" if self.world_size == 1 else f"ranks 0 to {self.world_size - 1}"
            raise ValueError(f"this ledger has no rank {rank!r}: the run had {held}.")
        return rank

    def _check_op(self, op: str) -> None:
        if op not in OPERATIONS and all(operation.op != op for operation in self.operations()):
            raise ValueError(
                f"the ledger knows no operation {op!r}; the names are {', '.join(OPERATIONS)}."
            )


def _receivers(operation: Operation) -> list[int]:
    """The ranks to which an operation's bytes are booked."""
    others = [rank for rank in operation.group if rank != operation.rank]
    if operation.op in (*POINT_TO_POINT, "gather"):
        return others if operation.peer is None else [operation.peer]
    if operation.op in ("all_to_all", "scatter"):
        return others
    return [operation.group[(operation.group.index(operation.rank) + 1) % len(operation.group)]]


def _whole(number: float) -> int | float:
    nearest = round(number)
    return nearest if abs(number - nearest) < 1e-6 else number
