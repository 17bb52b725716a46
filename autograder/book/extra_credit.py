"""Extra credit: how many of the points that exercises earn count.

An exercise that is extra credit adds to a submission's points and not to the assignment's maximum, so that a
score may exceed it. In nbgrader's gradebook its check has 0 points, and the points that it earned stand in
the field "extra credit" beside them.
"""

from __future__ import annotations

import math

from traitlets import Float
from traitlets.config import Configurable

from autograder.outcome.result import Result


class ExtraCredit(Configurable):
    """The instructor's limit on extra credit, set in `class_config.py`."""

    most = Float(
        math.inf, help="Points of extra credit that count for one assignment at most; 0: none."
    ).tag(config=True)

    def earned(self, result: Result) -> dict[str, float | None]:
        """By grade_id, the points that each exercise adds, up to the limit; None if it was left alone."""
        left, counts = max(0.0, self.most), {}
        for exercise in result.exercises:
            if exercise.extra:
                counted = min(exercise.points, left)
                left -= counted
                counts[exercise.grade_id] = counted if exercise.attempted else None
        return counts
