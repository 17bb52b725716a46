"""`python -m autograder release`: student versions in a folder and a zip, badges for Colab and Kaggle."""

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
from autograder.course.config import OUT, assignments
from autograder.course.drift import differences
from autograder.course.release import Place, ReleaseError, release


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = add_command(
        commands,
        "release",
        "hand out student versions: a folder and a zip",
        "release 00 02 --repository someone/course",
    )
    add_assignments(parser)
    parser.add_argument(
        "--into", "--to", type=Path, default=OUT / "handout", help="folder (%(default)s)"
    )
    parser.add_argument(
        "--repository",
        default="",
        metavar="OWNER/NAME",
        help="on GitHub: each notebook then opens in Colab and Kaggle, and gets the course there",
    )
    parser.add_argument("--branch", default="main", help="of the repository (%(default)s)")
    parser.add_argument(
        "--folder",
        default="notebooks",
        help="of the repository, in which you publish what is handed out (%(default)s)",
    )


def run(options: argparse.Namespace) -> int:
    """Exit code 0: written; 2: not written, and stderr says why."""
    try:
        names = named(options, assignments())
        check_writable(options.into / "README.md")
    except ChoiceError as error:
        print(error, file=sys.stderr)
        return 2
    stale = [line for name in names for line in differences(name)]
    if stale:
        print("\n".join(stale), file=sys.stderr)
        return 2
    try:
        on_github = (options.repository, options.branch, options.folder)
        made = release(names, options.into, place=Place(*on_github) if on_github[0] else None)
    except ReleaseError as error:
        print(error, file=sys.stderr)
        return 2
    print(made.readme.read_text(encoding="utf-8"))
    print(f"{len(made.notebooks)} notebooks are in {options.into}, all of them in {made.archive}.")
    return 0
