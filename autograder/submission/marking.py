"""Grade one submission, from its folder to a result and an executed notebook.

    read (bounded) -> restore -> run in a sandbox, hand in, judge outside -> status, reason, eyes

The process that does this reads bytes, JSON and text that a student made, and runs nothing of it.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nbformat import NotebookNode
from traitlets.log import get_logger

from autograder.course.exercises import Assignment
from autograder.course.scores import one_line
from autograder.course.twin import grade_id
from autograder.outcome import statuses
from autograder.outcome.limits import Limits
from autograder.outcome.result import BY_HAND, Exercise, Result
from autograder.outcome.wording import about
from autograder.sandbox.child import Start
from autograder.submission.executing import RestoreReleased, RunAndJudge
from autograder.submission.intake import (
    ANOTHER,
    HandedIn,
    MissingError,
    Submission,
    UnreadableError,
    collect,
    other_python,
    parse,
)
from autograder.submission.recognise import defined_names, plain
from autograder.submission.restore import Restored
from autograder.submission.secret import seed
from autograder.submission.suspicion import suspicious
from autograder.submission.walk import Event, Judge, Means
from course_lib.checks.judge.find import find
from course_lib.checks.judge.masks import exported_from

MOST_EVENTS = 2  # that a result's reason tells
CRASHES = (
    statuses.KERNEL_DIED, statuses.OUT_OF_MEMORY, statuses.TIMED_OUT,
    statuses.TOO_MANY_PROCESSES, statuses.TOO_MANY_FILES,
)  # fmt: skip


@dataclass(frozen=True)
class Course:
    """The parts that all submissions of a run share. Nothing of it reaches a student's code.

    start: from an assignment to a function that starts a process for a notebook; judge: from an assignment
    to its judge; layers: of the sandbox that they use, by name.
    """

    assignments: Mapping[str, Assignment]
    secret: bytes
    start: Callable[[Assignment], Start]
    judge: Callable[[Assignment], Judge]
    layers: tuple[str, ...] = ()


def mark(
    submission: Submission,
    course: Course,
    limits: Limits,
    handed_in: HandedIn | None = None,
    known: Sequence[Exercise] = (),
) -> tuple[Result, NotebookNode | None]:
    """Grade a submission; returns its result, and the executed notebook if there is one.

    handed_in: the submission's content, if it was read already. known: verdicts that still hold: these
    exercises are not judged again, though the notebook is executed as ever. Never raises, neither for a
    faulty submission nor for a failure of the grader: that is the status `ungraded`. `fingerprint` is left
    empty.
    """
    began = time.monotonic()
    result = Result(submission.student, submission.assignment, statuses.UNGRADED)
    result.sandbox = list(course.layers)
    notebook = None
    try:
        if handed_in is None:
            handed_in = collect(submission, limits.notebook)
        notebook = parse(handed_in.content)
        result.changes = list(handed_in.notes)
        _grade(notebook, result, course, limits, known)
    except UnreadableError as error:
        missing = isinstance(error, MissingError)
        result.status = statuses.MISSING if missing else statuses.UNREADABLE
        result.reason = str(error)
    except Exception as error:  # the grader's: this submission has no grade, others do
        get_logger().error(traceback.format_exc())
        said = one_line(f"the grading failed ({type(error).__name__}: {error})")
        notebook = None
        result = Result(
            submission.student, submission.assignment, statuses.UNGRADED, said,
            eyes=["the grading itself failed"], sandbox=list(course.layers), by_chance=True,
        )  # fmt: skip
    result.seconds = round(time.monotonic() - began, 3)
    return result, notebook


def _grade(
    notebook: NotebookNode,
    result: Result,
    course: Course,
    limits: Limits,
    known: Sequence[Exercise],
) -> None:
    """Restore, run and judge; `notebook` and `result` are filled in."""
    assignment = course.assignments[result.assignment]
    means = Means(
        course.start(assignment),
        course.judge(assignment),
        lambda exercise: seed(course.secret, result.student, exercise),
        limits,
    )
    resources: dict[str, Any] = {
        "nbgrader": {"student": result.student, "assignment": assignment.name}
    }
    other = other_python(notebook.metadata.get("saved_by", ""))
    RestoreReleased(assignment).preprocess(notebook, resources)
    RunAndJudge(assignment, means, known).preprocess(notebook, resources)
    events: list[Event] = resources["events"]
    restored: Restored = resources["restored"]
    result.exercises = resources["exercises"]
    for exercise in result.exercises if other else ():
        if "SyntaxError" in exercise.reason:
            exercise.reason = one_line(f"{other}. {exercise.reason}")
    blank = result.score == 0 and untouched(notebook, assignment.released)
    result.status = statuses.worst(
        [*(e.status for e in events), *([statuses.BLANK] if blank else [])]
    )
    unread = [note for note in result.changes if note.startswith(ANOTHER)]
    reasons = [_reason(result, events), *(unread if blank else [])]
    result.reason = one_line("; ".join(reasons))
    reports = [exercise.report for exercise in result.exercises if exercise.report is not None]
    result.by_chance = any(e.by_chance for e in events) or any(r["by_chance"] for r in reports)
    result.changes += [*restored.changes, *restored.notes, *([other] if other else [])]
    result.eyes = [*unread, *_crashes(events), *restored.changes]
    result.eyes += [
        f"{exercise.name}: the record of its messages and the network contradict each other"
        for exercise in result.exercises
        if exercise.report is not None and exercise.report["tampered"]
    ]
    for exercise in result.exercises:
        for failure in (exercise.report or {}).get("failures", ()):
            get_logger().error(f"{result.student}, {exercise.name}: the judge failed\n{failure}")
            result.eyes.append(
                one_line(f"{exercise.name}: the judge failed: {failure.splitlines()[-1]}")
            )
    result.eyes += suspicious(notebook, assignment.released, _references(assignment))


def untouched(notebook: NotebookNode, released: NotebookNode) -> bool:
    """Whether every exercise is as it was handed out, and no other cell of the student's answers one."""
    stubs = {grade_id(cell): plain(cell.source) for cell in released.cells if _is_solution(cell)}
    own = {grade_id(cell): plain(cell.source) for cell in notebook.cells if _is_solution(cell)}
    handed_out = {cell.source for cell in released.cells}
    added = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    names = frozenset().union(*map(defined_names, stubs.values()))
    answered = any(names & defined_names(text) for text in added if text not in handed_out)
    return bool(stubs) and own == stubs and not answered


