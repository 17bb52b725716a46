"""Student versions for people who learn alone: below each check, folded, the solution of its exercise.

A class gets no such notebooks: they are made by `release --self-study` and `make site ARGS=--self-study`
alone. Checks, hidden cases and points stay as they are, and the grader takes these notebooks too, since the
added cells are text.
"""

from __future__ import annotations

import ast
import re

from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell

from autograder.course.twin import SOLUTION_MARKERS, grade_id

FOLDED = """\
<details><summary>Stuck for 20 minutes? Here is a solution of <code>{name}</code></summary>

{fence}python
{code}
{fence}

{close}

</details>"""
OWN = "It is one of several ways. Close it, and write yours in your own words."
WHY = "Close it, and say in your own words why this is right."
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
    """A cell of text with a solution's code, without nbgrader's marks and the dots that it replaces."""
    code = MARKER.sub("", source).strip("\n")
    answers = without_dots(code)
    close = OWN if answers == code else WHY
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", code))])
    text = FOLDED.format(name=name, fence=fence, code=answers, close=close)
    return new_markdown_cell(text, id=ID.format(name)[:64])


def without_dots(code: str) -> str:
    """The code without assignments of `...` whose names get answers below, and without their comments."""
    lines = code.splitlines()
    body = ast.parse(code).body
    for k, statement in reversed(list(enumerate(body))):
        if _has_dots(statement) and _names(statement) <= set().union(*map(_names, body[k + 1 :])):
            first = statement.lineno - 1
            while first and lines[first - 1].startswith("#"):
                first -= 1
            del lines[first : statement.end_lineno]
    return "\n".join(lines).strip("\n")


def _has_dots(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Assign) and any(
        isinstance(node, ast.Constant) and node.value is ... for node in ast.walk(statement.value)
    )


def _names(statement: ast.stmt) -> set[str]:
    """The names that a statement assigns."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return {node.id for part in targets for node in ast.walk(part) if isinstance(node, ast.Name)}


def _is(cell: NotebookNode, kind: str) -> bool:
    return bool(cell.metadata.get("nbgrader", {}).get(kind)) and cell.cell_type == "code"
