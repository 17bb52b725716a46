"""The exercises' cells of a submission, put back as they were released.

A cell is recognised by its `grade_id`, else by its id. Its type and metadata are the released
ones again; a graded cell has its released text, a solution cell keeps the student's; a copy loses
its grading metadata; a cell that is missing comes back where it was. What the student added
stays.
"""

from __future__ import annotations

import copy

from nbformat import NotebookNode

from autograder.twin import grade_id


def restore(submission: NotebookNode, released: NotebookNode) -> list[str]:
    """Change `submission` in place; returns what was changed, a sentence each."""
    found = _recognise(submission, released)
    changes: list[str] = []
    position = 0  # where a missing cell goes: behind the last released cell that is there
    for original in released.cells:
        cell = found.get(original["id"])
        if cell is not None:
            position = 1 + next(i for i, other in enumerate(submission.cells) if other is cell)
            changes += _reset(cell, original) if grade_id(original) else []
        elif grade_id(original):
            submission.cells.insert(position, copy.deepcopy(original))
            position += 1
            changes.append(f"cell {grade_id(original)!r} was missing and was put back")
    return changes


def _recognise(submission: NotebookNode, released: NotebookNode) -> dict[str, NotebookNode]:
    """The submission's cell for each released cell, by the released cell's id.

    Afterwards no cell of the submission has grading metadata: `_reset` gives them back.
    """
    ids = {cell["id"]: cell["id"] for cell in released.cells}
    ids_by_grade_id = {name: cell["id"] for cell in released.cells if (name := grade_id(cell))}
    ids_by_text = {(cell.cell_type, cell.source): cell["id"] for cell in released.cells}
    found: dict[int, dict[str, NotebookNode]] = {0: {}, 1: {}, 2: {}}
    for cell in submission.cells:
        own = cell.metadata.pop("nbgrader", None)
        name = own.get("grade_id") if isinstance(own, dict) else None
        keys = (
            ids_by_grade_id.get(name) if isinstance(name, str) else None,
            ids.get(cell.get("id")),
            ids_by_text.get((cell.cell_type, cell.source)),
        )
        best = next(((rank, key) for rank, key in enumerate(keys) if key is not None), None)
        if best is not None:
            rank, key = best
            found[rank].setdefault(key, cell)
    return found[2] | found[1] | found[0]


def _reset(cell: NotebookNode, original: NotebookNode) -> list[str]:
    """Give `cell` the type and metadata of `original`, and its text where that is locked."""
    name, changes = grade_id(original), []
    if cell.cell_type != original.cell_type:
        changes.append(f"cell {name!r} had become a {cell.cell_type} cell")
        cell.pop("attachments", None)
        cell["cell_type"] = original.cell_type
        if original.cell_type == "code":
            cell["outputs"], cell["execution_count"] = [], None
    if original.metadata["nbgrader"]["locked"] and cell.source != original.source:
        changes.append(f"cell {name!r} had been changed")
        cell["source"] = original.source
    cell["metadata"] = copy.deepcopy(original.metadata)
    return changes