def _is_solution(cell: NotebookNode) -> bool:
    return bool(cell.metadata.get("nbgrader", {}).get("solution"))


def _reason(result: Result, events: list[Event]) -> str:
    """The events of the status, or else the first reason for missing points."""
    if result.status == statuses.BLANK:
        return "nothing was written into any exercise"
    telling = [event for event in events if event.status == result.status]
    if of_all := [event for event in telling if not event.where]:  # the submission's own limit
        return str(of_all[0])
    if said := dict.fromkeys(map(str, telling)):
        more = len(said) - MOST_EVENTS
        return "; ".join([*said][:MOST_EVENTS] + ([f"and {more} more"] if more > 0 else []))
    return next((_loss(exercise) for exercise in result.exercises if _lost(exercise)), "")


def _lost(exercise: Exercise) -> bool:
    if exercise.extra or exercise.reason == BY_HAND:
        return False
    return exercise.points < exercise.maximum


def _loss(exercise: Exercise) -> str:
    return about(exercise.name, exercise.reason)


def _crashes(events: list[Event]) -> list[str]:
    said = [one_line(str(event)) for event in events if event.status in CRASHES]
    return list(dict.fromkeys(said))


def _references(assignment: Assignment) -> frozenset[str]:
    """The modules that hold the answers, and the names by which packages export their content."""
    checks = [graded.check for graded in assignment.graded.values() if graded.check]
    modules = frozenset(module for check in checks for module in find(check).references)
    return modules | exported_from(modules)
