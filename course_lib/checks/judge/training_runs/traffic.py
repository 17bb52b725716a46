"""The traffic of a training run: how much, between which moments, and when within a backward."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from course_lib.checks import words
from course_lib.checks.judge.amount import beyond
from course_lib.checks.judge.case import Finding, Line, Observed, wrong
from course_lib.checks.judge.traffic import share_of
from course_lib.checks.rank.watching import Pass
from course_lib.ledger.operation import Operation


def volume_line(
    least: Sequence[float],
    *,
    most: Sequence[float] | None = None,
    hint: Callable[[float, Observed], str] | None = None,
    weight: float = 1.0,
    title: str = "bytes sent",
    what: str = "",
    between: tuple[int, int] | None = None,
    point: float = float("inf"),
) -> Line:
    """Bytes that each rank sends, collectives counted as the best algorithm sends them (see the ledger).

    Between `least` and `most` (the same when left out). hint: given the ratio, the usual cause. between:
    two places in "begun" of the recipe, such as (2, 4) for the second step; the whole run when left out.
    point: from that many times too many bytes on, the point of the exercise is missed (see `Exercise`).
    """
    allowed = list(most or least)

    def judge(observed: Observed) -> Finding:
        sent = [sum(operation.bytes_sent for operation in rank) for rank in within(observed, between)]
        if off := beyond(sent, allowed, least):
            return wrong(
                f"rank {off.place} sent {off.number} bytes; {off.enough}{what}.",
                hint(off.ratio, observed) if hint else "",
                cause=f"bytes {off.ratio:.2f}",
                misses_point=off.ratio >= point,
            )
        return Finding(True, title=f"{title}: {words.number(round(max(sent)))} by the busiest rank")

    def of_those_due(observed: Observed) -> float:
        sent = [sum(operation.bytes_sent for operation in rank) for rank in within(observed, between)]
        return share_of(sent, allowed)

    tells = of_those_due if math.isfinite(point) else None
    return Line(title, judge, weight, "communication", shows=tells)


def within(observed: Observed, between: tuple[int, int] | None) -> list[list[Operation]]:
    """Each rank's operations between two moments; none of a rank that did not report the moments."""
    if between is None:
        return observed.operations
    parts = []
    for rank, operations in enumerate(observed.operations):
        first, last = (begun_at(observed, rank, place) for place in between)
        parts.append(operations[first:last])
    return parts


@dataclass(frozen=True)
class LastBackward:
    """The last backward of a step. ended: operations begun by the time the next step's backward began."""

    passes: list[Pass]
    ended: int

    @property
    def first_block(self) -> Pass:
        """The moment before the gradients of block 0; with nothing begun if it was not reported."""
        return next((moment for moment in self.passes if moment.block == 0), Pass(0, 0, 0, False))


def last_backwards(observed: Observed, rank: int) -> list[LastBackward]:
    """The last backward of each step; without passes if there were none.

    At a pass, no more operations count as begun than at the end of backward, which is noted elsewhere: a
    class can reach the hooks on the model's blocks, and their notes.
    """
    steps = observed.case.sides[rank].instructions.steps
    reported = observed.values[rank].passes
    backwards, number = [], 0
    for place, step in enumerate(steps):
        number += len(step)
        passes = reported[number - 1] if number <= len(reported) else []
        following = reported[number] if number < len(reported) else []
        over = begun_at(observed, rank, 1 + 2 * place)
        passes = [replace(moment, begun=min(moment.begun, over)) for moment in passes]
        backwards.append(LastBackward(passes, following[0].begun if following else 0))
    return backwards


def begun_at(observed: Observed, rank: int, place: int) -> int:
    """Operations begun at a place in "begun" of the recipe; 0 if there is no such place."""
    begun = observed.values[rank].begun
    return begun[place] if place < len(begun) else 0
