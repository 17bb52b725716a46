"""`python -m autograder selftest`: grade broken and hostile notebooks on this machine, print the table."""

from __future__ import annotations

import argparse
import io
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TextIO

from autograder.book.store import Store
from autograder.commands.choice import (
    ChoiceError,
    add_command,
    at_least_one,
    check_writable,
    listed,
)
from autograder.course.config import ROOT, log_to_file
from autograder.course.kernels import prefer_this_environment
from autograder.faults import ROWS
from autograder.faults.desk import ASSIGNMENT, Course
from autograder.faults.row import APART, CALLS, FILES, GROUPS, NETWORK, PROCESSES, Row, chosen
from autograder.faults.selftest import LIMITS, Outcome, as_text, selftest
from autograder.outcome.limits import Limits
from autograder.outcome.result import Result
from autograder.run import grading, session
from autograder.run.jobs import LocalWorkers
from autograder.submission.intake import find_submissions
from autograder.submission.sandboxed import MODES
from course_lib.runtime.sandbox import spec

SECRET = b"of no class"
WATCHED = (
    "course_lib",
    "notebooks",
    "solutions",
)  # folders of the repository, besides the run's own


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Add `selftest` to the commands."""
    parser = add_command(
        subparsers,
        "selftest",
        "grade broken and hostile notebooks here, and say what is wrong",
        "selftest --quick",
    )
    parser.add_argument(
        "rows", nargs="*", metavar="ROW", help="a row or a group, such as cheating (default: all)"
    )
    parser.add_argument("--quick", action="store_true", help="grade fewer rows, in about a minute")
    parser.add_argument(
        "--jobs",
        type=at_least_one,
        default=2,
        metavar="N",
        help="submissions side by side (default: %(default)s)",
    )
    parser.add_argument(
        "--sandbox", choices=MODES, default="auto", help="as for `grade` (default: %(default)s)"
    )
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="a new folder that keeps the files of grading"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Exit code 0: every row is right; 1: some are not; 2: nothing could be graded."""
    known = {*GROUPS, *(row.name for row in ROWS)}
    if unknown := sorted(set(options.rows) - known):
        print(
            f"There is no row or group {', '.join(unknown)}. The groups are {listed(sorted(GROUPS))}.",
            file=sys.stderr,
        )
        return 2
    rows = [row for row in ROWS if wanted(row, options.rows, options.quick)]
    try:
        check_new(options.keep)
    except ChoiceError as error:
        print(f"Nothing was graded: {error}", file=sys.stderr)
        return 2
    try:
        outcome = run_rows(
            rows, jobs=options.jobs, sandbox=options.sandbox, keep=options.keep, stream=sys.stdout
        )
    except session.NotReadyError as error:
        print(f"Nothing was graded: {error}", file=sys.stderr)
        return 2
    print(f"\n{as_text(outcome)}")
    return 0 if outcome.right else 1


def check_new(keep: Path | None) -> None:
    """Raises ChoiceError if the folder of --keep is there, or cannot be made."""
    if keep is not None and keep.exists():
        raise ChoiceError(f"{keep} is there. Name a new folder with --keep.")
    if keep is not None:
        check_writable(keep)


def wanted(row: Row, names: list[str], quick: bool) -> bool:
    """Whether a row is asked for: by its name or its group, or because none is named."""
    named = not names or row.name in names or row.group in names
    return named and (row.quick or not quick)


def run_rows(
    rows: list[Row],
    *,
    jobs: int = 2,
    sandbox: str = "auto",
    keep: Path | None = None,
    limits: Limits = LIMITS,
    stream: TextIO | None = None,
) -> Outcome:
    """Grade the rows as a class, as `python -m autograder grade` does, and judge the grades.

    Rows that this machine's sandbox cannot hold back are left out. keep: a folder that must not exist,
    for the files of grading. Raises NotReadyError if a sandbox is required and cannot be made.
    """
    prefer_this_environment()
    with tempfile.TemporaryDirectory(prefix="selftest-") as scratch:
        log_to_file(Path(scratch) / "nbgrader.log")
        graded, omitted = chosen(rows, held_back(limits, sandbox))
        folder = Path(scratch) / "course"
        outcome = selftest(
            graded,
            lambda course, used: grade_class(course, used, jobs, sandbox, stream or io.StringIO()),
            folder,
            limits=limits,
            untouchable=[ROOT / name for name in WATCHED],
        )
        outcome.omitted = omitted
        if keep is not None:
            shutil.copytree(folder, keep, symlinks=True, ignore=shutil.ignore_patterns("class"))
    return outcome


def held_back(limits: Limits, sandbox: str) -> frozenset[str]:
    """Those of FILES, NETWORK, PROCESSES, CALLS, APART that the sandbox of this machine holds back.

    A worker finds them out, as in grading. Raises NotReadyError as grading does.
    """
    workers = LocalWorkers(1)
    try:
        layers = workers.submit(grading.layers, SECRET, limits, sandbox).result()
    except session.TaskError as error:
        raise session.NotReadyError(error.args[0]) from None
    finally:
        workers.shutdown()
    has = spec.Sandbox(layers=tuple(layers))
    held = {
        FILES: has.isolates_files,
        NETWORK: has.isolates_network,
        # a limit on the number does not bind root, and they can be ended all at once only in a namespace
        PROCESSES: has.has(spec.PID, spec.LIMITS),
        CALLS: has.has(spec.CALLS),
        APART: has.has(spec.APART),
    }
    return frozenset(name for name, holds in held.items() if holds)


def grade_class(
    course: Course, limits: Limits, jobs: int, sandbox: str, stream: TextIO
) -> list[Result]:
    """The results of the submissions in the course's class, graded by a session of its own."""
    submissions, notes = find_submissions(course.submissions, [ASSIGNMENT])
    for note in notes:
        print(note, file=stream)
    session.grade_class(
        submissions,
        session.Course(
            solutions=course.solutions,
            out=course.out,
            secret=SECRET,
            grade=grading.grade,
            ready=grading.layers,
            page=grading.page_without_notebook,
            limits=limits,
            sandbox=sandbox,
        ),
        lambda: LocalWorkers(jobs),
        stream=stream,
    )
    store = Store(course.out)
    results = [store.find(submission.assignment, submission.student) for submission in submissions]
    return [result for result in results if result is not None]
