"""The result of grading one submission: the points of its exercises, their sum, and the reasons.

Gradebook, tables and pages are made from it.

A result is written whole or not at all, when everything about it is known. So a result on disk is always
a finished grade.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

FORMAT = 1
BY_HAND = "a person gives the points"  # the reason of an exercise until somebody has


@dataclass
class Exercise:
    """One graded cell. `report` is the judge's (see `course_lib.checks.report`), None without one.

    reason: empty when all points are there. limit: the name of the status of a limit that was reached here
    (see `autograder.outcome.statuses`), else empty. extra: the points are extra credit, on top of the maximum
    of the assignment, in which `maximum` is not counted. rests_on: a hash of the files that this exercise
    alone rests on, see `autograder.submission.fingerprint`.
    """

    grade_id: str
    name: str
    points: float
    maximum: float
    reason: str = ""
    limit: str = ""
    report: dict | None = None
    extra: bool = False
    rests_on: str = ""

    @property
    def check(self) -> str:
        """The name of the check that judged it; "" if none did."""
        return self.report["name"] if self.report is not None else ""

    @property
    def by_chance(self) -> bool:
        """Whether a limit was reached: on a machine that is less busy it may not be."""
        return bool(self.limit) or (self.report is not None and self.report["by_chance"])

    @property
    def attempted(self) -> bool:
        """False for extra credit that was left alone: no page needs to mention it."""
        return not self.extra or self.report is not None


@dataclass
class Result:
    """One submission's grade.

    status, reason: see `autograder.outcome.statuses`. exercises: in the notebook's order; empty if nothing
    could be read. changes: sentences on everything that was put back into the notebook. sandbox: the layers
    that held, by name. eyes: why a person should look at it. fingerprint: of everything that the grade
    depends on, but for the exercises' own checks (see `Exercise.rests_on`). by_chance: it rests on a time
    limit, on a process that was killed, or on a failure of the grader: see `Session.grade`.
    """

    student: str
    assignment: str
    status: str
    reason: str = ""
    exercises: list[Exercise] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    eyes: list[str] = field(default_factory=list)
    sandbox: list[str] = field(default_factory=list)
    seconds: float = 0.0
    fingerprint: str = ""
    by_chance: bool = False

    @property
    def score(self) -> float:
        """The points with extra credit, so they may exceed the maximum."""
        return sum(exercise.points for exercise in self.exercises)

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Result:
        """The inverse of `to_json`. ValueError for another format, TypeError for other fields."""
        fields = dict(data)
        if fields.pop("format", None) != FORMAT:
            raise ValueError(f"a result of format {data.get('format')!r}, not {FORMAT}")
        fields["exercises"] = [Exercise(**exercise) for exercise in fields["exercises"]]
        return cls(**fields)


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it is either whole or as it was, also after a crash of the machine."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with open(new, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def write_result(result: Result, path: Path) -> None:
    write_whole(path, json.dumps(result.to_json(), indent=1, allow_nan=False))


def read_result(path: Path) -> Result | None:
    """The result at `path`; None if there is none, or none of this format."""
    try:
        return Result.from_json(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError):
        return None  # of an older version of the grader: graded again
