"""A worker's task: grade one submission in the sandbox, and make everything that is kept of it.

A worker keeps its preloaded process and its sandbox for as long as it lives; each submission gets fresh
processes from them. The process that gives out the work imports this module too, to name its functions:
so these functions themselves import the modules whose import takes seconds.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autograder.book.work import Done, Work
from autograder.outcome.limits import Limits
from autograder.outcome.result import Result
from autograder.submission import fingerprint
from autograder.submission.intake import HandedIn, Submission

if TYPE_CHECKING:
    from autograder.course.exercises import Assignment
    from autograder.submission.marking import Course


class OtherLibraryError(Exception):
    """The worker's machine has other versions than the one that gives out the work."""


def grade(work: Work) -> dict[str, Any]:
    """Grade a submission; returns `Done.to_json()`. Called in a worker, for one at a time.

    Raises SandboxError if a sandbox is required and cannot be made, BuildError if the
    assignment cannot be graded, OtherLibraryError.
    """
    from autograder.report.sanitise import clean_notebook
    from autograder.report.write import page_of
    from autograder.submission.marking import mark

    _same_library(work.library)
    assignment = _assignment(work.assignment, work.source, work.released)
    course = _course(work.secret, work.limits, work.sandbox)
    result, notebook = mark(
        Submission(work.student, work.assignment, Path()),
        replace(course, assignments={assignment.name: assignment}),
        work.limits,
        HandedIn(work.content, notes=list(work.notes)),
        work.known,
    )
    page = page_of(result, notebook, assignment.released)
    shown = None if notebook is None else clean_notebook(notebook, assignment.released)
    return Done.of(result, shown, page).to_json()


def layers(secret: bytes, limits: Limits, mode: str, library: str = "") -> list[str]:
    """The names of the layers of this machine's sandbox. Prepares everything for `grade`.

    Raises SandboxError if one is required and cannot be made, OtherLibraryError.
    """
    _same_library(library)
    return list(_course(secret, limits, mode).layers)


def page_without_notebook(result: Result, maximum: float) -> str:
    """The feedback page of a submission of which nothing could be read."""
    from autograder.report.feedback import feedback_page

    return feedback_page(result, None, maximum=maximum)


@functools.lru_cache(maxsize=1)
def _course(secret: bytes, limits: Limits, mode: str) -> Course:
    from autograder.submission.sandboxed import open_course

    return open_course((), secret, limits, mode)


@functools.lru_cache(maxsize=16)
def _assignment(name: str, source: str, released: str) -> Assignment:
    import nbformat

    from autograder.course.exercises import make_assignment

    return make_assignment(
        name, nbformat.reads(source, as_version=4), nbformat.reads(released, as_version=4)
    )


def _same_library(wanted: str) -> None:
    if wanted and wanted != _library():
        raise OtherLibraryError(
            "this worker's course_lib, autograder or one of PyTorch, NumPy, IPython and nbgrader is "
            "another one than the grader's: bring both to the same state of the repository"
        )


@functools.cache
def _library() -> str:
    return fingerprint.of_library()
