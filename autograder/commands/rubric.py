"""`python -m autograder rubric`: a page to print that says what each exercise's points are given for."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from autograder.commands.choice import ChoiceError, chosen
from autograder.course.config import NOTEBOOKS, OUT, SOLUTIONS, assignments
from autograder.course.exercises import read_assignment
from autograder.outcome.result import write_whole
from autograder.report.rubric import rubric


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "rubric", help="a page to print that says what each exercise's points are given for"
    )
    parser.add_argument("assignment", nargs="*", help="such as 02; all when none is named")
    parser.add_argument(
        "--to", type=Path, default=OUT / "rubric.html", help="the page (%(default)s)"
    )


def run(options: argparse.Namespace) -> int:
    """Exit code 0: written; 2: there is no such assignment."""
    try:
        names = chosen(options.assignment, assignments())
    except ChoiceError as error:
        print(error, file=sys.stderr)
        return 2
    write_whole(options.to, rubric(read_assignment(name, SOLUTIONS, NOTEBOOKS) for name in names))
    print(f"{options.to} says what the points of {', '.join(names)} are given for.")
    return 0
