"""`python -m autograder export`: scores for Canvas and Moodle, in a file that the site handed out."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from autograder.book.store import Store
from autograder.course.config import OUT
from autograder.outcome.result import write_whole
from autograder.report.exports import (
    GRADE,
    MAXIMUM,
    MAY_CHANGE,
    Columns,
    ExportError,
    canvas,
    moodle,
)
from autograder.report.write import Class, read_class


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser("export", help="scores as a CSV for Canvas or Moodle")
    parser.add_argument("--out", type=Path, default=OUT, help="where results are (%(default)s)")
    sites = parser.add_subparsers(dest="site", required=True)
    one = sites.add_parser("canvas", help="needs an export of Canvas' gradebook")
    one.add_argument("roster", type=Path, help="the export")
    one.add_argument(
        "--assignment", action="append", help="may be given several times; default all"
    )
    one.add_argument(
        "--id",
        action="append",
        default=[],
        metavar="ASSIGNMENT=ID",
        help="an assignment's id in Canvas",
    )
    two = sites.add_parser("moodle", help="needs the assignment's grading worksheet")
    two.add_argument("worksheet", type=Path)
    two.add_argument("--assignment", required=True)
    two.add_argument(
        "--student",
        default="",
        metavar="COLUMN",
        help="the column that the folders are named after",
    )
    two.add_argument(
        "--grade", default=GRADE, metavar="COLUMN", help="the column of the grades (%(default)s)"
    )
    two.add_argument(
        "--maximum",
        default=MAXIMUM,
        metavar="COLUMN",
        help="the column of their maximum (%(default)s)",
    )
    two.add_argument(
        "--may-change",
        default=MAY_CHANGE,
        metavar="COLUMN",
        help="the column that says whether a row may change (%(default)s)",
    )
    two.add_argument(
        "--no", default="No", metavar="WORD", help="its word for a row that may not (%(default)s)"
    )
    for site in (one, two):
        site.add_argument("--to", type=Path, help="the file to write (default: in --out)")


def run(options: argparse.Namespace) -> int:
    """Exit code 0: written; 2: not written, and stderr says why."""
    found = read_class(options.out, Store(options.out).all())
    try:
        text, notes = (
            _canvas(found, options) if options.site == "canvas" else _moodle(found, options)
        )
    except (ExportError, OSError, UnicodeDecodeError) as error:
        print(error, file=sys.stderr)
        return 2
    target = options.to or options.out / f"{options.site}.csv"
    write_whole(target, text)
    print("\n".join([*notes, f"{target} is ready to be imported."]))
    return 0


def _known(found: Class, names: list[str]) -> list[str]:
    if unknown := sorted(set(names) - set(found.assignments)):
        there = ", ".join(found.assignments) or "none"
        raise ExportError(
            f"nothing of {', '.join(unknown)} has been graded; there are grades for {there}."
        )
    return names


def _canvas(found: Class, options: argparse.Namespace) -> tuple[str, list[str]]:
    names = _known(found, options.assignment or found.assignments)
    ids = {}
    for given in options.id:
        name, _, number = given.rpartition("=")
        if name not in names or not number.isdecimal():
            raise ExportError(f"--id takes ASSIGNMENT=ID with the id's digits, not {given!r}.")
        ids[name] = int(number)
    scores = {name: found.scores(name) for name in names}
    maxima = {name: found.maximum(name) for name in names}
    return canvas(scores, maxima, _read(options.roster), ids)


def _moodle(found: Class, options: argparse.Namespace) -> tuple[str, list[str]]:
    (name,) = _known(found, [options.assignment])
    columns = Columns(
        options.student, options.grade, options.maximum, options.may_change, options.no
    )
    return moodle(found.scores(name), found.maximum(name), _read(options.worksheet), columns)


def _read(path: Path) -> str:
    with open(path, encoding="utf-8", newline="") as file:
        return file.read()
