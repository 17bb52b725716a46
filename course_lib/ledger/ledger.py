"""The communication between the ranks of one run, with a table and figures of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from course_lib.ledger import wording
from course_lib.ledger.matching import OPERATIONS
from course_lib.ledger.record import Record
from course_lib.ledger.tables import Table

if TYPE_CHECKING:
    from course_lib.pictures.axes import Meshed
    from course_lib.pictures.colours import Picture


class Ledger(Record):
    """Every communication operation of every rank of a run.

    operations: one list for each rank, in order of issue.
    backend: "gloo" or "nccl".
    ended: when the run ended, in seconds since it began; None takes the last time in `operations`.
    damaged: ranks that overwrote their record, so that their operations here are incomplete.

    For a built-in collective, `bytes_sent` is what the bandwidth-optimal algorithm sends, which is the
    convention of nccl-tests. With M bytes in the full tensor and N ranks, this is 2 (N-1)/N M for an
    all-reduce, (N-1)/N M for all-gather, reduce-scatter and all-to-all, and M for every rank except one
    of a broadcast or reduce (a chain).
    """

    def table(self, times: bool = True, rank: int | None = None) -> Table:
        """One row for each operation of each line of code; ranks that agree share a row.

        times: False leaves out the columns that differ from run to run.
        """
        return Table(self, times, None if rank is None else self._check_rank(rank))

    def timeline(
        self,
        window: tuple[float, float] | None = None,
        title: str | None = None,
        after: str | None = None,
        axes: Mapping[str, int] | Meshed | None = None,
    ) -> Picture:
        """Ranks are rows, time runs right, grey is blocked, arrows are messages.

        window: seconds since the first operation, from and to; None shows the whole run.
        after: name of a built-in, such as "barrier". Time 0 is when the first rank left its first
            call, and the time before (mostly gloo connecting) is not shown.
        axes: sizes of a mesh, outermost axis first, such as {"pp": 2, "dp": 2, "tp": 2}, or a mesh that has
            them. Operations are then filled by axis instead of grey; operations of several axes are striped.
        """
        from course_lib.pictures.ledger_figures import (
            timeline,  # matplotlib takes half a second to import
        )

        return timeline(self, window, title, after, axes)

    def matrix_figure(self, title: str | None = None) -> Picture:
        """`matrix()` as a picture, in which senders are rows and receivers are columns."""
        from course_lib.pictures.ledger_figures import matrix_figure

        return matrix_figure(self, title)

    def __repr__(self) -> str:
        kinds = Counter(operation.op for operation in self.operations())
        calls = ", ".join(f"{kinds[op]:,} {op}" for op in OPERATIONS if kinds[op]) or "no operation"
        sent = [self.bytes_sent(rank) for rank in range(self.world_size)]
        low, high = min(sent, default=0), max(sent, default=0)
        each = (
            wording.exact(low) if low == high else f"{wording.exact(low)} to {wording.exact(high)}"
        )
        ranks = wording.counted(self.world_size, "rank")
        return f"Ledger({ranks}, {self.backend}: {calls}; {each} bytes sent by each rank)"
