"""Grading a class: the time of one submission, and what a long class costs beside a short one.

docs/benchmarks.md has the times of plain nbgrader on the same notebooks, which were measured once.
"""

from __future__ import annotations

import io
import resource
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import nbformat

from autograder.course.config import SOLUTIONS, course_config
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
TINY, TINY_FROM, TINY_EXERCISE = "00_tiny", "00_first_ranks", "questions"


def graded(solutions: Path, name: str, students: int, submission: Path, jobs: int | None) -> float:
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
    source = folder / "solutions" / TINY / f"{TINY}.ipynb"
    source.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook_of_solutions, source)
    for cell in notebook_of_solutions.cells:
        cell.source = without_markers(cell.source)
    submission = folder / f"{TINY}.ipynb"
    nbformat.write(notebook_of_solutions, submission)
    return folder / "solutions", submission


# ---- the figures


def throughput() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as scratch:
        submission = honest(Path(scratch) / "sample")
        seconds = graded(SOLUTIONS, ASSIGNMENT, HONEST, submission, None) / HONEST
    yield Row(
        f"a class of {HONEST} honest submissions of notebook 02: time of one", "", seconds, 20, "s"
    )


def fixed_cost() -> Iterator[Row]:
    """The cost of one more submission: between a few and many, so that starting the grader is left out."""
    with tempfile.TemporaryDirectory() as scratch:
        solutions, submission = tiny(Path(scratch))
        few, many = (graded(solutions, TINY, count, submission, 1) for count in (FEW, MANY))
    what = "one more submission of a notebook with one trivial check, one worker"
    yield Row(what, "", (many - few) / (MANY - FEW), 1, "s")


def scaling() -> Iterator[Row]:
    """A long class against a short one; memory is that of the largest process of the run."""
    with tempfile.TemporaryDirectory() as scratch:
        solutions, submission = tiny(Path(scratch))
        short = graded(solutions, TINY, SHORT, submission, None) / SHORT
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        long = graded(solutions, TINY, LONG, submission, None) / LONG
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
