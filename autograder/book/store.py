"""The results of a class on disk: `results/<assignment>/<student>.json`, one finished grade each.

These files are the truth: the gradebook, the tables and the pages are made from them. A result that
no longer holds is set aside and not deleted, so that the changes since the last complete run can be
listed, also if the run that replaces it is interrupted and continued.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from autograder.outcome.result import Result, read_result, write_result, write_whole

LAST = ".last"
LAST_SCORES = "last-scores"


class Store:
    """The results under one output folder."""

    def __init__(self, out: Path) -> None:
        self.folder = out / "results"

    def path(self, assignment: str, student: str) -> Path:
        return self.folder / assignment / f"{student}.json"

    def _before(self, assignment: str, student: str) -> Path:
        return self.folder / LAST / assignment / f"{student}.json"

    def find(self, assignment: str, student: str) -> Result | None:
        """The submission's result; None if there is none of the present format."""
        return read_result(self.path(assignment, student))

    def all(self) -> Iterator[Result]:
        """Every result there is, ordered by assignment and student."""
        for path in sorted(self.folder.glob("*/*.json")):
            if (result := read_result(path)) is not None:
                yield result

    def seconds(self) -> dict[str, list[float]]:
        """How long the gradings took, by assignment, also of results that were set aside."""
        seconds: dict[str, list[float]] = {}
        for path in sorted([*self.folder.glob("*/*.json"), *self.folder.glob(f"{LAST}/*/*.json")]):
            if (result := read_result(path)) is not None and result.seconds:
                seconds.setdefault(result.assignment, []).append(result.seconds)
        return seconds

    def write(self, result: Result) -> None:
        """Write a finished result: whole, or not at all."""
        write_result(result, self.path(result.assignment, result.student))

    def set_aside(self, assignment: str, student: str) -> None:
        """Set aside a result that no longer holds.

        The result that is kept for comparison is that of the last complete run, however often the
        runs since then were interrupted.
        """
        now, before = self.path(assignment, student), self._before(assignment, student)
        if before.exists():
            now.unlink(missing_ok=True)
        elif now.exists():
            before.parent.mkdir(parents=True, exist_ok=True)
            os.replace(now, before)

    def before(self, assignment: str, student: str) -> Result | None:
        """The result of the last complete run, if it has been set aside since."""
        return read_result(self._before(assignment, student))

    def keep_scores(self, scores: Mapping[tuple[str, str], float | None]) -> None:
        """Keep the table's scores of a complete run, by (student, assignment), for the next one."""
        rows = [[*key, score] for key, score in scores.items()]
        write_whole(self.folder / LAST_SCORES, json.dumps(rows))

    def last_scores(self) -> dict[tuple[str, str], float | None]:
        """The scores that `keep_scores` kept last, if there was a complete run."""
        path = self.folder / LAST_SCORES
        rows = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
        return {(student, assignment): score for student, assignment, score in rows}

    def settle(self) -> None:
        """End a complete run: the results that were set aside are not needed any more."""
        if (self.folder / LAST).exists():
            shutil.rmtree(self.folder / LAST)

    def forget(self, student: str, assignment: str = "*") -> None:
        """Remove a student's results, by default all, and an assignment's folder that is empty then."""
        for path in (*self.folder.glob(assignment), *(self.folder / LAST).glob(assignment)):
            if path.is_dir():  # beside the assignments' folders there are files
                (path / f"{student}.json").unlink(missing_ok=True)
                if not any(path.iterdir()):
                    path.rmdir()
        scores = self.last_scores()
        left = {
            (who, name): score
            for (who, name), score in scores.items()
            if who != student or assignment not in ("*", name)
        }
        if left != scores:
            self.keep_scores(left)
