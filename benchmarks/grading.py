"""Grading a class, against plain nbgrader on the same notebooks.

Plain nbgrader is `nbgrader autograde` with its own configuration, but for time limits, in a course of its
own layout. In its kernels the ranks of `check` are started by `torch.multiprocessing.spawn`.
"""

from __future__ import annotations

import io
import os
import resource
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbgrader.api import Gradebook

from autograder.course.config import ROOT, SOLUTIONS, course_config
from autograder.course.kernels import prefer_this_environment
from autograder.course.twin import grade_id
from autograder.run import grading
from autograder.run.jobs import LocalWorkers
from autograder.run.session import Course, grade_class
from autograder.sample.sample_class import make_sample_class, without_markers
from autograder.sandbox.capacity import default_jobs
from autograder.submission.intake import find_submissions
from benchmarks.table import Row

ASSIGNMENT = "02_collectives"
HONEST = 20
FEW, MANY = 2, 12  # submissions between which the cost of one more is measured
SHORT, LONG = 50, 500
CONFIG = """
c = get_config()
c.CourseDirectory.course_id = "plain"
c.ExecutePreprocessor.timeout = 3600
c.ExecutePreprocessor.iopub_timeout = 600
"""
STARTUP = "from benchmarks.spawned import install\ninstall()\n"
TINY, TINY_FROM, TINY_EXERCISE = "00_tiny", "00_first_ranks", "questions"


# ---- plain nbgrader


def plain(source: Path, name: str, students: int, submission: Path, full: float) -> float:
    """Seconds that plain nbgrader takes to grade `submission` of so many students, in one batch."""
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        (root / "nbgrader_config.py").write_text(CONFIG)
        startup = root / "ipython" / "profile_default" / "startup"
        startup.mkdir(parents=True)
        (startup / "00-spawn.py").write_text(STARTUP)
        (root / "source" / name).mkdir(parents=True)
        shutil.copy(source, root / "source" / name / f"{name}.ipynb")
        for number in range(students):
            folder = root / "submitted" / f"student{number}" / name
            folder.mkdir(parents=True)
            shutil.copy(submission, folder / f"{name}.ipynb")
        environment = {
            **os.environ, "IPYTHONDIR": str(root / "ipython"), "PYTHONPATH": str(ROOT),
            "COURSE_ROLE": "spawned",
        }  # fmt: skip

        def nbgrader(*arguments: str) -> None:
            command = [sys.executable, "-m", "nbgrader", *arguments]
            done = subprocess.run(
                command, cwd=root, env=environment, capture_output=True, text=True
            )
            if done.returncode:
                raise RuntimeError(f"nbgrader {arguments[0]} failed:\n{done.stderr[-4000:]}")

        nbgrader("generate_assignment", name)
        began = time.perf_counter()
        nbgrader("autograde", name)
        took = time.perf_counter() - began
        with Gradebook(f"sqlite:///{root / 'gradebook.db'}") as book:
            for number in range(students):
                score = book.find_submission(name, f"student{number}").score
                if score != full:
                    raise RuntimeError(f"plain nbgrader gave {score} of {full}: it means nothing")
        return took


# ---- ours


