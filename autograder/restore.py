"""The exercises' cells of a submission, put back as they were released.

A cell is recognised by its `grade_id`, else by its id, else by its text. Its metadata are the released
ones again, and for exercises and graded cells the type too; a graded cell has its released text, a
solution cell keeps the student's; a copy loses its grading metadata; an exercise's cell that is missing
comes back where it was; cells stand in the released order. What the student added stays, behind the cell
that it followed, without tags: those mean something to grading.
"""

from __future__ import annotations

import copy
from collections import Counter

from nbformat import NotebookNode

from autograder.twin import grade_id

# What of nbgrader's metadata a submission has no business to change.
FIXED = ("grade", "locked", "points", "schema_version", "solution", "task")


def restore(submission: NotebookNode, released: NotebookNode) -> list[str]:
    """Change `submission` in place; returns what was changed, a sentence each."""
    changes = _changed_metadata(submission, released)
    found = _recognise(submission, released)
    matched = {id(cell): original for original in released.cells for cell in _of(found, original)}
    for cell in submission.cells:
        original = matched.get(id(cell))
        cell["metadata"] = copy.deepcopy(original.metadata) if original else NotebookNode()
    position = 0  # where a missing cell goes: behind the last released cell that is there
    for original in released.cells:
        cell = found.get(original["id"])
        if cell is not None:
            position = 1 + next(i for i, other in enumerate(submission.cells) if other is cell)
            changes += _reset(cell, original) if grade_id(original) else []
        elif grade_id(original):
            cell = copy.deepcopy(original)
            submission.cells.insert(position, cell)
            matched[id(cell)] = original
            position += 1
            changes.append(f"cell {grade_id(original)!r} was missing and was put back")
    return changes + _reorder(submission, released, matched)


def _of(found: dict[str, NotebookNode], original: NotebookNode) -> list[NotebookNode]:
    cell = found.get(original["id"])
    return [] if cell is None else [cell]


def _changed_metadata(submission: NotebookNode, released: NotebookNode) -> list[str]:
    """What the submission did to nbgrader's metadata, a sentence for each cell."""
    originals = {name: cell for cell in released.cells if (name := grade_id(cell))}
    own = [_own(cell) for cell in submission.cells]
    seen = Counter(one["grade_id"] for one in own if one["grade_id"] in originals)
    changes = [f"cell {name!r} was there {n} times" for name, n in seen.items() if n > 1]
    for one in own:
        name = one["grade_id"]
        if name in originals and seen[name] == 1:
            wanted = originals[name].metadata["nbgrader"]
            other = [key for key in FIXED if key in wanted and one.get(key) != wanted[key]]
            if other:
                changes.append(f"cell {name!r}: its {', '.join(other)} had been changed")
    ids = {cell.get("id") for cell in submission.cells}
    changes += [
        f"cell {name!r} had lost its grading metadata"
        for name, cell in originals.items()
        if name not in seen and cell["id"] in ids
    ]
    return changes


def _own(cell: NotebookNode) -> dict:
    """A submission's grading metadata for a cell, whatever it is; `grade_id` is a text."""
    own = cell.metadata.get("nbgrader")
    own = own if isinstance(own, dict) else {}
    name = own.get("grade_id")
    return {**own, "grade_id": name if isinstance(name, str) else ""}


def _recognise(submission: NotebookNode, released: NotebookNode) -> dict[str, NotebookNode]:
    """The submission's cell for each released cell, by the released cell's id."""
    ids = {cell["id"]: cell["id"] for cell in released.cells}
    ids_by_grade_id = {name: cell["id"] for cell in released.cells if (name := grade_id(cell))}
    ids_by_text = {(cell.cell_type, cell.source): cell["id"] for cell in released.cells}
    found: dict[int, dict[str, NotebookNode]] = {0: {}, 1: {}, 2: {}}
    for cell in submission.cells:
        keys = (
            ids_by_grade_id.get(_own(cell)["grade_id"]),
            ids.get(cell.get("id")),
            ids_by_text.get((cell.cell_type, cell.source)),
        )
        best = next(((rank, key) for rank, key in enumerate(keys) if key is not None), None)
        if best is not None:
            rank, key = best
            found[rank].setdefault(key, cell)
    return found[2] | found[1] | found[0]


def _reset(cell: NotebookNode, original: NotebookNode) -> list[str]:
    """Give `cell` the type of `original`, and its text where that is locked."""
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
    return changes


def _reorder(
    submission: NotebookNode, released: NotebookNode, matched: dict[int, NotebookNode]
) -> list[str]:
    """Put the released cells into their order; what the student added follows the cell before it.

    Only when code was moved: prose may stand anywhere.
    """
    places = {cell["id"]: index for index, cell in enumerate(released.cells)}
    code = [
        places[matched[id(cell)]["id"]]
        for cell in submission.cells
        if id(cell) in matched and cell.cell_type == "code"
    ]
    if code == sorted(code):
        return []
    groups: list[tuple[int, list[NotebookNode]]] = [(-1, [])]
    for cell in submission.cells:
        if id(cell) in matched:
            groups.append((places[matched[id(cell)]["id"]], []))
        groups[-1][1].append(cell)
    groups.sort(key=lambda group: group[0])
    submission.cells = [cell for _, cells in groups for cell in cells]
    return ["cells had been put into another order"]
