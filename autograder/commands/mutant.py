"""`python -m autograder mutant`: an answer of `tests/mutants` whole, as it could stand in a notebook."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from autograder.commands.choice import ChoiceError, add_command, text_of
from autograder.sample.mutants import read_mutants


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = add_command(
        commands,
        "mutant",
        "print an answer of tests/mutants in full, because many are stored as patches",
        "mutant tests/mutants/00_first_ranks/ring_shift.py 'the last rank forgets that the ring closes'",
    )
    parser.add_argument(
        "file",
        type=Path,
        metavar="FILE",
        help="a file of answers, such as tests/mutants/08_context_parallel/zigzag.py",
    )
    parser.add_argument(
        "title",
        metavar="TITLE",
        help="the text behind `wrong:`, `right:` or `base:` there; any other text lists all titles",
    )


def run(options: argparse.Namespace) -> int:
    """Exit code 0: printed; 2: there is no such answer."""
    try:
        text_of(options.file)  # a file that cannot be read is named
        known = {mutant.title: mutant.text for mutant in read_mutants(options.file, bases=True)}
    except (ChoiceError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    if options.title not in known:
        print(f"{options.file} has no such title. There are:", *known, sep="\n  ", file=sys.stderr)
        return 2
    print(known[options.title])
    return 0
