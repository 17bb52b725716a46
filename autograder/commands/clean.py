"""`python -m autograder clean`: delete what grading wrote, once a person has said so.

Grades can be made again from the submissions. Scores and comments from formgrader cannot, nor can the secret
from which the hidden cases were drawn. So the command counts these and asks.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import zipfile
from pathlib import Path

from sqlalchemy.exc import DatabaseError

from autograder.book.by_hand import typed
from autograder.commands.asking import said_no
from autograder.commands.choice import add_command
from autograder.commands.folder import add_out, out_of
from autograder.course.typed import NAME, Written
from autograder.run.lock import BusyError, only_one

# The names of all that grading writes. A folder may hold other files, such as a handout: they stay.
WRITTEN = (
    "results", "grades.csv", "exercises.csv", "class.html", "feedback", "gradebook.db", "autograded",
    "submitted", "unzipped", "gradescope", "release", "sample", "secret", "nbgrader.log", "workers.log",
    "forgotten", NAME, ".lock",
)  # fmt: skip
MARKS = ("gradebook.db", "nbgrader.log")  # one of them is in every folder that grading wrote
WORD = "delete"


def add_parser(commands: argparse._SubParsersAction) -> None:
    """Add the command and its options."""
    does = "delete grades, gradebook, pages, exports and secret, after a question"
    parser = add_command(commands, "clean", does, "clean --out autograder/out-sample")
    add_out(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask")


def run(options: argparse.Namespace) -> int:
    """Exit code 0: deleted, or nothing to delete; 1: the person said no; 2: it could not be asked or done."""
    out = out_of(options).resolve()
    made = made_by_commands(out)
    written = [*(out / name for name in WRITTEN if (out / name).exists()), *made]
    if not any((out / name).is_file() for name in MARKS):  # a folder `results` may be anybody's
        print(f"{out} is not a folder that grading wrote: it has neither {' nor '.join(MARKS)}.")
        return 0
    print(f"{out} holds {contents(out)}")
    if made:
        print(f"Files of other commands go with it: {', '.join(path.name for path in made)}.")
    for line in irreplaceable(out):
        print(f"  {line}")
    for path in copies_of_secret(out):
        if path not in made:
            print(f"  {path} stays, and holds the secret.")
    if not options.yes and (code := said_no(WORD, "delete all of it", "Nothing was deleted")):
        return code
    try:
        with only_one(out):
            for path in written:
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    except (BusyError, OSError) as error:
        print(f"Not everything was deleted: {error}", file=sys.stderr)
        return 2
    (out / ".lock").unlink(missing_ok=True)
    left = sorted(path.name for path in out.iterdir())
    if left:
        print(f"Deleted. Left alone, as grading did not write it: {', '.join(left)}.")
    else:
        out.rmdir()
        print("Deleted.")
    return 0


def made_by_commands(out: Path) -> list[Path]:
    """Tables for Canvas and Moodle, rubrics and zips for Gradescope, if they are as a command wrote them.

    They hold grades or the secret. Those that somebody changed stay.
    """
    record = Written(out / NAME)
    return [
        path
        for path in record.paths()
        if path.parent == out and path.name not in WRITTEN and record.owns(path)
    ]


def copies_of_secret(out: Path) -> list[Path]:
    """The zips for Gradescope that `gradescope bundle` wrote with this folder's secret, wherever they are."""
    places = {*Written(out / NAME).paths(), *out.glob("*.zip")}
    return sorted(path for path in places if path.suffix == ".zip" and _holds_secret(path))


def _holds_secret(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as bundle:
            return "secret" in bundle.namelist()
    except (OSError, zipfile.BadZipFile):
        return False


def contents(out: Path) -> str:
    """Words for what can be made again from the submissions."""
    graded = len(list((out / "results").glob("*/*.json")))
    return f"the results of {graded} submission{'s' * (graded != 1)}, which can be graded again."


def irreplaceable(out: Path) -> list[str]:
    """Sentences on what cannot be had again."""
    lines = []
    assignments = sorted(path.name for path in (out / "results").glob("*") if path.is_dir())
    try:
        entered = typed(out, assignments)
    except DatabaseError as error:
        lines.append(
            f"gradebook.db cannot be read ({error.__class__.__name__}): grades by hand would be lost."
        )
    else:
        if entered:
            lines.append(f"Lost for good: {entered}.")
    tables = [out / name for name in ("grades.csv", "exercises.csv")]
    lines += [
        f"Lost for good: changes that somebody made in {table.name}."
        for table in tables
        if table.is_file() and not Written(out / NAME).owns(table)
    ]
    if forgotten := sorted(path.name for path in (out / "forgotten").glob("*")):
        lines.append(
            f"Lost for good, if the class's folder no longer has it: the work in forgotten/ "
            f"({', '.join(forgotten)})."
        )
    if (out / "secret").exists():
        lines.append("Lost for good: the secret. With another one the hidden cases are others.")
    return lines
