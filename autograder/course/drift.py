"""Do twin, notebook and student version still agree? They are compared without executing them."""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from autograder.course.config import MADE, NOTEBOOKS, SOLUTIONS
from autograder.course.release import generate
from autograder.course.twin import read_twin

FEW = 3  # cells that are named


def remedy(path: Path) -> str:
    """A sentence on the cures for a notebook that differs, first if a person worked in it by mistake."""
    name = path.parent.name
    return (
        f"If it was run or worked in, keep a copy: `git restore {shlex.quote(str(path))}` brings back the "
        f'course\'s version. If its source was changed, `make notebooks ARGS="--text {name}"` takes over '
        f"texts, comments and docstrings, and `make notebooks ARGS={name}` runs all of it again."
    )


def differences(
    assignment: str, *, solutions: Path = SOLUTIONS, notebooks: Path = NOTEBOOKS
) -> list[str]:
    """Sentences, one for each difference; none when all three agree. BuildError as `read_twin`."""
    twin = solutions / assignment / f"{assignment}.py"
    built = twin.with_suffix(".ipynb")
    student = notebooks / assignment / built.name
    for path in (built, student):
        if not path.exists():
            return [f"{path} is missing. {remedy(path)}"]
    source = read_twin(twin)
    with tempfile.TemporaryDirectory() as scratch:
        fresh = generate(assignment, Path(scratch) / "release", solutions=solutions)
        beside = sorted(
            path.name
            for path in student.parent.iterdir()
            if path.is_file() and path.name not in MADE
        )
        expected = sorted(path.name for path in fresh.parent.iterdir())
        lines = [
            *_compare(source, _read(built), built, outputs=False),
            *_not_executed(_read(built), built),
            *_compare(_read(fresh), _read(student), student, outputs=True),
        ]
    if beside != expected:
        lines.append(f"{student.parent} holds {beside}, and should hold {expected}.")
    return lines


def _read(path: Path) -> NotebookNode:
    return nbformat.read(path, as_version=4)


def _compare(expected: NotebookNode, kept: NotebookNode, path: Path, *, outputs: bool) -> list[str]:
    """Sentences on each difference in the metadata of the notebook at `path` and in its cells."""
    if [cell["id"] for cell in expected.cells] != [cell["id"] for cell in kept.cells]:
        return [f"{path}: its cells, or their order, differ from its source's. {remedy(path)}"]
    metadata = dict(kept.metadata)
    if not outputs:
        metadata.pop("widgets", None)
    differing: dict[str, list[str]] = {}
    if metadata != dict(expected.metadata):
        differing["the notebook's metadata"] = []
    keys = ("cell_type", "source", "metadata", *(("outputs", "execution_count") * outputs))
    for ours, theirs in zip(expected.cells, kept.cells, strict=True):
        what = " and ".join(key for key in keys if ours.get(key) != theirs.get(key))
        if what:
            differing.setdefault(what, []).append(ours["id"])
    if not differing:
        return []
    said = [what + (f" of {_named(cells)}" if cells else "") for what, cells in differing.items()]
    return [f"{path} differs from its source: {'; '.join(said)}. {remedy(path)}"]


def _named(cells: list[str]) -> str:
    """The cells by their ids; of many the number and the first ones."""
    first = ", ".join(repr(cell) for cell in cells[:FEW])
    return f"{len(cells)} cells, such as {first}" if len(cells) > FEW else first


def _not_executed(notebook: NotebookNode, path: Path) -> list[str]:
    """Code cells are executed from the top, once each: their numbers count up from 1."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]
    counts = [cell.execution_count for cell in code]
    if counts == list(range(1, len(code) + 1)):
        return []
    return [f"{path} is not executed from top to bottom. {remedy(path)}"]
