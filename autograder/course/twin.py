"""From the text twin of a notebook to the notebook: cells, metadata, ids; no outputs yet.

The twin (jupytext's percent format) is the source. A cell says only what differs from the default:

    # %% nbgrader={"grade_id": "ring_shift", "solution": true}
    # %% nbgrader={"grade_id": "ring_shift_check", "points": 3}
    # %% [markdown] nbgrader={"grade_id": "why", "solution": true, "points": 2}
    # %% tags=["nbval-ignore-output", "skip-in-grading"]

The third is an answer in the student's own words that a person grades, in formgrader; a code cell can be one
as well. The check of an exercise that is extra credit has 0 points, see `autograder.course.exercises`. This
module writes out nbgrader's metadata in full. Cell ids follow from the `grade_id`s, so that a notebook that
is built twice is the same twice.
"""

from __future__ import annotations

import re
from pathlib import Path

import jupytext
from nbformat import NotebookNode

from autograder.course.config import NOTEBOOK_METADATA

# Cells with this tag are not run when a submission is graded: labs, measurements, pictures.
SKIP_TAG = "skip-in-grading"
TAGS = {"nbval-ignore-output", "raises-exception", SKIP_TAG}
NBGRADER_KEYS = {"grade_id", "solution", "points"}
SOLUTION_MARKERS = ("### BEGIN SOLUTION", "### END SOLUTION")
HIDDEN_MARKERS = ("### BEGIN HIDDEN TESTS", "### END HIDDEN TESTS")
IDENTIFIER = re.compile(r"[A-Za-z0-9_-]{1,60}")


class BuildError(Exception):
    """A notebook cannot be built, or the files on disk are not those that would be built."""


def read_twin(path: Path) -> NotebookNode:
    """The notebook that the twin at `path` describes, without outputs.

    Raises BuildError if a cell's header cannot be meant as it stands: an unknown tag, a
    solution cell without markers, a `grade_id` that is used twice.
    """
    notebook = jupytext.read(path, fmt="py:percent")
    notebook.metadata = NotebookNode(NOTEBOOK_METADATA)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for index, cell in enumerate(notebook.cells):
        _complete(cell, f"{path.name}, cell {index} ({_first_line(cell)!r})")
    _set_ids(notebook, path.name)
    return notebook


def grade_id(cell: NotebookNode) -> str | None:
    """The cell's `grade_id`, or None if the cell has none."""
    return cell.metadata.get("nbgrader", {}).get("grade_id")


def answers(notebook: NotebookNode) -> dict[str, str]:
    """The code of an assignment's exercises, by `grade_id`.

    Only for a notebook whose metadata can be trusted: ours, or one in which they were put back.
    """
    return {
        name: cell.source
        for cell in notebook.cells
        if cell.cell_type == "code"
        and cell.metadata.get("nbgrader", {}).get("solution")
        and (name := grade_id(cell))
    }


def _first_line(cell: NotebookNode) -> str:
    return cell.source.strip().partition("\n")[0][:60]


def _complete(cell: NotebookNode, where: str) -> None:
    """Check a cell's metadata and write out nbgrader's part of it in full."""
    for layout_of_the_twin in ("lines_to_next_cell", "lines_to_end_of_cell_marker", "cell_marker"):
        cell.metadata.pop(layout_of_the_twin, None)
    unknown = set(cell.metadata) - {"nbgrader", "tags"}
    if unknown:
        raise BuildError(
            f"{where}: the header holds {sorted(unknown)}; only nbgrader={{...}} and tags=[...], "
            "both valid JSON, have a meaning there."
        )
    strange = set(cell.metadata.get("tags", [])) - TAGS
    if strange:
        raise BuildError(f"{where}: unknown tags {sorted(strange)}; known are {sorted(TAGS)}.")
    short = cell.metadata.get("nbgrader")
    if short is not None:
        cell.metadata["nbgrader"] = _full_metadata(short, where)
    _check_markers(cell, where)


def _full_metadata(short: dict, where: str) -> NotebookNode:
    unknown = set(short) - NBGRADER_KEYS
    if unknown:
        raise BuildError(
            f"{where}: nbgrader={{...}} holds {sorted(unknown)}; "
            f"the build adds all but {sorted(NBGRADER_KEYS)} by itself."
        )
    name, points = short.get("grade_id", ""), short.get("points")
    if not IDENTIFIER.fullmatch(name):
        raise BuildError(f"{where}: grade_id must be 1 to 60 letters, digits, '_' or '-'.")
    solution, grade = bool(short.get("solution")), points is not None
    if not solution and not grade:
        raise BuildError(
            f"{where}: the cell must be a solution ('solution'), graded ('points'), or both, which is an "
            "answer that a person grades."
        )
    full = {
        "grade": grade,
        "grade_id": name,
        "locked": grade and not solution,
        "schema_version": 3,
        "solution": solution,
        "task": False,
    }
    if points is not None:
        full["points"] = points
    return NotebookNode(full)


def _check_markers(cell: NotebookNode, where: str) -> None:
    own = cell.metadata.get("nbgrader", {})
    has_solution = any(marker in cell.source for marker in SOLUTION_MARKERS)
    has_hidden = any(marker in cell.source for marker in HIDDEN_MARKERS)
    if own.get("solution", False) != has_solution:
        raise BuildError(f"{where}: solution cells, and only they, hold {SOLUTION_MARKERS}.")
    for begin, end in (SOLUTION_MARKERS, HIDDEN_MARKERS):
        _check_pairs(cell.source, begin, end, where)
    if has_hidden and (not own.get("grade", False) or own.get("solution", False)):
        raise BuildError(f"{where}: only cells graded by their check hold {HIDDEN_MARKERS}.")
    if cell.cell_type != "code" and own and not (own["grade"] and own["solution"]):
        raise BuildError(
            f"{where}: a text cell is an exercise only if it is an answer that a person grades."
        )


def _check_pairs(source: str, begin: str, end: str, where: str) -> None:
    """BuildError unless each region that begins is ended before the next one."""
    opened = 0
    for number, line in enumerate(source.splitlines(), 1):
        if begin in line and opened:
            raise BuildError(f"{where}: {end!r} is missing after line {opened} of the cell.")
        if end in line and not opened:
            raise BuildError(f"{where}: {begin!r} is missing before line {number} of the cell.")
        opened = number if begin in line else 0 if end in line else opened
    if opened:
        raise BuildError(f"{where}: {end!r} is missing after line {opened} of the cell.")


def _set_ids(notebook: NotebookNode, name: str) -> None:
    """A graded or solution cell is named after its grade_id, others count on from the last one.

    So a new cell changes the ids of its neighbours only.
    """
    anchor, count = "start", 0
    known: set[str] = set()
    for cell in notebook.cells:
        count += 1
        if (named := grade_id(cell)) is not None:
            anchor, count = named, 0
        cell["id"] = anchor if named else f"{anchor}-{count}"
        if cell["id"] in known:
            raise BuildError(f"{name}: two cells would get the id {cell['id']!r}.")
        known.add(cell["id"])
