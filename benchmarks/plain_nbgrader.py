"""The fault matrix under plain nbgrader: which rows get the right score there?

    python -m benchmarks.plain_nbgrader [--write] [--rest | row ...]

A temporary course in nbgrader's own layout and with its own configuration: the notebook with its hidden
tests, `nbgrader generate_assignment`, then `nbgrader autograde` of each row's submission by itself. Nothing
else is set. nbgrader knows no statuses, so a row is right if its score is (no score is as good as 0) and,
if all exercises are done, no attack of it got through. Honest rows are graded first, and once more after all
the others; at the end come the rows that would change the points of all that follow.

Rows that would harm the machine are not run. The others run in a process namespace of their own, under
limits of memory and file size and with a temporary home: that protects this machine, not the scores.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

from nbgrader.api import Gradebook, MissingEntry

from autograder.course.kernels import prefer_this_environment
from autograder.faults import ROWS
from autograder.faults.desk import ASSIGNMENT, Course, desks
from autograder.faults.plain import NOT_RUN, RIGHT, STORED, WRONG, Plain, stored
from autograder.faults.row import FULL, HONEST, Row
from autograder.faults.witnesses import Listener, signs_of_success
from autograder.outcome.result import Result, write_whole

CONFIG = """
c = get_config()
c.CourseDirectory.course_id = "plain"
c.ExecutePreprocessor.timeout = 30
"""
SECONDS = 75.0  # for one submission; then its processes are ended
LARGEST_FILE, ADDRESS_SPACE = 256 << 20, 8 << 30
# Runs the command as the second process of a namespace; then the first counts the processes left in there.
COUNTING = '"$@"; code=$?; sleep 0.5; set -- /proc/[0-9]*; echo $# > processes; exit $code'
LASTING = ("triggers-in-the-gradebook",)  # changes the points of all rows graded after it
PACKAGES = ("nbgrader", "nbconvert", "nbclient", "ipykernel", "torch")


def contained(command: Sequence[str]) -> list[str]:
    """`command` under limits, in such a way that all processes that it started end with it."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return [
        "unshare", *user, "--pid", "--fork", "--mount-proc", "--kill-child",
        "sh", "-c", COUNTING, "sh",
        "prlimit", f"--as={ADDRESS_SPACE}", f"--fsize={LARGEST_FILE}", "--nofile=1024", "--core=0",
        *command,
    ]  # fmt: skip


class PlainCourse:
    """A course as plain nbgrader has it, in `course.out`, with the instructor's notebook released."""

    def __init__(self, course: Course):
        self.course, self.root = course, course.out
        (self.root / "nbgrader_config.py").write_text(CONFIG)
        source = self.root / "source" / ASSIGNMENT
        source.mkdir(parents=True)
        shutil.copy(course.solutions / ASSIGNMENT / f"{ASSIGNMENT}.ipynb", source)
        self.run("generate_assignment", ASSIGNMENT, check=True)

    def run(self, *arguments: str, check: bool = False) -> None:
        """`nbgrader` with these arguments. CalledProcessError if `check` and it failed."""
        home = self.course.folder / "home"
        home.mkdir(exist_ok=True)
        command = contained([sys.executable, "-m", "nbgrader", *arguments])
        environment = {**os.environ, "HOME": str(home)}
        with open(self.root / "nbgrader.log", "ab") as log:
            process = subprocess.Popen(
                command, cwd=self.root, env=environment, stdout=log, stderr=log,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
            try:
                code = process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()  # with it goes the namespace, and all processes in there
                code = process.wait()
        if check and code:
            raise subprocess.CalledProcessError(code, command)

    def left_running(self) -> list[str]:
        """The processes that were still running when nbgrader had finished."""
        count = self.root / "processes"
        more = int(count.read_text()) - 1 if count.exists() else 0
        count.unlink(missing_ok=True)
        return [f"{more} processes were left running"] if more else []

    def grade(self, student: str) -> float | None:
        """The automatic score of a submission that is graded now; None if nbgrader gave none."""
        self.run("autograde", ASSIGNMENT, "--student", student, "--force")
        with Gradebook(f"sqlite:///{self.root / 'gradebook.db'}") as book:
            try:
                submission = book.find_submission(ASSIGNMENT, student)
            except MissingEntry:
                return None
            grades = [grade for notebook in submission.notebooks for grade in notebook.grades]
            scores = [grade.auto_score for grade in grades if grade.auto_score is not None]
            return float(sum(scores)) if scores else None


def measure(rows: Sequence[Row]) -> Iterator[tuple[str, dict]]:
    """(row, {"outcome": ..., "score": ...}) of each row, in the order in which they are graded."""
    prefer_this_environment()
    honest = [row for row in rows if row.group == HONEST]
    others = [row for row in rows if row.group != HONEST and row.name not in LASTING]
    lasting = [row for row in rows if row.name in LASTING]
    with tempfile.TemporaryDirectory() as scratch, Listener().listening() as listener:
        course = Course(Path(scratch) / "course", port=listener.port)
        course.make()
        for row, desk in zip(rows, desks(course, [row.name for row in rows]), strict=True):
            if not row.unsafe:
                row.make(desk)
        plain = PlainCourse(course)
        # the submissions lie where nbgrader looks for them
        shutil.move(course.submissions, plain.root / "submitted")
        for row in (*honest, *others, *honest, *lasting):
            if row.unsafe:
                yield row.name, {"outcome": NOT_RUN}
            else:
                heard = len(listener.callers)
                score = plain.grade(row.name)
                signs = [f"{caller}: a connection was made" for caller in listener.callers[heard:]]
                signs += plain.left_running()
                signs += signs_of_success(course, row.name, Result(row.name, ASSIGNMENT, ""))
                yield row.name, outcome_of(row, score, signs)


def outcome_of(row: Row, score: float | None, signs: list[str]) -> dict:
    """Right or wrong, with the reasons: the score, and signs that an attack of the row got through."""
    expected = row.points if row.unlimited is None else row.unlimited
    right = expected is None or abs((score or 0.0) - expected) < 1e-9
    if row.points == FULL and signs:
        right = False
    return {"outcome": RIGHT if right else WRONG, "score": score, "got": signs}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plain_nbgrader")
    parser.add_argument("row", nargs="*", help="rows to measure; all when none is named")
    parser.add_argument("--write", action="store_true", help=f"keep the outcome in {STORED.name}")
    parser.add_argument("--rest", action="store_true", help="rows of which no outcome is kept")
    options = parser.parse_args()
    known = {row.name: row for row in ROWS}
    if unknown := sorted(set(options.row) - set(known)):
        parser.error(f"there is no row {', '.join(unknown)}")
    # earlier results: a hundred submissions take long, and may be measured in pieces
    outcomes = {name: row for name, row in stored().rows.items() if name in known}
    chosen = [known[name] for name in options.row] or ROWS
    if options.rest:  # and the honest ones, whose points the rows measured now may have changed
        chosen = [row for row in ROWS if row.name not in outcomes or row.group == HONEST]
    began = time.monotonic()
    for name, outcome in measure(chosen):
        outcomes[name] = outcome
        print(f"{time.monotonic() - began:7.1f} s  {name}: {outcome}", flush=True)
        plain = Plain(versions(), dict(sorted(outcomes.items())))
        if options.write:
            write_whole(STORED, json.dumps(dataclasses.asdict(plain), indent=1) + "\n")
    print(plain.said(plain.rows))
    return 0


def versions() -> dict[str, str]:
    return {**{name: version(name) for name in PACKAGES}, "python": sys.version.split()[0]}


if __name__ == "__main__":
    sys.exit(main())
