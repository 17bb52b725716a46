"""`python -m autograder reliability`: does the reference solution get full points every time?"""

from __future__ import annotations

import argparse
import secrets
import sys

import nbformat
from nbformat import NotebookNode

from autograder.commands.choice import (
    ChoiceError,
    add_assignments,
    add_command,
    at_least_one,
    named,
)
from autograder.commands.grading import NOWHERE, grading
from autograder.course.config import assignments
from autograder.outcome.limits import Limits
from autograder.outcome.result import Result
from autograder.report.reliability import TIMES, Unreliable, reliability
from autograder.submission.intake import HandedIn, Submission


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = add_command(
        commands,
        "reliability",
        "grade the reference solution several times, before you hand out notebooks",
        "reliability 02 --times 3",
    )
    add_assignments(parser)
    parser.add_argument(
        "--times",
        type=at_least_one,
        default=TIMES,
        metavar="N",
        help="how many times (default: %(default)s)",
    )


def run(options: argparse.Namespace) -> int:
    """Exit code 0: full points every time; 1: a check did not give them; 2: nothing could be graded."""
    try:
        names = named(options, assignments())
    except ChoiceError as error:
        print(error, file=sys.stderr)
        return 2
    losses = [loss for name in names for loss in _try(name, options.times)]
    for loss in losses:
        print(loss)
    if not losses:
        print(f"{', '.join(names)}: full points in all of {options.times} rounds.")
    return 1 if losses else 0


def _try(assignment: str, times: int) -> list[Unreliable]:
    with grading(assignment, secrets.token_bytes(32), Limits()) as mark_one:

        def mark(student: str, notebook: NotebookNode) -> Result:
            handed_in = HandedIn(nbformat.writes(notebook).encode())
            result, _ = mark_one(Submission(student, assignment, NOWHERE), handed_in)
            print(f"{assignment} {student}: {result.score:g}, {result.seconds:.1f} s", flush=True)
            return result

        return reliability(assignment, mark, times)
