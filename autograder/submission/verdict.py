"""Turns a judge's report into points, the sentence on why some are missing, and a cell's output."""

from __future__ import annotations

import re
import textwrap

import nbformat
from nbformat import NotebookNode

from autograder.course.exercises import Graded
from autograder.course.scores import one_line
from autograder.outcome import statuses
from autograder.outcome.result import BY_HAND, Exercise
from autograder.outcome.wording import about
from course_lib.checks.report import Report, refusal

LEFT_ALONE = "not attempted"
WIDTH = 96  # columns, as for the sentences of a report


def of_report(graded: Graded, report: dict) -> Exercise:
    """The exercise with the points that the judge's `report` gives.

    The seed does not go into the result: with it a student could draw the hidden cases.
    """
    hidden = Report.from_json({**report, "seed": -1})
    points = hidden.points(graded.points)
    reason, limit = "", ""
    if points != graded.points:
        reason, limit = first_loss(hidden), statuses.USED_UP.get(hidden.limit, "")
    return Exercise(
        graded.grade_id, graded.name, points, graded.points, reason, limit, hidden.to_json(),
        graded.extra,
    )  # fmt: skip


def of_refusal(graded: Graded, sentence: str, limit: str = "") -> Exercise:
    """The exercise without points, since there was nothing to judge. limit: the status of a limit reached."""
    report = refusal(graded.check, sentence, possible=graded.points, extra=graded.extra).to_json()
    reason = one_line(sentence)
    return Exercise(
        graded.grade_id, graded.name, 0.0, graded.points, reason, limit, report, graded.extra
    )


def by_hand(graded: Graded) -> Exercise:
    return Exercise(graded.grade_id, graded.name, 0.0, graded.points, BY_HAND)


def left_alone(graded: Graded) -> Exercise:
    """Extra credit that the student left alone: it is not judged, and nothing is lost."""
    return Exercise(graded.grade_id, graded.name, 0.0, graded.points, LEFT_ALONE, extra=True)


def first_loss(report: Report) -> str:
    """The first case that failed: its title, and the report's first sentence about it."""
    failing = [line for line in report.lines if not line.passed]
    explained = next((line for line in failing if line.sentences), None)
    if explained is None:
        return one_line(failing[0].title) if failing else "some cases of the check failed"
    sentence = first_sentence(explained.sentences[0])
    alone = explained.title == refusal("").lines[0].title
    return one_line(sentence if alone else about(explained.title, sentence))


def first_sentence(text: str) -> str:
    flat = " ".join(text.split())
    match = re.match(r".*?[.!?](?= |$)", flat)
    return match[0] if match else flat


def outputs(exercise: Exercise, number: int) -> list[NotebookNode]:
    """The outputs below a graded cell that was judged: the table, and the points as the cell's value.

    nbgrader's own rule reads the same points from that value. Extra credit is a sentence instead: to that
    rule a value beyond the cell's maximum, which is 0, is an error.
    """
    shown = []
    if exercise.report is not None:
        table = f"{Report.from_json(exercise.report)}\n"
        shown.append(nbformat.v4.new_output("stream", name="stdout", text=table))
    if exercise.extra:
        said = f"{exercise.points:g} of {exercise.maximum:g}" if exercise.attempted else LEFT_ALONE
        text = f"Extra credit: {said}.\n"
        return [*shown, nbformat.v4.new_output("stream", name="stdout", text=text)]
    value = {"text/plain": f"{exercise.points:g}"}
    shown.append(nbformat.v4.new_output("execute_result", value, execution_count=number))
    return shown


def note(kind: str, sentence: str) -> NotebookNode:
    """Grading's own sentence below a cell. kind: a status, which becomes the name of an error.

    Its lines are short, because formgrader cuts long ones off.
    """
    name = kind.title().replace(" ", "")
    lines = textwrap.wrap(f"{name}: {sentence}", WIDTH, break_on_hyphens=False)
    return nbformat.v4.new_output("error", ename=name, evalue=sentence, traceback=lines)
