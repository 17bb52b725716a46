"""`python -m autograder mutant`: an answer of `tests/mutants` whole, as it could stand in a notebook."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from autograder.sample.mutants import read_mutants


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser("mutant", help="print an answer of tests/mutants whole")
    parser.add_argument(
        "file", type=Path, help="such as tests/mutants/08_context_parallel/zigzag.py"
    )
    parser.add_argument("title", help="the text behind `wrong:`, `right:` or `base:`")


def run(options: argparse.Namespace) -> int:
    """Exit code 0: printed; 2: there is no such answer."""
    try:
        known = {mutant.title: mutant.text for mutant in read_mutants(options.file, bases=True)}
    except OSError as error:
        print(f"{options.file} cannot be read: {error.strerror}.", file=sys.stderr)
        return 2
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if options.title not in known:
        print(f"{options.file} has no such title. There are:", *known, sep="\n  ", file=sys.stderr)
        return 2
    print(known[options.title])
    return 0