def ours(solutions: Path, name: str, students: int, submission: Path, jobs: int | None) -> float:
    """Seconds for a class of so many students, from the first file that is read to the last grade."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, out = Path(scratch) / "class", Path(scratch) / "out"
        for number in range(students):
            own = folder / f"student{number}" / name
            own.mkdir(parents=True)
            shutil.copy(submission, own / f"{name}.ipynb")
        submissions, _ = find_submissions(folder, [name])
        course = Course(
            solutions, out, secrets.token_bytes(32), grading.grade, ready=grading.layers,
            config=course_config(solutions, out),
        )  # fmt: skip
        began = time.perf_counter()
        summary = grade_class(
            submissions, course, lambda: LocalWorkers(jobs or default_jobs()), stream=io.StringIO()
        )
        took = time.perf_counter() - began
        for row in summary.rows:
            if row.score != row.max_score:
                raise RuntimeError(f"an honest submission got {row.score}: {row.reason}")
        return took


# ---- the submissions


def honest(folder: Path) -> Path:
    """The submission of a student who solved all exercises."""
    make_sample_class(folder, [ASSIGNMENT])
    return folder / "sample-perfect" / ASSIGNMENT / f"{ASSIGNMENT}.ipynb"


def tiny(folder: Path) -> tuple[Path, Path]:
    """(solutions, submission) of an assignment with one check, of answers that need no ranks."""
    notebook_of_solutions = nbformat.read(
        SOLUTIONS / TINY_FROM / f"{TINY_FROM}.ipynb", as_version=4
    )
    wanted = {TINY_EXERCISE, f"{TINY_EXERCISE}_check"}
    notebook_of_solutions.cells = [
        nbformat.v4.new_code_cell("from course_lib import check"),
        *(cell for cell in notebook_of_solutions.cells if grade_id(cell) in wanted),
    ]
    return written(notebook_of_solutions, folder, lambda text: text)


def tiny_for_plain(folder: Path) -> tuple[Path, Path]:
    """The same notebook, its check as plain nbgrader has them: an assertion in the notebook itself."""
    solutions, _ = tiny(folder)
    notebook_of_solutions = nbformat.read(solutions / TINY / f"{TINY}.ipynb", as_version=4)
    answers = {}
    exec(notebook_of_solutions.cells[1].source, answers)
    named = {name: value for name, value in answers.items() if name.startswith("answer_")}
    asserted = "\n".join(f"assert {name} == {value!r}" for name, value in named.items())
    return written(
        notebook_of_solutions, folder, lambda text: asserted if "check(" in text else text
    )


def written(
    notebook: NotebookNode, folder: Path, change: Callable[[str], str]
) -> tuple[Path, Path]:
    """Write the source, and a submission that answers everything; `change` is made in both."""
    for cell in notebook.cells:
        cell.source = change(cell.source)
    source = folder / "solutions" / TINY / f"{TINY}.ipynb"
    source.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, source)
    for cell in notebook.cells:
        cell.source = without_markers(cell.source)
    submission = folder / f"{TINY}.ipynb"
    nbformat.write(notebook, submission)
    return folder / "solutions", submission


def full_score(source: Path) -> float:
    cells = nbformat.read(source, as_version=4).cells
    return sum(cell.metadata.get("nbgrader", {}).get("points", 0) for cell in cells)


# ---- the figures


def throughput() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as scratch:
        submission = honest(Path(scratch) / "sample")
        source = SOLUTIONS / ASSIGNMENT / f"{ASSIGNMENT}.ipynb"
        theirs = plain(source, ASSIGNMENT, 1, submission, full_score(source))
        mine = ours(SOLUTIONS, ASSIGNMENT, HONEST, submission, None) / HONEST
    what = f"a class of {HONEST} honest submissions of notebook 02: time of one"
    detail = f"{mine:.1f} s, {theirs:.0f} s"
    against = "plain nbgrader, ranks by `torch.multiprocessing.spawn`"
    yield Row(what, against, mine / theirs, 1 / 20, detail=detail)
    yield Row("the same", "", mine, 20, "s")


def fixed_cost() -> Iterator[Row]:
    """The cost of one more submission: between a few and many, so that starting the grader is left out."""
    times: dict[tuple[str, int], float] = {}
    with tempfile.TemporaryDirectory() as scratch:
        solutions, submission = tiny(Path(scratch) / "ours")
        plain_solutions, plain_submission = tiny_for_plain(Path(scratch) / "plain")
        source = plain_solutions / TINY / f"{TINY}.ipynb"
        full = full_score(source)
        for count in (FEW, MANY):
            times["ours", count] = ours(solutions, TINY, count, submission, 1)
            times["plain", count] = plain(source, TINY, count, plain_submission, full)
    mine, theirs = (
        (times[who, MANY] - times[who, FEW]) / (MANY - FEW) for who in ("ours", "plain")
    )
    what = "one more submission of a notebook with one trivial check, one worker"
    detail = f"{mine:.2f} s, {theirs:.2f} s"
    yield Row(
        what, "plain nbgrader, an assertion as the check", mine / theirs, 1 / 5, detail=detail
    )


def scaling() -> Iterator[Row]:
    """A long class against a short one; memory is that of the largest process of the run."""
    with tempfile.TemporaryDirectory() as scratch:
        solutions, submission = tiny(Path(scratch))
        short = ours(solutions, TINY, SHORT, submission, None) / SHORT
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        long = ours(solutions, TINY, LONG, submission, None) / LONG
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    what = f"time of one of {LONG} short submissions"
    yield Row(what, f"of one of {SHORT}", long / short, 1.1, detail=f"{long:.2f} s, {short:.2f} s")
    detail = f"{grown / 1024:.0f} MB, {memory / 1024:.0f} MB"
    yield Row("the grader's own memory there", "the same", grown / memory, 1.1, detail=detail)


def rows() -> Iterator[Row]:
    prefer_this_environment()
    yield from fixed_cost()
    yield from throughput()
    yield from scaling()
