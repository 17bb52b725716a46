"""The option --out of the commands that read what `grade` wrote."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_out(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """Add --out, whose default is chosen by `out_of` when the command runs."""
    parser.add_argument(
        "--out",
        type=Path,
        default=default,
        metavar="FOLDER",
        help="the folder that `grade` wrote (default: autograder/out; before a class of yours was graded, "
        "that of the sample class, autograder/out-sample)",
    )


def out_of(options: argparse.Namespace) -> Path:
    """The folder that --out names, or the default; a line says so if that is the sample class's."""
    from autograder.course.config import SAMPLE_OUT
    from autograder.sample.apart import graded_folder  # it takes a moment: not for --help

    if options.out is not None:
        return options.out
    out = graded_folder()
    if out == SAMPLE_OUT:
        print(f"No class of yours has been graded so far: this is the sample class, in {out}.")
    return out
