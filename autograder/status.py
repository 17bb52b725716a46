"""What became of a submission: its status and the first reason why points are missing."""

from __future__ import annotations

from nbformat import NotebookNode
from nbgrader.utils import compute_checksum

from autograder.scores import DIED, TIME_LIMIT, own_error, score_cell

GRADED = "graded"  # every cell ran to its end; the score may be anything
BLANK = "blank"  # every exercise is as it was handed out
TIMED_OUT = "timed out"  # a cell or the submission reached its limit; what ran keeps its points
KERNEL_DIED = "kernel died"  # what ran before keeps its points
UNREADABLE = "unreadable"  # what was handed in is no notebook: 0 points
MISSING = "missing"  # the assignment's folder holds no notebook of its name: 0 points
UNGRADED = "ungraded"  # the grading itself failed: no score


def of_notebook(notebook: NotebookNode) -> tuple[str, str]:
    """(status, reason) of an executed submission; reason is "" when all points are there."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    exercises = [cell for cell in cells if cell.metadata.get("nbgrader", {}).get("solution")]
    if exercises and all(_untouched(cell) for cell in exercises):
        return BLANK, "nothing was written into any exercise"
    for status, kind in ((KERNEL_DIED, DIED), (TIMED_OUT, TIME_LIMIT)):
        for cell in cells:
            if sentence := own_error(cell, (kind,)):
                named = "" if status == KERNEL_DIED else _named(cell)
                return status, f"{named}{sentence}"
    return GRADED, _first_loss(cells)


def _untouched(cell: NotebookNode) -> bool:
    return cell.metadata["nbgrader"].get("checksum") == compute_checksum(cell)


def _named(cell: NotebookNode) -> str:
    name = cell.metadata.get("nbgrader", {}).get("grade_id", "")
    return f"{name.removesuffix('_check')}: " if name else ""


def _first_loss(cells: list[NotebookNode]) -> str:
    for cell in cells:
        if cell.metadata.get("nbgrader", {}).get("grade"):
            score = score_cell(cell)
            if score.points < score.maximum:
                return f"{_named(cell)}{score.reason}"
    return ""
