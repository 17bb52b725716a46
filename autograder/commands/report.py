"""`python -m autograder report`: the class page and the files for Gradescope, from what was graded."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from autograder.book.store import Store
from autograder.course.config import OUT, SERVER
from autograder.report.write import read_class, write_reports


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "report", help="write class.html again, and feedback where points were given by hand"
    )
    parser.add_argument("--out", type=Path, default=OUT, help="where results are (%(default)s)")
    parser.add_argument(
        "--formgrader", metavar="URL", default=SERVER,
        help="the Jupyter server whose formgrader the class page links to (%(default)s)",
    )  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Exit code 0: written; 2: there is nothing to report."""
    results = list(Store(options.out).all())
    if not results:
        print(f"{options.out} holds no results: run `make grade` first.", file=sys.stderr)
        return 2
    pages = write_reports(read_class(options.out, results), server=options.formgrader)
    print(
        f"{options.out / 'class.html'} shows {len(results)} submissions; {pages} feedback pages are new."
    )
    return 0
