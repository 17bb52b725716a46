"""`python -m autograder report`: the class page and the files for Gradescope, from what was graded."""

from __future__ import annotations

import argparse
import sys

from autograder.book.store import Store
from autograder.commands.folder import add_out, out_of
from autograder.course.config import SERVER
from autograder.report.write import read_class, write_reports


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "report", help="write class.html again, and feedback where points were given by hand"
    )
    add_out(parser)
    parser.add_argument(
        "--formgrader", metavar="URL", default=SERVER,
        help="the Jupyter server whose formgrader the class page links to (%(default)s)",
    )  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Exit code 0: written; 2: there is nothing to report."""
    out = out_of(options)
    results = list(Store(out).all())
    if not results:
        print(f"{out} holds no results: run `make grade` first.", file=sys.stderr)
        return 2
    pages = write_reports(read_class(out, results), server=options.formgrader)
    print(f"{out / 'class.html'} shows {len(results)} submissions; {pages} feedback pages are new.")
    return 0
