"""Before a release: the reference solution is graded several times, and must get full points every time.

A check that fails a right solution once in ten costs some student points once in ten. Every round is
another student's, so that the hidden cases are drawn anew.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from autograder.course.config import NOTEBOOKS, SOLUTIONS
from autograder.course.twin import answers, grade_id
from autograder.outcome import statuses, wording
from autograder.outcome.result import Result
from autograder.sample.sample_class import without_markers

TIMES = 10

Mark = Callable[[str, NotebookNode], Result]


@dataclass(frozen=True)
class Unreliable:
    """A check that did not give the reference full points, or a round that did not end as it should.

    exercise: its name, or the status of such rounds; failed: rounds of `times`; said: the first reason.
    """

    assignment: str
    exercise: str
    failed: int
    times: int
    said: str

    def __str__(self) -> str:
        return f"{self.assignment}: {self.exercise} in {self.failed} of {self.times} rounds: {self.said}"


def reliability(
    assignment: str,
    mark: Mark,
    times: int = TIMES,
    *,
    solutions: Path = SOLUTIONS,
    notebooks: Path = NOTEBOOKS,
) -> list[Unreliable]:
    """The exercises that did not get full points every time; empty if all did.

    mark: (student, notebook) -> the result; the student's name decides which hidden cases are drawn.
    Cells that a person grades are not counted: they have no report.
    """
    file = f"{assignment}/{assignment}.ipynb"
    handed_in = reference_submission(
        nbformat.read(solutions / file, as_version=4), nbformat.read(notebooks / file, as_version=4)
    )
    counts: Counter[str] = Counter()
    said: dict[str, str] = {}
    for number in range(1, times + 1):
        result = mark(f"reference-{number:02}", copy.deepcopy(handed_in))
        for name, why in _failures(result):
            counts[name] += 1
            said.setdefault(name, why)
    return [
        Unreliable(assignment, name, failed, times, said[name])
        for name, failed in counts.most_common()
    ]


def _failures(result: Result) -> list[tuple[str, str]]:
    """(exercise or status, reason) of everything in one round that is not as it should be."""
    losses = [
        (wording.title(exercise), exercise.reason or "points are missing")
        for exercise in result.exercises
        if exercise.report is not None and exercise.points < exercise.maximum
    ]
    if result.status != statuses.GRADED:
        losses.append((f"the status {result.status!r}", result.reason or "no reason was given"))
    if result.status == statuses.GRADED and not any(
        exercise.report for exercise in result.exercises
    ):
        losses.append(("nothing", "no exercise was checked"))
    return losses


def reference_submission(source: NotebookNode, released: NotebookNode) -> NotebookNode:
    """The student version with the instructor's answers in it, as a student would hand them in."""
    texts = answers(source)
    notebook = copy.deepcopy(released)
    for cell in notebook.cells:
        if (text := texts.get(grade_id(cell) or "")) is not None:
            cell["source"] = without_markers(text)
    return notebook
