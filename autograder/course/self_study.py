"""Student versions for people who learn alone: below each check, folded, the solution of its exercise.

A class gets no such notebooks: they are made by `release --self-study` and `make site ARGS=--self-study`
alone. Checks, hidden cases and points stay as they are, and the grader takes these notebooks too, since the
added cells are text.
"""

from __future__ import annotations

import re

from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell

from autograder.course.twin import SOLUTION_MARKERS, grade_id

FOLDED = """\
<details><summary>Stuck for 20 minutes? Here is a solution of <code>{name}</code></summary>

{fence}python
{code}
{fence}

It is one of several ways. Close it, and write yours in your own words.

</details>"""
MARKER = re.compile(rf"^ *({'|'.join(map(re.escape, SOLUTION_MARKERS))})\n?", re.MULTILINE)
ID = "{}-solution"  # of the added cell; an id has at most 64 characters


def add_solutions(student: NotebookNode, source: NotebookNode) -> None:
    """Add a folded cell to `student` below the check of each exercise, with the code of `source`.

    student: a student version, or a page of it; source: the assignment's source. The solutions of several
    cells before one check are below it, in their order. A solution that no check follows is below its cell.
    """
    solutions = {grade_id(cell): cell.source for cell in source.cells if _is(cell, "solution")}
    places = {grade_id(cell): k for k, cell in enumerate(source.cells)}
    checks = [k for k, cell in enumerate(source.cells) if _is(cell, "locked")]
    below: dict[str, list[NotebookNode]] = {}
    for name, text in solutions.items():
        if name is None:
            continue
        place = next((k for k in checks if k > places[name]), places[name])
        below.setdefault(source.cells[place]["id"], []).append(folded(name, text))
    student.cells = [cell for own in student.cells for cell in (own, *below.get(own["id"], ()))]


def folded(name: str, source: str) -> NotebookNode:
    """A cell of text with the code of a solution, without nbgrader's marks."""
    code = MARKER.sub("", source).strip("\n")
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", code))])
    text = FOLDED.format(name=name, fence=fence, code=code)
    return new_markdown_cell(text, id=ID.format(name)[:64])


def _is(cell: NotebookNode, kind: str) -> bool:
    return bool(cell.metadata.get("nbgrader", {}).get(kind)) and cell.cell_type == "code"
