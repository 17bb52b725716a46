"""`python -m autograder grade`: grade the sample class, or a real one; print one table."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from autograder import status as statuses
from autograder.config import NOTEBOOKS, OUT, SOLUTIONS, Limits, assignments, log_to_file
from autograder.grade import grade_class
from autograder.intake import Submission, find_submissions
from autograder.kernels import prefer_this_environment
from autograder.sample_class import STUDENTS, make_sample_class
from autograder.table import as_text, write_csv


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0: every submission got a grade; 1: some did not; 2: nothing could be graded."""
    options = _parser().parse_args(arguments)
    prefer_this_environment()
    log_to_file(options.out / "nbgrader.log")
    known = assignments()
    if unbuilt := [name for name in known if not (NOTEBOOKS / name / f"{name}.ipynb").is_file()]:
        print(f"There is no student version of {', '.join(unbuilt)}: run `make notebooks` first.")
        return 2
    if options.submissions is None:
        print("No submissions were named: making the sample class from solutions and mutants.")
        folder = options.out / "sample"
        make_sample_class(folder, known)
    else:
        folder = options.submissions
        if not folder.is_dir():
            print(f"{folder} is not a folder. {LAYOUT}", file=sys.stderr)
            return 2
    submissions, notes = find_submissions(folder, known)
    for note in notes:
        print(note)
    if not submissions:
        print(f"{folder} holds no submissions. {LAYOUT}", file=sys.stderr)
        return 2
    return _grade(submissions, options)


LAYOUT = "A class is laid out as FOLDER/<student>/<assignment>/<assignment>.ipynb."


def _grade(submissions: list[Submission], options: argparse.Namespace) -> int:
    rows = grade_class(
        submissions,
        solutions=SOLUTIONS,
        out=options.out,
        limits=Limits(options.cell_timeout, options.submission_timeout),
        strangers=STUDENTS,
        show=lambda text: print(text, end="", flush=True),
    )
    write_csv(rows, options.out / "grades.csv")
    print(f"\n{as_text(rows)}\n")
    print(f"Feedback pages, gradebook.db and grades.csv are in {options.out}")
    ungraded = sum(row.status == statuses.UNGRADED for row in rows)
    if ungraded:
        log = options.out / "nbgrader.log"
        print(f"{ungraded} of {len(rows)} submissions got no grade; {log} says more.")
    return 1 if ungraded else 0


def _parser() -> argparse.ArgumentParser:
    limits = Limits()
    parser = argparse.ArgumentParser(prog="python -m autograder", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    grade = commands.add_parser("grade", help="grade the sample class, or --submissions FOLDER")
    grade.add_argument("--submissions", type=Path, help=LAYOUT)
    grade.add_argument("--out", type=Path, default=OUT, help="where results go (%(default)s)")
    grade.add_argument("--cell-timeout", type=int, default=limits.cell, metavar="SECONDS")
    grade.add_argument(
        "--submission-timeout", type=int, default=limits.submission, metavar="SECONDS"
    )
    return parser


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\nStopped; the submissions that were finished are in the gradebook.")
        sys.exit(130)
