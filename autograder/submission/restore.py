"""The exercises' cells of a submission, put back as they were released.

Cells are recognised as `autograder.submission.recognise` says. Their metadata are the released ones again,
and for exercises and graded cells the type too; a graded cell has its released text, a solution cell keeps
the student's; a copy loses its grading metadata; an exercise's cell that is missing comes back where it was,
without its stub if another cell defines its names; cells stand in the released order. The student's own cells
stay behind the cells that they followed, without tags, since tags mean something to grading.
"""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass, field

from nbformat import NotebookNode

from autograder.course.twin import grade_id
from autograder.submission.recognise import defined_names, own_metadata, plain, recognise

# Keys of nbgrader's metadata that a submission must not change.
FIXED = ("grade", "locked", "points", "schema_version", "solution", "task")
STRIPPED = (
    "the notebook was saved without grading metadata; its cells were recognised by their ids, by their texts "
    "and by what they define"
)


@dataclass
class Restored:
    """Sentences on everything that was put back.

    changes: the student's changes, which a person should look at; notes: changes that editors and hosts
    make by themselves when they save a notebook, or when a cell is copied in them.
    """

    changes: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def restore(submission: NotebookNode, released: NotebookNode) -> Restored:
    """Change `submission` in place; returns sentences on the changes."""
    known = recognise(submission, released)
    restored = Restored(
        _changed_metadata(submission, released), _notes(submission, released, known)
    )
    matched = {
        id(known[original["id"]]): original
        for original in released.cells
        if original["id"] in known
    }
    for cell in submission.cells:
        original = matched.get(id(cell))
        cell["metadata"] = copy.deepcopy(original.metadata) if original else NotebookNode()
        if original and plain(cell.source) == plain(original.source):
            cell["source"] = original.source
    moved = _moved(
        [matched[id(cell)] for cell in submission.cells if id(cell) in matched], released
    )
    position = 0  # where a missing cell goes: behind the last released cell that is there
    for original in released.cells:
        cell = known.get(original["id"])
        if cell is not None:
            position = 1 + next(i for i, other in enumerate(submission.cells) if other is cell)
            restored.changes += _reset(cell, original) if grade_id(original) else []
        elif grade_id(original):
            cell = copy.deepcopy(original)
            if names := _defined_elsewhere(cell, submission):
                cell["source"] = f"# {', '.join(names)}: see another cell of this notebook"
            submission.cells.insert(position, cell)
            matched[id(cell)] = original
            position += 1
            restored.changes.append(f"cell {grade_id(original)!r} was missing and was put back")
    _reorder(submission, released, matched)
    restored.changes += ["cells had been put into another order"] if moved else []
    return restored


def _defined_elsewhere(cell: NotebookNode, submission: NotebookNode) -> list[str]:
    """The names of an exercise that other cells define: its stub would take their place."""
    if cell.cell_type != "code" or cell.metadata["nbgrader"]["locked"]:
        return []
    codes = (other.source for other in submission.cells if other.cell_type == "code")
    return sorted(defined_names(cell.source) & frozenset().union(*map(defined_names, codes)))


def _changed_metadata(submission: NotebookNode, released: NotebookNode) -> list[str]:
    """Sentences on changes of nbgrader's metadata, for each cell that is there once."""
    originals = {name: cell for cell in released.cells if (name := grade_id(cell))}
    own = [own_metadata(cell) for cell in submission.cells]
    count = Counter(metadata["grade_id"] for metadata in own)
    changes = []
    for metadata in own:
        name = metadata["grade_id"]
        if name in originals and count[name] == 1:
            wanted = originals[name].metadata["nbgrader"]
            other = [key for key in FIXED if key in wanted and metadata.get(key) != wanted[key]]
            if other:
                changes.append(f"cell {name!r}: its {', '.join(other)} had been changed")
    return changes


def _notes(
    submission: NotebookNode, released: NotebookNode, known: dict[str, NotebookNode]
) -> list[str]:
    """Sentences about copies and about lost metadata."""
    names = {str(name): cell["id"] for cell in released.cells if (name := grade_id(cell))}
    count = Counter(own_metadata(cell)["grade_id"] for cell in submission.cells)
    notes = [
        f"cell {name!r} was there {n} times" for name, n in count.items() if name in names and n > 1
    ]
    lost = [name for name, own in names.items() if own in known and not count[name]]
    if lost and not count.keys() & names.keys():
        return [STRIPPED]
    return notes + [f"cell {name!r} had lost its grading metadata" for name in lost]


def _reset(cell: NotebookNode, original: NotebookNode) -> list[str]:
    """Give `cell` the type of `original`, and its text if that is locked."""
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


def _moved(present: list[NotebookNode], released: NotebookNode) -> bool:
    """Whether exercises, in the order in which they are `present`, stand in another one than released."""
    wanted = [cell["id"] for cell in released.cells if grade_id(cell)]
    places = [wanted.index(cell["id"]) for cell in present if grade_id(cell)]
    return places != sorted(places)


def _reorder(
    submission: NotebookNode, released: NotebookNode, matched: dict[int, NotebookNode]
) -> None:
    """Put the released cells into their order; a student's own cell follows the cell before it.

    Only if code was moved: prose may stand anywhere.
    """
    places = {cell["id"]: index for index, cell in enumerate(released.cells)}
    code = [
        places[matched[id(cell)]["id"]]
        for cell in submission.cells
        if id(cell) in matched and cell.cell_type == "code"
    ]
    if code == sorted(code):
        return
    groups: list[tuple[int, list[NotebookNode]]] = [(-1, [])]
    for cell in submission.cells:
        if id(cell) in matched:
            groups.append((places[matched[id(cell)]["id"]], []))
        groups[-1][1].append(cell)
    groups.sort(key=lambda group: group[0])
    submission.cells = [cell for _, cells in groups for cell in cells]
