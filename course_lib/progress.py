"""Your points so far, for one notebook in its last cell, and for all notebooks in a terminal.

    python -m course_lib.progress                  all notebooks of this folder
    python -m course_lib.progress work/05_fsdp     one of them

The command reads the tables printed by the checks into the saved notebooks, and runs nothing. In a
notebook, `progress.show("05_fsdp")` lists the checks its kernel has run.

The points count only the visible cases. A grader runs every check once more with hidden cases.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from course_lib import checks
from course_lib.checks.colour import coloured
from course_lib.checks.judge.find import of_assignment
from course_lib.checks.words import number
from course_lib.program import run_program
from course_lib.saved import (
    DONE,
    UNCHECKED,
    Exercise,
    Notebook,
    UnreadableNotebook,
    begun_of_each,
    default_folder,
    read_all,
)

WIDTH = 62  # column in which the points stand, as in the table of a check
WIDEST = 100  # columns of a row, also where the terminal is wider
HIDDEN = """
These are the points of the visible cases. The grader runs every check again with hidden cases:
inputs of the same kind that you cannot see beforehand. Your grade may be lower."""


def show(assignment: str) -> None:
    """Print the points of the exercises of `assignment`, such as "05_fsdp", that this kernel has checked.

    UnknownExercise names the assignments that there are.
    """
    known_here, prefix = of_assignment(assignment), f"{assignment}/"
    exercises = []
    for name, known in known_here.items():
        report = checks.latest.get(prefix + name)
        points = None if report is None else report.points(known.points)
        state = UNCHECKED if report is None else DONE
        exercises.append(Exercise(name, "", state, known.points, known.extra, points))
    for exercise in exercises:
        print(
            _row(f"{exercise.name}{' (extra credit)' * exercise.extra}", [exercise], exercise.state)
        )
    print(coloured(_row("in all", exercises), "bold"))
    print(HIDDEN)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m course_lib.progress",
        description="Add up the points that the checks printed into saved notebooks. Nothing is run.",
    )
    add_places(parser)
    options = parser.parse_args(arguments)
    try:
        notebooks, left_out = read_all(options.places or [default_folder()])
    except UnreadableNotebook as error:
        print(error, file=sys.stderr)
        return 2
    terminal = shutil.get_terminal_size((WIDEST, 24)).columns
    print("\n".join(table(begun_of_each(notebooks), min(WIDEST, terminal))))
    for error in left_out:
        print(f"Not counted: {error}")
    return 0


def add_places(parser: argparse.ArgumentParser) -> None:
    """Let the command take notebooks, and folders of them."""
    parser.add_argument(
        "places", nargs="*", type=Path, metavar="NOTEBOOK_OR_FOLDER",
        help="notebooks, their numbers, or folders of them (default: work/ if it is here, else this folder)",
    )  # fmt: skip


def table(notebooks: Iterable[Notebook], widest: int = WIDEST) -> Iterator[str]:
    """A row for each notebook and each of its sections, then the sum. Of two files, the newer one counts.

    widest: columns of the longest row. A remark that would make a row longer is wrapped below it.
    """
    counted: list[Notebook] = []
    for _, files in groupby(
        sorted(notebooks, key=_by_assignment), key=lambda notebook: notebook.assignment
    ):
        *others, newest = sorted(files, key=lambda notebook: notebook.path.stat().st_mtime)
        counted.append(newest)
        yield from _of_notebook(newest, widest)
        for other in others:
            yield f"  {other.path} holds the same notebook, was saved earlier, and is not counted."
    if len(counted) > 1:
        exercises = [exercise for notebook in counted for exercise in notebook.exercises]
        yield coloured(_row(f"in all, {len(counted)} notebooks", exercises), "bold")
    yield HIDDEN


def _by_assignment(notebook: Notebook) -> tuple[str, str]:
    return notebook.assignment, str(notebook.path)


def _of_notebook(notebook: Notebook, widest: int) -> Iterator[str]:
    if all(exercise.points is None for exercise in notebook.exercises):
        yield _row(notebook.title, notebook.exercises, "no check has run yet", widest)
        return
    yield coloured(_row(notebook.title, notebook.exercises), "bold")
    for section, inside in groupby(notebook.exercises, key=lambda exercise: exercise.section):
        exercises = list(inside)
        open_ones = [
            exercise
            for exercise in exercises
            if exercise.points != exercise.possible or exercise.state != DONE
        ]
        yield _row(
            f"  {section.replace('*', '')}", exercises, "; ".join(map(_said, open_ones)), widest
        )


def _said(exercise: Exercise) -> str:
    """An exercise that has not all of its points, and what it waits for."""
    if exercise.points is None:
        return f"{exercise.name} {exercise.words}"
    remark = f", {exercise.words}" if exercise.state != DONE else ""
    return f"{exercise.name} {exercise.points:.1f} of {number(exercise.possible)}{remark}"


def _row(title: str, exercises: Sequence[Exercise], remark: str = "", widest: int = WIDEST) -> str:
    """Title, "points of possible", and extra credit apart from both."""
    due = [exercise for exercise in exercises if not exercise.extra]
    more = [exercise for exercise in exercises if exercise.extra]
    parts = [f"{earned(due):.1f} of {number(sum(e.possible for e in due))}"] if due else []
    parts += (
        [f"+ {earned(more):.1f} of {number(sum(e.possible for e in more))} extra"] if more else []
    )
    row = f"{title:<{WIDTH}}{' '.join(parts)}"
    if remark in ("", DONE):
        return row
    if len(row) + 3 + len(remark) <= widest:
        return f"{row}   {remark}"
    below = textwrap.wrap(
        remark, max(widest - 6, 20), break_long_words=False, break_on_hyphens=False
    )
    return "\n      ".join([row, *below])


def earned(exercises: Iterable[Exercise]) -> float:
    return sum(exercise.points or 0.0 for exercise in exercises)


if __name__ == "__main__":
    run_program(main)
