"""`python -m autograder export`: scores for Canvas and Moodle, and code for programs that look for copies."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from autograder.book.leftover import CURE, of_earlier_runs, said, same_notebooks
from autograder.book.store import Store
from autograder.commands.choice import (
    ChoiceError,
    add_command,
    add_to,
    check_empty,
    check_writable,
    chosen,
    listed,
    named_after,
    only_one,
    text_of,
)
from autograder.commands.folder import add_out, out_of
from autograder.commands.penalties import settle_penalties
from autograder.course.typed import NAME, ExistsError, write_generated
from autograder.report.code import write_code
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
from course_lib.checks.words import counted

FROM_EARLIER = f"from an earlier run, which is not in grades.csv but is exported. {CURE}"


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = add_command(
        commands,
        "export",
        "write scores into a file from Canvas or Moodle, or code into a folder",
        "export canvas gradebook.csv --assignment 02",
    )
    add_out(parser)
    sites = parser.add_subparsers(
        dest="site",
        required=True,
        metavar="WHERE",
        help="canvas, moodle or code; each has its own --help",
    )
    canvas = add_command(
        sites,
        "canvas",
        "fill in an export of Canvas' gradebook",
        "export canvas gradebook.csv --assignment 02 --id 02_collectives=4711",
    )
    canvas.add_argument(
        "table",
        type=Path,
        metavar="ROSTER",
        help="the CSV that Canvas exported; it stays as it is",
    )
    canvas.add_argument(
        "--assignment", nargs="+", action="extend", metavar="NAME", help="such as 02 (default: all)"
    )
    canvas.add_argument(
        "--id",
        action="append",
        default=[],
        metavar="ASSIGNMENT=ID",
        help="an assignment's id in Canvas, if the file has no column `02_collectives (4711)`",
    )
    two = add_command(
        sites,
        "moodle",
        "fill in an assignment's grading worksheet from Moodle",
        "export moodle worksheet.csv --assignment 02",
    )
    two.add_argument(
        "table",
        type=Path,
        metavar="WORKSHEET",
        help="the CSV that Moodle handed out; it stays as it is",
    )
    two.add_argument("--assignment", required=True, metavar="NAME", help="such as 02")
    two.add_argument(
        "--student",
        default="",
        metavar="COLUMN",
        help="the column after which students' folders are named (default: the one that fits most)",
    )
    two.add_argument(
        "--grade",
        default=GRADE,
        metavar="COLUMN",
        help="the column of the grades (default: %(default)s)",
    )
    two.add_argument(
        "--maximum",
        default=MAXIMUM,
        metavar="COLUMN",
        help="the column of their maximum (default: %(default)s)",
    )
    two.add_argument(
        "--may-change",
        default=MAY_CHANGE,
        metavar="COLUMN",
        help="the column that says whether a row may change (default: %(default)s)",
    )
    two.add_argument(
        "--no",
        default="No",
        metavar="WORD",
        help="the word there for a row that may not change (default: %(default)s)",
    )
    code = add_command(
        sites,
        "code",
        "write each student's answers as files, for JPlag or copydetect",
        "export code similar --assignment 02",
    )
    code.add_argument(
        "folder", type=Path, metavar="FOLDER", help="a new or empty folder, for all that is written"
    )
    code.add_argument(
        "--assignment", nargs="+", action="extend", metavar="NAME", help="such as 02 (default: all)"
    )
    for site in (canvas, two, code):
        add_out(site, default=argparse.SUPPRESS)  # --out may come before or after the site
    for site, name in ((canvas, "canvas"), (two, "moodle")):
        add_to(site, f"{name}-ASSIGNMENT.csv in --out")


def run(options: argparse.Namespace) -> int:
    """Exit code 0: written; 2: not written, and stderr says why."""
    out = out_of(options)
    results = list(Store(out).all())
    if not results:
        print(f"{out} holds no results: run `make grade` first.", file=sys.stderr)
        return 2
    if options.site == "code":
        return _code(read_class(out, results), options)
    late = settle_penalties(out, {result.assignment for result in results})
    graded = read_class(out, results)
    try:
        wanted = _known(
            graded, [options.assignment] if options.site == "moodle" else options.assignment or []
        )
        target = options.to or out / f"{options.site}-{named_after(wanted)}.csv"
        check_writable(target)
        text, notes = (
            _canvas(graded, options) if options.site == "canvas" else _moodle(graded, options)
        )
        write_generated(target, text, out / NAME, overwrite=options.overwrite)
    except (ChoiceError, ExistsError) as error:
        print(error, file=sys.stderr)
        return 2
    except ExportError as error:
        print(f"{options.table}: {error}", file=sys.stderr)
        return 2
    print(
        "\n".join([*late, *notes, *doubtful(graded, wanted), f"{target} is ready to be imported."])
    )
    return 0


def doubtful(graded: Class, names: list[str]) -> list[str]:
    """Sentences on grades of these assignments that may be left over from work that has been moved."""
    results = [result for name in names for result in graded.of(name)]
    earlier = said(of_earlier_runs(results, graded.out / "grades.csv"), FROM_EARLIER)
    return [*earlier, *same_notebooks(graded.out, results)]


def _code(graded: Class, options: argparse.Namespace) -> int:
    try:
        names = _known(graded, options.assignment or [])
        check_empty(options.folder)
        count, notes = write_code(graded, names, options.folder)
    except ChoiceError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(f"{options.folder} could not be written whole: {error.strerror}.", file=sys.stderr)
        return 2
    end = f"{options.folder} holds {counted(count, 'file')} of students' code, and solutions."
    print("\n".join([*notes, end]))
    return 0


def _known(graded: Class, words: list[str]) -> list[str]:
    try:
        return chosen(words, graded.assignments)
    except ChoiceError:
        there = listed(graded.assignments)
        raise ChoiceError(
            f"Nothing of {listed(words)} has been graded; there are grades for {there}."
        ) from None


def _canvas(graded: Class, options: argparse.Namespace) -> tuple[str, list[str]]:
    names = _known(graded, options.assignment or [])
    ids = {}
    for text in options.id:
        name, _, number = text.rpartition("=")
        if not name or not number.isdecimal():
            raise ChoiceError(f"--id takes ASSIGNMENT=ID with the id's digits, not {text!r}.")
        try:
            ids[only_one(name, names)] = int(number)
        except ChoiceError as error:
            raise ChoiceError(f"--id {text}: {error}") from None
    scores = {name: graded.scores(name) for name in names}
    maxima = {name: graded.maximum(name) for name in names}
    return canvas(scores, maxima, text_of(options.table), ids)


def _moodle(graded: Class, options: argparse.Namespace) -> tuple[str, list[str]]:
    name, *others = _known(graded, [options.assignment])
    if others:
        raise ChoiceError(f"{options.assignment} begins several assignments: name one.")
    columns = Columns(
        options.student, options.grade, options.maximum, options.may_change, options.no
    )
    return moodle(graded.scores(name), graded.maximum(name), text_of(options.table), columns)
