"""Stands in for the grading of one submission: the exercises of the toy say what is to happen.

A line `# share: 0.5` gives half of an exercise's points, `# sleep: 0.2` takes so long, `# log: <file>`
writes the student's name into a file, and others are failures of the grader itself: `# raise`, `# die`,
`# die once: <file>`, `# hang`. `# late: <file>` runs out of time until the file is there, and makes it.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import nbformat

from autograder.book.work import Done, Work
from autograder.outcome import statuses
from autograder.outcome.result import Exercise, Result
from autograder.submission.intake import UnreadableError, parse


def grade(work: Work) -> dict:
    result = Result(work.student, work.assignment, statuses.GRADED, sandbox=[work.sandbox])
    released = nbformat.reads(work.released, as_version=4)
    try:
        notebook = parse(work.content)
    except UnreadableError as error:
        result.status, result.reason = statuses.UNREADABLE, str(error)
        return Done(result, page="unreadable").to_json()
    result.changes = [*work.notes]
    texts = {cell["id"]: cell.source for cell in notebook.cells}
    share = 0.0
    for cell in released.cells:
        own = cell.metadata.get("nbgrader", {})
        if own.get("solution"):
            share = _obey(texts[cell["id"]], work.student)
            if late := re.findall(r"^# late: (.*)$", texts[cell["id"]], re.M):
                result.by_chance, there = True, Path(late[0]).exists()
                result.status, share = statuses.TIMED_OUT, share if there else 0.0
                Path(late[0]).touch()
        elif own.get("grade"):
            name, points = own["grade_id"], float(own["points"])
            reason = "" if share == 1 else f"{name}: a share of {share}"
            result.exercises.append(
                Exercise(name, f"00_toy/{name}", share * points, points, reason)
            )
            result.reason = result.reason or reason
    page = f"{result.score} points for {work.student}"
    return Done(result, nbformat.writes(notebook), page).to_json()


def _obey(source: str, student: str = "") -> float:
    """The share of the points that the exercise's text asks for, after what else it asks for."""
    said = dict(re.findall(r"^# (share|sleep|log|die once|die|raise|hang):? *(.*)$", source, re.M))
    time.sleep(float(said.get("sleep", 0)))
    if "log" in said:
        with open(said["log"], "a") as log:
            log.write(f"{student}\n")
    once = Path(said.get("die once", "/"))
    if "die" in said or not once.exists():
        once.touch()
        os._exit(9)
    if "raise" in said:
        raise ValueError("the grader has a fault")
    if "hang" in said:
        time.sleep(1000)
    return float(said.get("share", 0))


def process_id() -> int:
    return os.getpid()


def double(number: int) -> int:
    return 2 * number


def fail(text: str) -> None:
    raise LookupError(text)


def die() -> None:
    os._exit(7)


def unserialisable() -> object:
    return object()
