"""The steps of nbgrader's pipeline that grade without a kernel: restore, then run and judge."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from nbformat import NotebookNode
from nbgrader.preprocessors import NbGraderPreprocessor

from autograder.course.exercises import Assignment
from autograder.outcome.result import Exercise
from autograder.submission.restore import restore
from autograder.submission.walk import Means, Walk

Resources = dict[str, Any]


class RestoreReleased(NbGraderPreprocessor):
    """Puts back the parts that a submission may not change; `resources["restored"]` lists them."""

    def __init__(self, assignment: Assignment, **options: Any) -> None:
        super().__init__(**options)
        self.assignment = assignment

    def preprocess(self, nb: NotebookNode, resources: Resources) -> tuple[NotebookNode, Resources]:
        released = self.assignment.released
        resources["restored"] = restore(nb, released)
        nb.metadata = copy.deepcopy(released.metadata)
        return nb, resources


class RunAndJudge(NbGraderPreprocessor):
    """Replaces nbgrader's Execute: cells run in a sandbox, exercises are judged outside of it.

    Graded cells get the judge's points as their value, which nbgrader's own rule reads as partial credit.
    `resources["exercises"]` and `resources["events"]` hold the same as data (see
    `autograder.submission.walk`). known: verdicts that still hold. JudgeFailureError and LaunchError pass
    through.
    """

    def __init__(
        self,
        assignment: Assignment,
        means: Means,
        known: Sequence[Exercise] = (),
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.assignment, self.means, self.known = assignment, means, known

    def preprocess(self, nb: NotebookNode, resources: Resources) -> tuple[NotebookNode, Resources]:
        walk = Walk(
            self.assignment, self.means, {exercise.grade_id: exercise for exercise in self.known}
        )
        try:
            for cell in nb.cells:
                walk.visit(cell)
        finally:
            walk.close()
        resources["exercises"], resources["events"] = walk.exercises, walk.events
        return nb, resources
