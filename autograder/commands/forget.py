"""`python -m autograder forget`: remove a student's grades, such as those of work that has been moved.

The student's work is never deleted. The class's folder is not touched, and the copy made by the grader is
moved to the folder `forgotten`.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from autograder.book.by_hand import typed
from autograder.book.gradebook import ClassBook
from autograder.book.leftover import in_words
from autograder.book.records import forget
from autograder.book.store import Store
from autograder.book.table import read_csv, write_csv
from autograder.commands.asking import said_no
from autograder.commands.choice import ChoiceError, add_command, chosen, listed
from autograder.commands.folder import add_out, out_of
from autograder.course.config import SOLUTIONS
from autograder.report.server import formgrader_server
from autograder.report.write import read_class, write_reports
from autograder.run.lock import BusyError, only_one

WORD = "forget"


def add_parser(commands: argparse._SubParsersAction) -> None:
    """Add the command and its options."""
    does = "remove a student's grades, after a question"
    parser = add_command(commands, "forget", does, "forget ann --assignment 02")
    parser.add_argument("student", metavar="STUDENT", help="the name of the student's folder")
    parser.add_argument(
        "--assignment", nargs="+", action="extend", default=[], metavar="NAME",
        help="such as 02 (default: all, with the student's name in the gradebook)",
    )  # fmt: skip
    add_out(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask")


def run(options: argparse.Namespace) -> int:
    """Exit code 0: forgotten; 1: the person said no; 2: it could not be asked or done."""
    out, student = out_of(options).resolve(), options.student
    graded = sorted(
        path.parent.name for path in (out / "results").glob("*/*.json") if path.stem == student
    )
    if not graded:
        there = sorted({path.stem for path in (out / "results").glob("*/*.json")})
        others = f"It has grades of {listed(there)}." if there else "It has no grades at all."
        print(f"{out} holds no grade of {student}. {others}", file=sys.stderr)
        return 2
    try:
        names = chosen(options.assignment, graded)
        entered = typed(out, names, [student], names_too=not options.assignment)
    except ChoiceError:
        print(f"{student} has grades in {listed(graded)} only.", file=sys.stderr)
        return 2
    except SQLAlchemyError as error:
        print(f"gradebook.db cannot be read ({type(error).__name__}).", file=sys.stderr)
        return 2
    print(f"{out} holds grades of {student} in {in_words(names)}.")
    if entered:
        print(f"With them go {entered}. A copy of the gradebook keeps them.")
    print(f"The work stays in your class's folder, and a copy of it in {out / 'forgotten'}.")
    if not options.yes and (code := said_no(WORD, "remove the grades", "Nothing was removed")):
        return code
    try:
        with only_one(out):
            note = _forget(out, student, names, whole=not options.assignment)
    except BusyError as error:
        print(f"Nothing was removed: {error}", file=sys.stderr)
        return 2
    except (OSError, SQLAlchemyError) as error:
        print(f"Not everything was removed: {error}", file=sys.stderr)
        return 2
    end = f"The grades of {student} in {in_words(names)} are removed."
    still = f"If the work is still in {student}'s folder, the next run grades it again."
    print("\n".join(line for line in (note, f"{end} {still}") if line))
    return 0


def _forget(out: Path, student: str, names: list[str], whole: bool) -> str:
    """Remove the grades from all files. Returns a sentence if a person's entries are in a copy."""
    note = ""
    if (out / "gradebook.db").is_file():
        book = ClassBook(out, SOLUTIONS)
        note = book.forget([student]) if whole else book.forget_work(student, names)
    aside = out / "forgotten" / f"{student}-{time.strftime('%Y%m%d-%H%M%S')}"
    for name in names:
        copy = out / "submitted" / student / name
        if copy.is_dir():
            aside.mkdir(parents=True, exist_ok=True)
            shutil.move(copy, aside / name)
        forget(out, student, name)
    table = out / "grades.csv"
    if rows := read_csv(table):
        gone = {(student, name) for name in names}
        write_csv([row for row in rows if (row.student, row.assignment) not in gone], table)
    write_reports(read_class(out, Store(out).all()), server=formgrader_server())
    return note
