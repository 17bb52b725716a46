"""Results for Gradescope: `results.json`, whole at any moment, partial while grading goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from autograder.book.standing import ByHand, Standing, final_score
from autograder.book.standing import others as others_of
from autograder.outcome import statuses, wording
from autograder.outcome.result import Exercise, Result, write_whole
from autograder.report.disclosure import Disclosed, disclosed
from course_lib.checks.report import wrapped

WITHOUT_GRADEBOOK = (
    "Points that a person gives, and points taken off for being late, are not part of this score."
)
UNFINISHED = "Grading is not finished: exercises that are missing here count nothing yet."


def results_json(
    result: Result, standing: Standing | None = None, *, unfinished: bool = False
) -> dict[str, Any]:
    """The data of Gradescope's `results.json` for one submission.

    One test for each graded cell, but for extra credit that was left alone; earned extra credit is in the
    score. Hidden cases stand as on the feedback page. A submission that is `ungraded` has no score and no
    tests, which Gradescope reports as a failure of the autograder, not as a grade. standing: a gradebook's
    additions; None without a gradebook, as in Gradescope's container: then the output names the missing
    points. unfinished: the result is incomplete, and the output says so.
    """
    said = [
        UNFINISHED if unfinished else "",
        wording.SAID.get(result.status, ""),
        "" if result.exercises else result.reason,
        ""
        if result.sandbox or result.status in wording.WITHOUT_NOTEBOOK
        else "Run without a sandbox.",
        _added(standing, result, unfinished),
    ]
    data: dict[str, Any] = {
        "output": "\n".join(text for text in said if text),
        "output_format": "text",
        "execution_time": round(result.seconds),
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "tests": [],
        "extra_data": {
            "status": result.status,
            "sandbox": result.sandbox,
            "eyes": result.eyes,
            "fingerprint": result.fingerprint,
        },
    }
    if result.status == statuses.UNGRADED:
        return data
    score = final_score(result, standing)
    assert score is not None  # only an `ungraded` result has none
    data["score"] = round(score, 6)
    standing = standing or Standing()
    others = [
        Exercise(name, name, 0.0, cell.maximum)
        for name, cell in others_of(result, standing).items()
    ]
    shown = [
        exercise
        for exercise in result.exercises
        if exercise.attempted or standing.own(exercise) is not None
    ]
    data["tests"] = [
        _test(exercise, str(number), standing.own(exercise))
        for number, exercise in enumerate([*shown, *others], start=1)
    ]
    return data


def _added(standing: Standing | None, result: Result, unfinished: bool) -> str:
    """A sentence on a gradebook's part of the score, or on its absence."""
    if unfinished or result.status == statuses.UNGRADED:
        return ""
    if standing is None:
        return WITHOUT_GRADEBOOK
    return f"{wording.shown(standing.penalty)} points off: late." if standing.penalty else ""


def _test(exercise: Exercise, number: str, by_hand: ByHand | None) -> dict[str, Any]:
    rows = disclosed(exercise.report) if exercise.report else []
    points, lines = exercise.points, [line for row in rows for line in _lines(row)]
    if by_hand is not None:
        points = Standing({exercise.grade_id: by_hand}).points(exercise)
    if by_hand is not None and by_hand.points is not None:
        lines = ["A person gave the points.", *lines]
    lines = lines or [exercise.reason]
    lines += [by_hand.comment] if by_hand is not None and by_hand.comment else []
    return {
        "name": wording.title(exercise) + (" (extra credit)" if exercise.extra else ""),
        "number": number,
        "score": round(points, 6),
        "max_score": exercise.maximum,
        "status": "passed" if points >= exercise.maximum else "failed",
        "output": "\n".join(line for line in lines if line),
        "output_format": "text",
        "visibility": "visible",
    }


def _lines(row: Disclosed) -> list[str]:
    head = f"{row.sign} {row.title}  {row.note}".rstrip()
    said = [line for text in row.sentences for line in wrapped(text)]
    return [head, *said, *(f"      | {line}" for line in row.output)]


def write_results(
    result: Result, path: Path, standing: Standing | None = None, *, unfinished: bool = False
) -> None:
    """Write `results.json`, whole or not at all. standing: as for `results_json`."""
    data = results_json(result, standing, unfinished=unfinished)
    write_whole(path, json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False))
