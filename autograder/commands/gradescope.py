"""`python -m autograder gradescope`: make the autograder's zip; inside it, grade one submission."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from autograder.commands.choice import (
    ChoiceError,
    add_command,
    add_to,
    at_least_one,
    check_writable,
    only_one,
)
from autograder.commands.grading import grading
from autograder.course.config import OUT, ROOT, assignments
from autograder.course.typed import NAME, ExistsError
from autograder.outcome import statuses
from autograder.outcome.limits import Limits
from autograder.outcome.result import Exercise, Result
from autograder.report.bundle import RESERVE, SECONDS, make_bundle
from autograder.report.bundle import run as run_bundle
from autograder.submission.intake import Submission
from autograder.submission.secret import SecretError, course_secret


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = add_command(
        commands,
        "gradescope",
        "make a Gradescope autograder for one assignment",
        "gradescope bundle 02",
    )
    steps = parser.add_subparsers(
        dest="step", required=True, metavar="STEP", help="bundle or run; each has its own --help"
    )
    make = add_command(
        steps, "bundle", "write the zip to upload", "gradescope bundle 02 --to autograder-02.zip"
    )
    make.add_argument(
        "--out",
        type=Path,
        default=OUT,
        metavar="FOLDER",
        help="the folder with the course's secret (default: autograder/out)",
    )
    add_to(make, "gradescope-ASSIGNMENT.zip in --out")
    make.add_argument("--secret", type=Path, metavar="FILE", help="a file with another secret")
    grade = add_command(steps, "run", "grade one submission, in Gradescope's container")
    grade.add_argument(
        "--root",
        type=Path,
        default=Path("/autograder"),
        metavar="FOLDER",
        help="the container's folder (default: %(default)s)",
    )
    for step in (make, grade):
        step.add_argument("assignment", metavar="ASSIGNMENT", help="one assignment, such as 02")
        step.add_argument(
            "--seconds",
            type=at_least_one,
            default=SECONDS,
            metavar="N",
            help="Gradescope's limit in seconds (default: %(default)s)",
        )


def run(options: argparse.Namespace) -> int:
    """Exit code 0: done; 1: a submission got no grade; 2: the command cannot do its work."""
    try:
        options.assignment = only_one(options.assignment, assignments())
    except ChoiceError as error:
        print(error, file=sys.stderr)
        return 2
    if options.seconds <= RESERVE:
        print(
            f"--seconds must be more than {RESERVE}, which starting and writing may take.",
            file=sys.stderr,
        )
        return 2
    return _bundle(options) if options.step == "bundle" else _grade(options)


def _bundle(options: argparse.Namespace) -> int:
    target = options.to or options.out / f"gradescope-{options.assignment}.zip"
    try:
        check_writable(target)
        secret = course_secret(options.out, options.secret)
        make_bundle(
            options.assignment, target, secret=secret, seconds=options.seconds,
            record=options.out / NAME, overwrite=options.overwrite,
        )  # fmt: skip
    except (ChoiceError, ExistsError, SecretError) as error:
        print(error, file=sys.stderr)
        return 2
    print(
        f"{target} is ready to be uploaded. It holds the solutions and the course's secret, so keep it "
        "private, and delete it where you no longer need it."
    )
    return 0


def _grade(options: argparse.Namespace) -> int:
    if not options.root.is_dir():
        print(f"{options.root} is not a folder: Gradescope's container has one.", file=sys.stderr)
        return 2
    result = run_bundle(
        options.root, options.assignment, _grader(options.assignment, options.seconds)
    )
    print(f"{result.status}: {result.score:g}")
    return 1 if result.status == statuses.UNGRADED else 0


def _grader(assignment: str, seconds: int) -> Callable[[Path, Callable[[Result], None]], Result]:
    """A function that grades a class's only submission and ends in time for its result to be written."""
    limits = Limits()
    limits = replace(limits, submission=min(limits.submission, float(seconds - RESERVE)))

    def grade(folder: Path, so_far: Callable[[Result], None]) -> Result:
        (student,) = (path.name for path in folder.iterdir())
        secret = course_secret(ROOT, ROOT / "secret")
        known = Result(student, assignment, statuses.GRADED)

        def show(exercise: Exercise) -> None:
            known.exercises.append(exercise)
            so_far(known)

        with grading(assignment, secret, limits, show=show) as mark_one:
            result, _ = mark_one(Submission(student, assignment, folder / student / assignment))
        return result

    return grade
