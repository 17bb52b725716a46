"""A page to print on how each exercise's points are earned: its lines and their weights.

It is made from the checks themselves, with hidden cases as in grading, so that it always agrees with them.
A line that names a drawn value, such as a rank, stands here with an example; the number of lines and their
points do not depend on the draw.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from autograder.course.exercises import Assignment, Graded
from autograder.outcome.wording import shown
from autograder.report import pages
from course_lib.checks.judge.case import Draw, Exercise, Line
from course_lib.checks.judge.find import find
from course_lib.checks.report import ASPECTS

SEED = 0  # any
BY_HAND = "A person gives these points in formgrader."


def rubric(assignments: Iterable[Assignment]) -> str:
    """The page's HTML: of each assignment its exercises, of each exercise its lines with their points."""
    return pages.fill(
        "rubric.html.j2",
        css=pages.styles("style.css", "rubric.css"),
        assignments=[
            {
                "name": assignment.name,
                "maximum": shown(assignment.maximum),
                "exercises": [_exercise(graded) for graded in assignment.graded.values()],
            }
            for assignment in assignments
        ],
    )


def _exercise(graded: Graded) -> dict:
    unit = "point" if graded.points == 1 else "points"
    points = f"{shown(graded.points)} {unit}{' of extra credit' if graded.extra else ''}"
    row = {"name": graded.name, "given": points}
    if graded.by_hand:
        return {**row, "says": [BY_HAND], "lines": []}
    exercise = find(graded.check)
    return {**row, "says": _said(exercise), "lines": lines_of(exercise, graded.points)}


def lines_of(exercise: Exercise, points: float) -> list[dict]:
    """The lines of all cases, in the table's order; those of one title are one, with all their points."""
    visible = {line.title for line in _lines(exercise, hidden=False)}
    ordered = sorted(_lines(exercise, hidden=True), key=lambda line: ASPECTS.index(line.aspect))
    possible = sum(line.weight for line in ordered)
    rows = []
    for (aspect, title), same in groupby(ordered, key=lambda line: (line.aspect, line.title)):
        several: Sequence[Line] = list(same)
        share = points * sum(line.weight for line in several) / possible
        rows.append(
            {
                "aspect": aspect,
                "title": title if len(several) == 1 else f"{title} ({len(several)} times)",
                "points": f"{share:.2f}",
                "hidden": title not in visible,
                "trivial": several[0].trivial,
            }
        )
    return rows


def _lines(exercise: Exercise, hidden: bool) -> list[Line]:
    return [line for case in exercise.cases(Draw(SEED, hidden)) for line in case.lines]


def _said(exercise: Exercise) -> list[str]:
    if not exercise.point:
        return []
    keeps = "a quarter" if exercise.besides else "half"
    besides = f", for {exercise.besides}" if exercise.besides else ""
    return [
        f"The exercise is about {exercise.point}. Without that, at most {keeps} of its points{besides}."
    ]
