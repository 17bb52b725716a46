"""What the ranks of one run told each other.

A `Ledger` is made from the operations that the recorder wrote down, rank by rank, in order of
issue. Counts and bytes are the same in every run of the same program; times are not.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

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
from course_lib.ledger.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Ledger:
    """Every communication operation of every rank of a run.

    operations: one list for each rank, in order of issue.
    backend: "gloo" or "nccl".
    ended: when the run ended, in seconds since it began; None takes the last time in `operations`.
    damaged: ranks that overwrote their record: what is here of them is not all.

    For a built-in collective `bytes_sent` is the volume of the bandwidth-optimal algorithm, the
    convention of nccl-tests: with M bytes in the full tensor and N ranks 2 (N-1)/N M for an
    all-reduce, (N-1)/N M for all-gather, reduce-scatter and all-to-all, M for every rank but one
    of a broadcast or reduce (a chain).
    """

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

    # ---- what was sent

    def operations(self, rank: int | None = None, op: str | None = None) -> list[Operation]:
        """The operations of one rank, or of all in the order of ranks; of one kind, or of all."""
        if op is not None:
            self._check_op(op)
        ranks = range(self.world_size) if rank is None else [self._check_rank(rank)]
        return [one for r in ranks for one in self._operations[r] if op is None or one.op == op]

    def bytes_sent(self, rank: int) -> int | float:
        """Bytes that this rank sent; an int whenever it is whole, which it is for messages."""
        total = math.fsum(one.bytes_sent for one in self.operations(rank))
        return _whole(total)

    def messages_sent(self, rank: int) -> int:
        """Point-to-point messages that this rank sent. Built-in collectives count none."""
        return len(self.operations(rank, "send"))

    def matrix(self) -> np.ndarray:
        """Bytes sent from rank to rank: numpy, (world_size, world_size), [src][dst].

        int64 when every entry is whole, else float64. Messages stand where they went. Built-in
        collectives stand where the algorithm that they are booked as sends: to the next rank of the
        group (rings and chains), spread over the group (all-to-all, scatter), to the root (gather).
        """
        sent = np.zeros((self.world_size, self.world_size))
        for one in self.operations():
            if one.bytes_sent:
                receivers = _receivers(one)
                sent[one.rank, receivers] += one.bytes_sent / len(receivers)
        nearest = np.round(sent)
        return nearest.astype(np.int64) if np.allclose(sent, nearest, rtol=0, atol=1e-6) else sent

    # ---- what belongs together

    def messages(self) -> list[Message]:
        """Sends with their receives, ordered by sender and its order of issue."""
        return list(self._pairing[0])

    def unmatched(self) -> list[Operation]:
        """Sends that nobody received and receives that nobody sent to, by rank."""
        return list(self._pairing[1])

    def collectives(self) -> list[Collective]:
        """The built-in collectives, each with the calls of its members."""
        return collectives(self._operations)

    def rounds(self) -> list[Round]:
        """Messages and collectives by round: how many had to follow one another (see `rounds`)."""
        return rounds(self._operations, self._pairing[0], self.collectives())

    # ---- what it looks like

    def table(self, times: bool = True, rank: int | None = None) -> Table:
        """One row for each operation of each line of code; ranks that agree share a row.

        times: False leaves out what differs from run to run.
        """
        return Table(self, times, None if rank is None else self._check_rank(rank))

    def timeline(
        self,
        window: tuple[float, float] | None = None,
        title: str | None = None,
        after: str | None = None,
    ) -> Figure:
        """Ranks are rows, time runs right, grey is blocked, arrows are messages.

        window: seconds since the first operation, from and to; None shows the whole run.
        after: name of a built-in, such as "barrier": time 0 is when the first rank left its first
            call, and what came before (gloo connecting, most of all) is not shown.
        """
        from course_lib.ledger.figures import timeline  # matplotlib takes half a second to import

        return timeline(self, window, title, after)

    def matrix_figure(self, title: str | None = None) -> Figure:
        """`matrix()` as a picture: senders are rows, receivers columns."""
        from course_lib.ledger.figures import matrix_figure

        return matrix_figure(self, title)

    def __repr__(self) -> str:
        kinds = Counter(one.op for one in self.operations())
        calls = ", ".join(f"{kinds[op]:,} {op}" for op in OPERATIONS if kinds[op]) or "no operation"
        sent = [self.bytes_sent(rank) for rank in range(self.world_size)]
        low, high = min(sent, default=0), max(sent, default=0)
        each = (
            wording.exact(low) if low == high else f"{wording.exact(low)} to {wording.exact(high)}"
        )
        ranks = wording.counted(self.world_size, "rank")
        return f"Ledger({ranks}, {self.backend}: {calls}; {each} bytes sent by each rank)"

    # ---- helpers

    @functools.cached_property
    def _pairing(self) -> tuple[list[Message], list[Operation]]:
        return pair(self._operations)

    def _last_time(self) -> float:
        times = [0.0]
        for one in self.operations():
            times.append(one.issued + one.blocked if one.completed is None else one.completed)
        return max(times)

    def _check_rank(self, rank: int) -> int:
        if not isinstance(rank, (int, np.integer)) or not 0 <= rank < self.world_size:
            held = "only rank 0" if self.world_size == 1 else f"ranks 0 to {self.world_size - 1}"
            raise ValueError(f"this ledger has no rank {rank!r}: the run had {held}.")
        return rank

    def _check_op(self, op: str) -> None:
        if op not in OPERATIONS and all(one.op != op for one in self.operations()):
            raise ValueError(
                f"the ledger knows no operation {op!r}; the names are {', '.join(OPERATIONS)}."
            )


def _receivers(one: Operation) -> list[int]:
    """Where an operation's bytes are booked as going."""
    others = [rank for rank in one.group if rank != one.rank]
    if one.op in (*POINT_TO_POINT, "gather"):
        return others if one.peer is None else [one.peer]
    if one.op in ("all_to_all", "scatter"):
        return others
    return [one.group[(one.group.index(one.rank) + 1) % len(one.group)]]


def _whole(number: float) -> int | float:
    nearest = round(number)
    return nearest if abs(number - nearest) < 1e-6 else number
