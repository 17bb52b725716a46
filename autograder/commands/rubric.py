"""`python -m autograder rubric`: a page to print that says what each exercise's points are given for."""

from __future__ import annotations

import argparse
import sys

from autograder.commands.choice import (
    ChoiceError,
    add_assignments,
    add_command,
    add_to,
    check_writable,
    named,
    named_after,
)
from autograder.course.config import NOTEBOOKS, OUT, SOLUTIONS, assignments
from autograder.course.exercises import read_assignment
from autograder.course.typed import NAME, ExistsError, write_generated
from autograder.report.rubric import rubric


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = add_command(
        commands,
        "rubric",
        "write a page to print, which says what each exercise's points are given for",
        "rubric 02 --to rubric-02.html",
    )
    add_assignments(parser)
    add_to(parser, "autograder/out/rubric.html, or rubric-ASSIGNMENT.html")


def run(options: argparse.Namespace) -> int:
    """Exit code 0: written; 2: there is no such assignment, or another file has the page's name."""
    try:
        known = assignments()
        names = named(options, known)
        ending = "" if names == known else f"-{named_after(names)}"
        target = options.to or OUT / f"rubric{ending}.html"
        check_writable(target)
        text = rubric(read_assignment(name, SOLUTIONS, NOTEBOOKS) for name in names)
        write_generated(target, text, OUT / NAME, overwrite=options.overwrite)
    except (ChoiceError, ExistsError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{target} says what the points of {', '.join(names)} are given for.")
    return 0
