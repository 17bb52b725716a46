"""Do twin, notebook and student version still agree? They are compared without executing them."""

from __future__ import annotations

import tempfile
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from autograder.course.config import NOTEBOOKS, SOLUTIONS
from autograder.course.release import generate
from autograder.course.twin import read_twin

REMEDY = "Run `make notebooks` and keep what it writes."


def differences(
    assignment: str, *, solutions: Path = SOLUTIONS, notebooks: Path = NOTEBOOKS
) -> list[str]:
    """Sentences, one for each difference; none when all three agree."""
    twin = solutions / assignment / f"{assignment}.py"
    built = twin.with_suffix(".ipynb")
    student = notebooks / assignment / built.name
    for path in (built, student):
        if not path.exists():
            return [f"{path} is missing. {REMEDY}"]
    with tempfile.TemporaryDirectory() as scratch:
        fresh = generate(assignment, Path(scratch) / "release", solutions=solutions)
        beside = sorted(path.name for path in student.parent.iterdir() if path.is_file())
        expected = sorted(path.name for path in fresh.parent.iterdir())
        lines = [
            *_compare(read_twin(twin), _read(built), built, outputs=False),
            *_not_executed(_read(built), built),
            *_compare(_read(fresh), _read(student), student, outputs=True),
        ]
    if beside != expected:
        lines.append(f"{student.parent} holds {beside}, and should hold {expected}. {REMEDY}")
    return lines


def _read(path: Path) -> NotebookNode:
    return nbformat.read(path, as_version=4)


def _compare(expected: NotebookNode, kept: NotebookNode, path: Path, *, outputs: bool) -> list[str]:
    """Sentences on each difference in the metadata of the notebook at `path` and in its cells."""
    if [cell["id"] for cell in expected.cells] != [cell["id"] for cell in kept.cells]:
        return [f"{path}: its cells, or their order, differ from its source's. {REMEDY}"]
    metadata = dict(kept.metadata)
    if not outputs:
        metadata.pop("widgets", None)
    lines = []
    if metadata != dict(expected.metadata):
        lines.append(f"{path}: the notebook's metadata differ from its source's. {REMEDY}")
    keys = ("cell_type", "source", "metadata", *(("outputs", "execution_count") * outputs))
    for ours, theirs in zip(expected.cells, kept.cells, strict=True):
        differing = [key for key in keys if ours.get(key) != theirs.get(key)]
        if differing:
            what = " and ".join(differing)
            lines.append(f"{path}: cell {ours['id']!r} differs from its source: {what}. {REMEDY}")
    return lines


def _not_executed(notebook: NotebookNode, path: Path) -> list[str]:
    """Code cells are executed from the top, once each: their numbers count up from 1."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]
    counts = [cell.execution_count for cell in code]
    if counts == list(range(1, len(code) + 1)):
        return []
    return [f"{path} is not executed from top to bottom. {REMEDY}"]
