"""One submission after the other, graded in this process: for commands that need no class."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from nbformat import NotebookNode

from autograder.course.config import NOTEBOOKS, SOLUTIONS
from autograder.course.exercises import Assignment, read_assignment
from autograder.outcome.limits import Limits
from autograder.outcome.result import Exercise, Result
from autograder.submission import verdict
from autograder.submission.intake import HandedIn, Submission
from autograder.submission.marking import mark
from autograder.submission.sandboxed import open_course
from autograder.submission.walk import Judge
from course_lib.runtime import pools, wire

NOWHERE = Path("nowhere")  # the folder of a submission whose notebook is given


class MarkOne(Protocol):
    """handed_in: the notebook's bytes, if they do not lie in the submission's folder."""

    def __call__(
        self, submission: Submission, handed_in: HandedIn | None = None
    ) -> tuple[Result, NotebookNode | None]: ...


@contextmanager
def grading(
    assignment: str,
    secret: bytes,
    limits: Limits,
    sandbox: str = "auto",
    show: Callable[[Exercise], None] | None = None,
) -> Iterator[MarkOne]:
    """Within, the function that grades submissions of `assignment`; afterwards its processes are ended.

    show: called with each exercise as soon as it is judged, before the submission's result is there.
    BuildError if the assignment cannot be graded, SandboxError if a required sandbox cannot be made.
    """
    known = read_assignment(assignment, SOLUTIONS, NOTEBOOKS)
    course = open_course([known], secret, limits, sandbox)
    if show is not None:
        judge_of = course.judge
        course = replace(
            course, judge=lambda assignment: telling(judge_of(assignment), assignment, show)
        )

    def mark_one(
        submission: Submission, handed_in: HandedIn | None = None
    ) -> tuple[Result, NotebookNode | None]:
        return mark(submission, course, limits, handed_in)

    try:
        yield mark_one
    finally:
        pools.close()


def telling(judge: Judge, assignment: Assignment, show: Callable[[Exercise], None]) -> Judge:
    """`judge`, which also calls `show` with each exercise that it judged."""
    graded = {graded_cell.check: graded_cell for graded_cell in assignment.graded.values()}

    def judged(exercise: str, payload: Sequence[wire.Buffer], seed: int, seconds: float) -> dict:
        report = judge(exercise, payload, seed, seconds)
        if exercise in graded:
            show(verdict.of_report(graded[exercise], report))
        return report

    return judged
