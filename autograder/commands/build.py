"""`python -m autograder build`: notebooks from their text twins, student versions from the notebooks."""

from __future__ import annotations

import argparse
import sys

from autograder.commands.choice import ChoiceError, add_assignments, add_command, named
from autograder.course.build import build, follow
from autograder.course.config import OUT, SOLUTIONS, assignments, log_to_file
from autograder.course.drift import differences
from autograder.course.exercises import (
    compare_names,
    compare_objects,
    compare_points,
    read_graded,
    require_python,
)
from autograder.course.kernels import prefer_this_environment
from autograder.course.twin import BuildError, read_twin


def add_parser(commands: argparse._SubParsersAction) -> None:
    parser = add_command(
        commands, "build", "make notebooks from their twins, and student versions", "build 02"
    )
    add_assignments(parser)
    only = parser.add_mutually_exclusive_group()
    only.add_argument(
        "--check", action="store_true", help="compare the files without running anything"
    )
    only.add_argument(
        "--text",
        action="store_true",
        help="take over changed texts and keep outputs, without running anything",
    )


def run(options: argparse.Namespace) -> int:
    """Exit code 0: the three forms agree, or were written; 1: they differ, or a notebook could not be made;
    2: an assignment that is named has no twin.
    """
    try:
        names = named(options, assignments())
    except ChoiceError as error:
        print(error, file=sys.stderr)
        return 2
    prefer_this_environment()
    log_to_file(OUT / "build.log")
    if options.text:
        return _follow(names)
    return _check(names) if options.check else _build(names)


def _check(names: list[str]) -> int:
    try:
        lines = [line for assignment in names for line in differences(assignment)]
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(lines) or f"{', '.join(names)}: twin, notebook and student version agree.")
    return 1 if lines else 0


def _follow(names: list[str]) -> int:
    for assignment in names:
        try:
            _require_gradable(assignment)
            changed = follow(assignment)
        except BuildError as error:
            print(f"{assignment}: nothing was written: {error}", file=sys.stderr)
            return 1
        cells = f"{len(changed)} cell{'s' * (len(changed) != 1)}"
        print(f"{assignment}: {cells} changed; nothing was executed.")
    return 0


def _build(names: list[str]) -> int:
    for assignment in names:
        print(f"{assignment}: executing ...", flush=True)
        try:
            _require_gradable(assignment)  # first of all, since a notebook runs for minutes
            seconds = build(assignment)
        except BuildError as error:
            print(f"{assignment}: nothing was written: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print(f"\n{assignment}: stopped by Ctrl-C, and not built.", file=sys.stderr)
            return 130
        slowest = ", ".join(f"{name} {took:.1f} s" for took, name in sorted(seconds)[:-6:-1])
        print(f"{assignment}: built in {sum(took for took, _ in seconds):.0f} s ({slowest})")
    return 0


def _require_gradable(assignment: str) -> None:
    """BuildError if Python cannot read a cell of the twin, or if a check of it could not be graded."""
    source = read_twin(SOLUTIONS / assignment / f"{assignment}.py")
    require_python(assignment, source)
    graded = read_graded(assignment, source)
    compare_points(assignment, graded)
    compare_objects(assignment, graded)
    compare_names(assignment, source, graded)
