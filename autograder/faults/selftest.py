"""Grade the fault matrix on this machine: is every row's grade right, and is nothing left behind?

All rows are graded in one class, honest submissions among them (see `autograder.faults`). For each row the
table shows its grade and the grade that is right. Below it stand other findings: a file outside the
sandbox, a secret in an output, a process that was left running, a file that was written elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autograder.faults.desk import Course, desks
from autograder.faults.row import FULL, Row
from autograder.faults.witnesses import (
    Listener,
    differences,
    planted_triggers,
    signs_of_success,
    snapshot,
    watching_processes,
)
from autograder.outcome.limits import GB, MB, Limits
from autograder.outcome.result import Result
from autograder.outcome.wording import shown

# Tight enough for faults to end soon, wide enough for an honest submission on a busy laptop.
LIMITS = Limits(
    cell=10, check=60, submission=180, memory=GB, processes=128, disk=64 * MB, payload=16 * MB
)
PLAIN = (
    "For comparison: as measured by 2026-11-23, plain nbgrader 0.9.6 gave the right score to 62 of 101 rows "
    "of the whole matrix. Another 11 would have harmed the machine and were not run."
)
SECRET_VARIABLE = "COURSE_SELFTEST_SECRET"

# Grades the class in `course.submissions`, by the sources in `course.solutions`, into `course.out`.
GradeClass = Callable[[Course, Limits], list[Result]]


@dataclass(frozen=True)
class Verdict:
    """The judgement on one row; right if there are no problems."""

    row: Row
    result: Result | None
    problems: list[str]

    @property
    def right(self) -> bool:
        return not self.problems


@dataclass
class Outcome:
    """The findings of a run. elsewhere: things left behind that belong to no row. omitted: not graded."""

    verdicts: list[Verdict]
    elsewhere: list[str] = field(default_factory=list)
    omitted: list[Row] = field(default_factory=list)

    @property
    def right(self) -> bool:
        return not self.elsewhere and all(verdict.right for verdict in self.verdicts)


def selftest(
    rows: Sequence[Row],
    grade_class: GradeClass,
    folder: Path,
    *,
    limits: Limits = LIMITS,
    untouchable: Sequence[Path] = (),
) -> Outcome:
    """Make the rows' submissions in `folder`, which must be empty, grade them, and judge the grades.

    untouchable: folders of this machine in which nothing may change meanwhile. Exceptions of `grade_class`
    pass through; NbGraderException if the small assignment cannot be made.
    """
    listener = Listener()
    with listener.listening():
        course = Course(folder, port=listener.port)
        course.make()
        for row, desk in zip(rows, desks(course, [row.name for row in rows]), strict=True):
            row.make(desk)
        temporary = folder / "temporary"
        temporary.mkdir()
        watched = (course.solutions, course.notebooks, course.submissions, temporary, *untouchable)
        before = snapshot(*watched)
        with (
            _environment(TMPDIR=str(temporary), **{SECRET_VARIABLE: course.canary}),
            watching_processes() as left,
        ):
            results = {result.student: result for result in grade_class(course, limits)}
        elsewhere = [
            *left.processes,
            *differences(before, snapshot(*watched)),
            *planted_triggers(course.out / "gradebook.db"),
        ]
    # A connection may have waited in the queue until the listener ended.
    elsewhere += [f"{caller}: a connection left the sandbox" for caller in listener.callers]
    names = {row.name for row in rows}
    elsewhere += [
        f"there is a grade for {name!r}, which is not a row" for name in results.keys() - names
    ]
    return Outcome([judge(row, results.get(row.name), course) for row in rows], elsewhere)


def judge(row: Row, result: Result | None, course: Course) -> Verdict:
    """Compare a row's result with what the row must get, and ask the witnesses."""
    if result is None:
        return Verdict(row, None, ["it has no result"])
    problems = []
    if result.status not in (row.status, *row.or_status):
        problems.append(f"the status is {result.status!r}, not {row.status!r}: {result.reason}")
    if row.points is not None and abs(result.score - row.points) > 1e-9:
        problems.append(f"the score is {shown(result.score)}, not {shown(row.points)}")
    if row.says and not re.search(row.says, in_words(result)):
        problems.append(f"no sentence of the result matches {row.says!r}: {result.reason!r}")
    if row.points == FULL and result.status == "graded" and result.reason:
        problems.append(f"full points, and a reason: {result.reason!r}")
    return Verdict(row, result, problems + signs_of_success(course, row.name, result))


def in_words(result: Result) -> str:
    """Every sentence of a result, one a line."""
    named = [
        f"{exercise.grade_id}: {exercise.reason}"
        for exercise in result.exercises
        if exercise.reason
    ]
    return "\n".join([result.reason, *named, *result.changes, *result.eyes])


def as_text(outcome: Outcome) -> str:
    """The table: row, status, score, expected, verdict; problems below."""
    head = ("row", "status", "score", "expected", "verdict")
    lines: list[tuple[str, ...]] = [head]
    notes: list[list[str]] = [[]]
    for verdict in outcome.verdicts:
        row, result = verdict.row, verdict.result
        status, score = (result.status, shown(result.score)) if result else ("-", "-")
        expected = f"{row.status}, {'any' if row.points is None else shown(row.points)}"
        right = "right" if verdict.right else "WRONG"
        lines.append((row.name, status, score, expected, right))
        notes.append(verdict.problems)
    lines += [(row.name, "-", "-", "-", "not run") for row in outcome.omitted]
    notes += [
        [f"this machine's sandbox does not hold back {', '.join(row.needs)}"]
        for row in outcome.omitted
    ]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    text = []
    for line, below in zip(lines, notes, strict=True):
        cells = [part.ljust(width) for part, width in zip(line, widths, strict=True)]
        text.append("  ".join(cells).rstrip())
        text += [f"    {problem}" for problem in below]
    text.insert(1, "-" * (sum(widths) + 2 * len(widths) - 2))
    if outcome.elsewhere:
        text += ["", "Left behind:", *(f"    {place}" for place in outcome.elsewhere)]
    return "\n".join([*text, "", summary(outcome), PLAIN])


def summary(outcome: Outcome) -> str:
    right = sum(verdict.right for verdict in outcome.verdicts)
    said = f"{right} of {len(outcome.verdicts)} rows are right"
    if outcome.omitted:
        said += f", {len(outcome.omitted)} were not run"
    left = "" if outcome.elsewhere else "; nothing was left running or written elsewhere"
    return f"{said}{left}."


@contextlib.contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """A context in which these variables are set, and temporary files go where TMPDIR says."""
    before = {name: os.environ.get(name) for name in variables}
    folder, tempfile.tempdir = tempfile.tempdir, None
    os.environ.update(variables)
    try:
        yield
    finally:
        tempfile.tempdir = folder
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
