"""Build the notebook from its text twin, and the student version from the notebook.

    solutions/<a>/<a>.py     the text twin, which people edit
    solutions/<a>/<a>.ipynb  built from it: executed, outputs cleaned, ids set
    notebooks/<a>/<a>.ipynb  made from that by nbgrader: no solutions, hidden tests or outputs

The student version keeps no outputs: every picture that a student sees is drawn from a run on
their own machine, and no output gives an answer away. Nothing is written if a cell fails or a
graded cell does not give its solution full points. `--check` executes nothing and writes nothing:
it compares the three with each other. `--text` takes over changes beside code, and executes nothing.
"""

from __future__ import annotations

import ast
import os
import shutil
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from nbgrader.converters.base import NbGraderException

from autograder.course.config import NOTEBOOKS, OUT, SOLUTIONS
from autograder.course.kernels import QuietKernel
from autograder.course.outputs import clean
from autograder.course.release import generate
from autograder.course.scores import first_failure, score_cell
from autograder.course.twin import BuildError, grade_id, read_twin
from autograder.course.typed import NAME, Written, holds_typed, keep, keep_aside

CELL_TIMEOUT = 300
DOCUMENTED = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module


class QuietClient(QuietKernel, NotebookClient):
    """nbclient's NotebookClient with a kernel that prints nothing of its own."""


def execute(notebook: NotebookNode, folder: Path) -> list[tuple[float, str]]:
    """Run the notebook in `folder` and store its outputs in it. Returns each cell's (seconds, id).

    Raises BuildError if a cell fails that is not tagged `raises-exception`.
    """
    began: dict[str, float] = {}
    seconds: list[tuple[float, str]] = []
    client = QuietClient(
        notebook,
        timeout=CELL_TIMEOUT,
        kernel_name="python3",
        coalesce_streams=True,
        record_timing=False,
        shutdown_kernel="immediate",
        resources={"metadata": {"path": str(folder)}},
        on_cell_execute=lambda cell, cell_index: began.update({cell["id"]: time.monotonic()}),
        on_cell_executed=lambda cell, cell_index, execute_reply: seconds.append(
            (time.monotonic() - began[cell["id"]], cell["id"])
        ),
    )
    try:
        client.execute()
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        raise BuildError(f"a cell failed: {error}") from error
    except AssertionError as error:
        if client.km is not None:
            raise
        raise KeyboardInterrupt from error  # nbclient, interrupted, looks for a kernel that it has ended
    return seconds


def require_full_points(notebook: NotebookNode) -> None:
    """Raises BuildError unless every cell that its check grades gives the solution its full points.

    The visible cases must pass, too: students see their report, though the hidden cases give the points.
    """
    for cell in notebook.cells:
        own = cell.metadata.get("nbgrader", {})
        if own.get("grade") and not own.get("solution"):
            score = score_cell(cell)
            if score.points != score.maximum or score.reason:
                raise BuildError(
                    f"the solution gets {score.points} of {score.maximum} points in "
                    f"{grade_id(cell)!r}: {score.reason}"
                )
            if failed := first_failure(cell):
                raise BuildError(
                    f"the solution gets all points in {grade_id(cell)!r}, and yet its check printed a case "
                    f"that failed: {failed}"
                )


def write_notebook(notebook: NotebookNode, path: Path) -> None:
    """Write the notebook to `path`, whole or not at all."""
    nbformat.validate(notebook)
    temporary = path.with_suffix(".ipynb.new")
    nbformat.write(notebook, temporary)
    os.replace(temporary, path)


def build(
    assignment: str, *, solutions: Path = SOLUTIONS, notebooks: Path = NOTEBOOKS
) -> list[tuple[float, str]]:
    """Build one assignment: execute the twin, write notebook and student version.

    Returns the seconds of each cell. Raises BuildError; then nothing was written.
    """
    folder = solutions / assignment
    twin = folder / f"{assignment}.py"
    notebook = read_twin(twin)
    seconds = execute(notebook, folder)
    require_full_points(notebook)
    replace(clean(notebook), assignment, solutions, notebooks)
    return seconds


def follow(
    assignment: str, *, solutions: Path = SOLUTIONS, notebooks: Path = NOTEBOOKS
) -> list[str]:
    """Take changed text, comments and docstrings over into the notebooks, without executing anything.

    Outputs stay as they were. Returns the ids of the cells that changed. Raises BuildError if the code
    itself changed, since the outputs would not be its own; then nothing was written.
    """
    twin = solutions / assignment / f"{assignment}.py"
    notebook, before = read_twin(twin), nbformat.read(twin.with_suffix(".ipynb"), as_version=4)
    notebook.metadata = before.metadata
    known = {cell["id"]: cell for cell in before.cells}
    changed, stale = [], []
    for cell in notebook.cells:
        old = known.get(cell["id"])
        if old is None or _compared(old) != _compared(cell):
            changed.append(cell["id"])
        if cell.cell_type != "code":
            continue
        if old is not None and does_the_same(old.source, cell.source):
            cell.outputs, cell.execution_count = old.outputs, old.execution_count
        else:
            stale.append(cell["id"])
    if stale:
        raise BuildError(f"the code of {', '.join(stale)} changed: build it without --text")
    replace(notebook, assignment, solutions, notebooks)
    return changed


def _compared(cell: NotebookNode) -> tuple[object, ...]:
    """The parts of a cell that its twin decides: kind, text, tags and grading."""
    metadata = cell.metadata
    return cell.cell_type, cell.source, metadata.get("tags", []), metadata.get("nbgrader", {})


def does_the_same(source: str, other: str) -> bool:
    """Whether two cells differ in comments, docstrings and layout alone."""
    try:
        return source == other or without_docstrings(source) == without_docstrings(other)
    except SyntaxError:  # a line that is IPython's
        return False


def without_docstrings(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    return ast.dump(tree)


def replace(notebook: NotebookNode, assignment: str, solutions: Path, notebooks: Path) -> None:
    """Replace the built notebook and its student version. BuildError; then both are as they were."""
    path = solutions / assignment / f"{assignment}.ipynb"
    before = path.read_bytes() if path.exists() else None
    replace_source(notebook, path, notebooks.parent / "work")
    try:
        release_into(assignment, solutions, notebooks)
    except NbGraderException as error:
        if before is not None:
            path.write_bytes(before)
        raise BuildError(
            f"nbgrader made no student version of it; {OUT / 'build.log'} says why"
        ) from error


def replace_source(notebook: NotebookNode, path: Path, work: Path) -> None:
    """Write the notebook built from a twin; cells that a person typed into the last one go to `work`."""
    written, new = Written(work / NAME), {cell.source for cell in notebook.cells}
    if path.exists() and holds_typed(path, new, written):
        keep(path, work / path.stem / f"{path.stem}_from_solutions.ipynb")
    written.remember(path, f"{nbformat.writes(notebook)}\n".encode())
    write_notebook(notebook, path)


def release_into(assignment: str, solutions: Path, notebooks: Path) -> None:
    """Replace `notebooks/<assignment>` by a fresh student version; typed work goes to `work/`."""
    work = notebooks.parent / "work"
    with tempfile.TemporaryDirectory() as scratch:
        made = generate(assignment, Path(scratch) / "release", solutions=solutions).parent
        target, written = notebooks / assignment, Written(work / NAME)
        if target.exists():
            keep_aside(target, made, work / assignment, written, "_from_notebooks")
            shutil.rmtree(target)
        for path in made.iterdir():
            written.remember(target / path.name, path.read_bytes())
        shutil.copytree(made, target)
