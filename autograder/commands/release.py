"""`python -m autograder release`: all that a student needs, in a folder and a zip."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from autograder.commands.choice import (
    ChoiceError,
    add_assignments,
    add_command,
    check_writable,
    named,
    page_address,
)
from autograder.course.config import NOTEBOOKS, OUT, SOLUTIONS, assignments
from autograder.course.drift import differences
from autograder.course.package import PackageError, build_wheel
from autograder.course.place import Place, ReleaseError
from autograder.course.release import write_release
from course_lib.checks.words import counted


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = add_command(
        commands,
        "release",
        "write a folder and a zip to hand out, with notebooks, the package and a page for students",
        "release 00 02 --repository someone/course",
    )
    add_assignments(parser)
    parser.add_argument(
        *("--into", "--to"),
        type=Path,
        default=OUT / "handout",
        metavar="FOLDER",
        help="the folder to write (default: autograder/out/handout)",
    )
    parser.add_argument(
        "--repository",
        default="",
        metavar="OWNER/NAME",
        help="a repository on GitHub, from which each notebook opens in Colab and Kaggle and gets the course",
    )
    parser.add_argument(
        "--branch", default="main", help="the repository's branch (default: %(default)s)"
    )
    parser.add_argument(
        "--folder",
        default="notebooks",
        help="the repository's folder in which you publish what is handed out (default: %(default)s)",
    )
    parser.add_argument(
        "--questions",
        type=page_address,
        metavar="URL",
        help="where students ask, such as a forum or mailto:you@example.org (default: their instructor)",
    )
    parser.add_argument(
        "--self-study",
        action="store_true",
        help="put its solution, folded, below each check, for people who learn without a class",
    )


def run(options: argparse.Namespace) -> int:
    """Exit code 0: written; 2: not written, and stderr says why."""
    on_github = (options.repository, options.branch, options.folder)
    try:
        names = named(options, assignments())
        place = Place(*on_github) if on_github[0] else None
        _check_apart(options.into)
    except (ChoiceError, ReleaseError) as error:
        print(error, file=sys.stderr)
        return 2
    stale = [line for name in names for line in differences(name)]
    if stale:
        print("\n".join(stale), file=sys.stderr)
        return 2
    try:
        check_writable(options.into / "README.md")
        with tempfile.TemporaryDirectory(prefix="course-release-") as scratch:
            made = write_release(
                names, options.into, package=build_wheel(Path(scratch)), place=place,
                questions=options.questions or "", self_study=options.self_study,
            )  # fmt: skip
    except (ChoiceError, ReleaseError, PackageError) as error:
        print(error, file=sys.stderr)
        return 2
    notebooks = counted(len(made.notebooks), "notebook")
    print(
        f"{options.into} is ready to be handed out: {notebooks}, the package, and {made.readme.name}, a page "
        f"for students. {made.archive.name} in it contains all of them."
    )
    if place:
        print(
            f"Publish it as {place.folder}/ on the branch {place.branch} of github.com/{place.repository}, a "
            "public repository. The first cell of each notebook installs the course from that branch, which "
            "therefore also needs the course's pyproject.toml, README.md, LICENSE and course_lib/."
        )
    return 0


def _check_apart(into: Path) -> None:
    """ChoiceError for a folder of the course itself, which a release is made from."""
    where = into.resolve()
    for own in (NOTEBOOKS, SOLUTIONS):
        if own in (where, *where.parents):
            raise ChoiceError(
                f"{into} is in {own}, from which the course hands out. Name a folder outside of it."
            )
