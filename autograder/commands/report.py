"""`python -m autograder report`: the class page and the files for Gradescope, from what was graded."""

from __future__ import annotations

import argparse
import sys

from autograder.book.leftover import CURE, of_earlier_runs, said
from autograder.book.store import Store
from autograder.commands.choice import add_command, server_address
from autograder.commands.folder import add_out, out_of
from autograder.commands.penalties import settle_penalties
from autograder.report.server import formgrader_server
from autograder.report.write import read_class, renew_table, write_reports

STAYS = f"The pages show it, and grades.csv, which holds the last run, does not. {CURE}"


def add_parser(commands: argparse._SubParsersAction) -> None:
    does = "write class.html and grades.csv again, and feedback where points were given by hand"
    parser = add_command(commands, "report", does, "report --formgrader http://localhost:8890")
    add_out(parser)
    parser.add_argument(
        "--formgrader", type=server_address, metavar="URL",
        help="the Jupyter server whose formgrader the class page links to (default: the one that runs now in "
        "this folder, or http://localhost:8888)",
    )  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Exit code 0: written; 2: there is nothing to report."""
    out = out_of(options)
    results = list(Store(out).all())
    if not results:
        print(f"{out} holds no results: run `make grade` first.", file=sys.stderr)
        return 2
    for note in settle_penalties(out, {result.assignment for result in results}):
        print(note)
    graded = read_class(out, results)
    renew_table(graded)
    pages = write_reports(graded, server=options.formgrader or formgrader_server())
    new = f"{pages} feedback page{'s are' if pages != 1 else ' is'} new"
    for note in said(of_earlier_runs(results, out / "grades.csv"), f"from an earlier run. {STAYS}"):
        print(note)
    print(f"{out / 'class.html'} shows {len(results)} submissions; {new}.")
    return 0
