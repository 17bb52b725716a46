"""`python -m autograder rubric`: a page to print that says what each exercise's points are given for."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from autograder.commands.choice import (
    ChoiceError,
    add_assignments,
    add_command,
    check_writable,
    named,
)
from autograder.course.config import NOTEBOOKS, OUT, SOLUTIONS, assignments
from autograder.course.exercises import read_assignment
from autograder.course.typed import NAME, write_generated
from autograder.report.rubric import rubric


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = add_command(
        commands,
        "rubric",
        "print a page that says what each exercise's points are given for",
        "rubric 02 --to rubric-02.html",
    )
    add_assignments(parser)
    parser.add_argument(
        "--to", type=Path, default=OUT / "rubric.html", help="the page (%(default)s)"
    )


def run(options: argparse.Namespace) -> int:
    """Exit code 0: written; 2: there is no such assignment."""
    try:
        names = named(options, assignments())
        check_writable(options.to)
    except ChoiceError as error:
        print(error, file=sys.stderr)
        return 2
    text = rubric(read_assignment(name, SOLUTIONS, NOTEBOOKS) for name in names)
    write_generated(options.to, text, OUT / NAME)
    print(f"{options.to} says what the points of {', '.join(names)} are given for.")
    return 0
