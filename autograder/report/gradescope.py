"""Results as Gradescope reads them: `results.json`, whole at any moment, partial while grading goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from autograder import status as statuses
from autograder.report import wording
from autograder.report.disclosure import Told, told
from autograder.result import Exercise, Result, write_whole
from course_lib.checks.engine.report import wrapped

UNFINISHED = "Grading has not come to its end: what is missing here counts nothing yet."


def results_json(result: Result, *, unfinished: bool = False) -> dict[str, Any]:
    """The data of Gradescope's `results.json` for one submission.

    One test for each graded cell. Hidden cases are told as on the feedback page. A submission that is
    `ungraded` has no score and no tests, which Gradescope reports as a failure of the autograder, not as
    a grade. unfinished: what is known so far.
    """
    said = [
        UNFINISHED if unfinished else "",
        wording.SAID.get(result.status, ""),
        "" if result.exercises else result.reason,
        ""
        if result.sandbox or result.status in wording.WITHOUT_NOTEBOOK
        else "Run without a sandbox.",
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
    data["score"] = round(result.score, 6)
    data["tests"] = [
        _test(one, str(number)) for number, one in enumerate(result.exercises, start=1)
    ]
    return data


def _has_sandbox(result: Result) -> bool:
    return bool(result.sandbox) or result.status in wording.WITHOUT_NOTEBOOK


def _test(exercise: Exercise, number: str) -> dict[str, Any]:
    rows = told(exercise.report) if exercise.report else []
    full = exercise.points >= exercise.maximum
    return {
        "name": wording.title(exercise),
        "number": number,
        "score": round(exercise.points, 6),
        "max_score": exercise.maximum,
        "status": "passed" if full else "failed",
        "output": "\n".join(line for row in rows for line in _lines(row)) or exercise.reason,
        "output_format": "text",
        "visibility": "visible",
    }


def _lines(row: Told) -> list[str]:
    head = f"{'✓' if row.passed else '✗'} {row.title}  {row.note}".rstrip()
    said = [line for text in row.sentences for line in wrapped(text)]
    return [head, *said, *(f"      | {line}" for line in row.output)]


def write_results(result: Result, path: Path, *, unfinished: bool = False) -> None:
    """Write `results.json`, whole or not at all."""
    data = results_json(result, unfinished=unfinished)
    write_whole(path, json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False))
