"""The grader is killed at random moments, again and again: no grade is lost or wrong, no process is left.

COURSE_ALL_TESTS=1 (`make test-all`) kills it 50 times and lets nothing out; else a few times.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

from autograder.book.gradebook import ClassBook
from autograder.course.kernels import prefer_this_environment
from autograder.course.twin import read_twin
from tests.conftest import alive, wait_until_gone

WHOLE = bool(os.environ.get("COURSE_ALL_TESTS"))
KILLS = 50 if WHOLE else 3
STUDENTS = 16 if WHOLE else 8
TOY = Path(__file__).resolve().parents[1] / "toy/solutions/00_toy/00_toy.py"
OLD, NEW = 0.25, 0.75  # shares of the points before and after all students handed in again
PATIENCE = 240  # seconds after which a run hangs

prefer_this_environment()
pytestmark = pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning")


class Killed:
    """A class whose grader is killed, and the results known between two kills."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.out, self.log = folder, folder / "out", folder / "graded.log"
        self.names = [f"student-{number:02d}" for number in range(STUDENTS)]
        self.mark = f"{os.getpid()}-{time.time_ns()}"
        tests = Path(__file__).resolve().parent
        self.server = subprocess.Popen(
            [
                sys.executable,
                str(tests / "interrupted_grader.py"),
                folder,
                "whole" if WHOLE else "",
            ],
            env=os.environ | {"PYTHONPATH": str(tests.parents[1]), "COURSE_INTERRUPTED": self.mark},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, text: str = "") -> int:
        """The number with which the server of graders answers `text`."""
        assert self.server.stdin is not None and self.server.stdout is not None
        self.server.stdin.write(text)
        self.server.stdin.flush()
        return int(self.server.stdout.readline())

    def hand_in(self, share: float) -> None:
        notebook = nbformat.read(self.folder / "solutions/00_toy/00_toy.ipynb", as_version=4)
        for cell in notebook.cells:
            if cell["id"] == "one":
                cell.source = f"# share: {share}\n# sleep: 0.05\n# log: {self.log}"
            elif cell["id"] == "two":
                cell.source = f"# share: {share}"
        for name in self.names:
            path = self.folder / "class" / name / "00_toy" / "00_toy.ipynb"
            path.parent.mkdir(parents=True, exist_ok=True)
            nbformat.write(notebook, path)

    def start(self) -> int:
        """A new grader's process id."""
        return self.ask("grade\n")

    def finish(self) -> None:
        self.start()
        assert self.ask() == 0

    def finished(self) -> dict[str, float]:
        """The results so far, by student. Each of them is complete."""
        found = {}
        for path in (self.out / "results/00_toy").glob("*.json"):
            try:
                text = path.read_text()
            except FileNotFoundError:  # it was set aside meanwhile
                continue
            found[path.stem] = sum(one["points"] for one in json.loads(text)["exercises"])
        return found

    def table(self) -> dict[str, str]:
        with open(self.out / "grades.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        assert [row["student"] for row in rows] == self.names
        return {row["student"]: row["score"] for row in rows}

    def book(self) -> dict[str, tuple[float | None, ...]]:
        """The scores in the gradebook, read as any program would."""
        with sqlite3.connect(self.out / "gradebook.db") as book:
            assert book.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            rows = book.execute(
                "SELECT student_id, auto_score FROM grade"
                " JOIN submitted_notebook ON grade.notebook_id = submitted_notebook.id"
                " JOIN submitted_assignment"
                " ON submitted_assignment.id = submitted_notebook.assignment_id"
                " JOIN base_cell ON base_cell.id = grade.cell_id ORDER BY base_cell.name"
            ).fetchall()
        found: dict[str, list[float | None]] = {}
        for student, score in rows:
            found.setdefault(student, []).append(score)
        return {student: tuple(scores) for student, scores in found.items()}

    def gradings(self) -> Counter[str]:
        return Counter(self.log.read_text().split()) if self.log.exists() else Counter()

    def processes(self) -> list[int]:
        """All processes that the graders started, wherever they are in the process tree."""
        mark = f"COURSE_INTERRUPTED={self.mark}".encode()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                pid = int(folder.name)
                if pid != self.server.pid and mark in _environment(folder):
                    found.append(pid)
            except OSError:  # it ended meanwhile, or belongs to another user
                continue
        return found


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[Killed]:
    source = tmp_path / "solutions/00_toy"
    source.mkdir(parents=True)
    shutil.copy(TOY, source)
    nbformat.write(read_twin(TOY), source / "00_toy.ipynb")
    ClassBook(tmp_path / "out", tmp_path / "solutions").register(["00_toy"])
    made = Killed(tmp_path)
    yield made
    made.server.kill()
    made.server.communicate()


def _environment(process: Path) -> list[bytes]:
    return (process / "environ").read_bytes().split(b"\0")


def wait_for(grader: int, killed: Killed, points: float, wanted: int) -> None:
    """Until so many have their grade, or the grader has come to its end."""
    deadline = time.monotonic() + PATIENCE
    while alive(grader) and list(killed.finished().values()).count(points) < wanted:
        assert time.monotonic() < deadline, "the grader hangs"
        time.sleep(0.005)


def shares(points: float) -> tuple[float, float]:
    """The points of the two exercises, as the gradebook has them."""
    return points * 0.4, points * 0.6


def test_nothing_is_lost_wrong_twice_or_left_running(killed: Killed, seed: int) -> None:
    draw = random.Random(seed)
    killed.hand_in(OLD)
    killed.finish()
    assert set(killed.table().values()) == {"2.5"}
    share, points, old = OLD, 2.5, 2.5
    for _ in range(KILLS):
        if killed.finished() == dict.fromkeys(killed.names, points):
            # all are graded: every student hands in again, which makes all results old
            share = NEW if share == OLD else OLD
            old, points = points, 10 * share
            killed.hand_in(share)
            killed.log.unlink(missing_ok=True)
        before = {name: found for name, found in killed.finished().items() if found == points}
        graded = killed.gradings()
        grader = killed.start()
        wait_for(grader, killed, points, draw.randint(0, STUDENTS))
        time.sleep(draw.random() * 0.1)
        with contextlib.suppress(ProcessLookupError):  # it has come to its end
            os.kill(grader, signal.SIGKILL)
        assert killed.ask() in (0, -signal.SIGKILL)
        assert wait_until_gone(killed.processes(), 10) == []
        now = killed.finished()
        assert before.items() <= now.items(), "a finished grade was lost"
        again = killed.gradings() - graded
        assert not set(before) & set(again), "a finished grade was graded again"
        begun = set(again) | set(before)
        # An old grade may be seen only where the run did not come as far as its plan.
        seen = set(killed.table().values())
        assert seen <= {"", f"{points:g}"} or (not begun and seen <= {"", f"{old:g}"})
        entered = set(killed.book().values())
        right = {shares(points), (None, None)}
        assert entered <= right or (not begun and entered <= right | {shares(old)})
    killed.finish()
    assert killed.finished() == dict.fromkeys(killed.names, points)
    assert killed.table() == dict.fromkeys(killed.names, f"{points:g}")
    assert killed.book() == dict.fromkeys(killed.names, shares(points))
    assert wait_until_gone(killed.processes(), 10) == []
