"""Every right solution: those of the notebooks, and the right cells of the mutants."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import jupytext

from autograder.sample.mutants import Mutant, read_mutants
from course_lib.checks.judge.find import of_assignment
from tests.checks.test_mutants import FILES

ROOT = Path(__file__).resolve().parents[2]
TWINS = sorted(twin for twin in ROOT.glob("solutions/*/*.py") if twin.stem == twin.parent.name)
DEFINES = ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign


def right_solutions() -> dict[str, list[Mutant]]:
    """By the exercise's full name: the notebook's own solution, then others."""
    found = {}
    for twin in TWINS:
        exercises = of_assignment(twin.stem)
        judged = {name for one in exercises.values() for name in one.objects}
        text = solution_of(twin, judged)
        found |= {
            f"{twin.stem}/{name}": [Mutant(name, True, "the notebook's own", text)]
            for name in exercises
        }
    for file in FILES:
        own = found.setdefault(
            f"{file.parent.name}/{file.stem}", []
        )  # its notebook may be yet to come
        own += [one for one in read_mutants(file) if one.right]
    return found


def solution_of(twin: Path, judged: set[str]) -> str:
    """The notebook's solution cells, and the statements of other cells that these or the judged objects need.

    Neither a launch nor a check is among them.
    """
    nodes = [*statements(twin)]
    given = [node for node, is_solution in nodes if not is_solution and isinstance(node, DEFINES)]
    kept = {id(node): node for node, is_solution in nodes if is_solution}
    missing = True
    while missing:
        known = {name for node in kept.values() for name in defined(node)}
        wanted = judged.union(*map(used, kept.values())) - known
        missing = [node for node in given if wanted.intersection(defined(node))]
        kept |= {id(node): node for node in missing}
    return "\n\n".join(ast.unparse(node) for node, _ in nodes if id(node) in kept)


def statements(twin: Path) -> Iterator[tuple[ast.stmt, bool]]:
    """The statements of all cells, and whether each is a solution's."""
    for cell in jupytext.read(twin, fmt="py:percent").cells:
        if cell.cell_type == "code":
            lines = [line for line in cell.source.splitlines() if not line.startswith(("%", "!"))]
            is_solution = bool(cell.metadata.get("nbgrader", {}).get("solution"))
            yield from ((node, is_solution) for node in ast.parse("\n".join(lines)).body)


def defined(node: ast.stmt) -> set[str]:
    """The names that a statement at the top of a cell makes."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {one.asname or one.name.partition(".")[0] for one in node.names}
    stored = (one for one in ast.walk(node) if isinstance(one, ast.Name))
    return {one.id for one in stored if isinstance(one.ctx, ast.Store)}


def used(node: ast.stmt) -> set[str]:
    """The names that a statement takes from elsewhere."""
    names = [one for one in ast.walk(node) if isinstance(one, ast.Name)]
    own = {one.id for one in names if isinstance(one.ctx, ast.Store)}
    own |= {one.arg for one in ast.walk(node) if isinstance(one, ast.arg)}
    return {one.id for one in names} - own
