"""Run a solution's notebook in a host's kernel, and report its faults there.

The notebook's client is that of this environment; the kernel, IPython, the widgets and all that the course
imports are the host's. A notebook passes if no cell fails, every check gives full points, every cell shows
the kinds of output that the kept notebook shows (text, pictures, tables, widgets that a browser finds, and
nothing on stderr), and diagnoses name cells by the numbers that they have.
"""

from __future__ import annotations

import copy
import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

from autograder.course.kernels import QuietKernel
from autograder.course.outputs import WIDGETS
from autograder.course.scores import Score, score_cell

CELL_TIMEOUT = 600
VIEW = "application/vnd.jupyter.widget-view+json"
NUMBER = re.compile(r"In\[\d+\]")
FILE = re.compile(r"\S*(?:ipykernel_\d|ipython-input-|\b\d{6,}\.py)\S*|a notebook cell")

# Run by IPython as the kernel starts: `PATTERN` is a host's name of a cell's file.
NAME_CELLS = """
import os
from ipykernel.compiler import get_file_name

def get_code_name(raw_code, code, number):
    digest = os.path.splitext(os.path.basename(get_file_name(raw_code)))[0]
    return PATTERN.format(hash=digest, number=number)

get_ipython().compile.get_code_name = get_code_name
"""


@dataclass(frozen=True)
class Kernel:
    """cells: as in a host's file. path: a folder whose packages come before those of `python`."""

    python: str
    cells: str = ""
    path: str = ""


class HostClient(QuietKernel, NotebookClient):
    """Starts the kernel that `kernels` describes: a folder with a kernel.json."""

    kernels = ""

    def create_kernel_manager(self) -> KernelManager:
        manager = super().create_kernel_manager()
        manager.kernel_spec_manager = KernelSpecManager(kernel_dirs=[self.kernels])
        return manager


def execute(notebook: NotebookNode, path: Path, kernel: Kernel) -> None:
    """Run the notebook, which lies at `path`, in the kernel; its outputs come into it, errors included."""
    with tempfile.TemporaryDirectory(prefix="course-host-") as name:
        folder = Path(name)
        startup = folder / "ipython" / "profile_default" / "startup"
        startup.mkdir(parents=True)
        if kernel.cells:
            (startup / "00-cells.py").write_text(f"PATTERN = {kernel.cells!r}\n{NAME_CELLS}")
        (folder / "kernels" / "host").mkdir(parents=True)
        spec = {
            "argv": [kernel.python, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
            "display_name": "host",
            "language": "python",
            "env": {"PYTHONPATH": kernel.path, "IPYTHONDIR": str(startup.parent.parent)},
        }
        (folder / "kernels" / "host" / "kernel.json").write_text(json.dumps(spec))
        client = HostClient(
            notebook, kernel_name="host", timeout=CELL_TIMEOUT, allow_errors=True,
            record_timing=False, coalesce_streams=True, shutdown_kernel="immediate",
            resources={"metadata": {"path": str(path.parent)}},
        )  # fmt: skip
        client.kernels = str(folder / "kernels")
        client.execute()


def try_notebook(path: Path, kernel: Kernel) -> tuple[float, float, list[str]]:
    """Run a solution's notebook in a host's kernel: its points, the most there are, and its faults."""
    kept = nbformat.read(path, as_version=4)
    executed = copy.deepcopy(kept)
    executed.metadata.pop("widgets", None)
    for cell in executed.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    try:
        execute(executed, path, kernel)
    except (CellTimeoutError, DeadKernelError) as error:
        most = sum(score.maximum for _, score in scores(kept))
        return 0.0, most, [f"{type(error).__name__}: {error}"]
    marks = [score for _, score in scores(executed)]
    points, most = sum(mark.points for mark in marks), sum(mark.maximum for mark in marks)
    return points, most, list(complaints(executed, kept))


def scores(notebook: NotebookNode) -> Iterator[tuple[NotebookNode, Score]]:
    """The cells that a check grades, with their scores."""
    for cell in notebook.cells:
        own = cell.metadata.get("nbgrader", {})
        if own.get("grade") and not own.get("solution"):
            yield cell, score_cell(cell)


def complaints(executed: NotebookNode, kept: NotebookNode) -> Iterator[str]:
    """The faults of the executed notebook, compared with the kept one, which has the same cells."""
    state = executed.metadata.get("widgets", {}).get(WIDGETS, {}).get("state", {})
    for cell, before in zip(executed.cells, kept.cells, strict=True):
        if cell.cell_type != "code":
            continue
        yield from (f"{cell.id}: {text}" for text in wrong_outputs(cell, before, state))
    for cell, score in scores(executed):
        if score.points != score.maximum or score.reason:
            yield f"{cell.id}: {score.points} of {score.maximum} points: {score.reason}"
    numbers, expected = (
        set(NUMBER.findall("\n".join(texts(notebook_read)))) for notebook_read in (executed, kept)
    )
    if numbers != expected:
        differ = ", ".join(sorted(numbers ^ expected))
        yield f"other cells are named than in the kept notebook: {differ}"


def wrong_outputs(cell: NotebookNode, before: NotebookNode, state: Mapping) -> Iterator[str]:
    for output in cell.outputs:
        if output.output_type == "error" and "raises-exception" not in cell.metadata.get(
            "tags", []
        ):
            yield f"{output.ename}: {output.evalue}"
        view = output.get("data", {}).get(VIEW)
        if view is not None and view["model_id"] not in state:
            yield "a widget is shown that no browser finds: its model was not sent"
    more, fewer = kinds(cell) - kinds(before), kinds(before) - kinds(cell)
    if more:
        said = " ".join(
            output_read["text"] for output_read in cell.outputs if output_read.get("name") in more
        )[:300]
        yield f"an output of another kind than in the kept notebook: {', '.join(sorted(more))} {said}"
    if fewer:
        yield f"without the output that the kept notebook has: {', '.join(sorted(fewer))}"
    for text in texts_of(cell):
        if match := FILE.search(text):
            yield f"a cell is named by its file or not at all: {match[0]!r}"


def kinds(cell: NotebookNode) -> set[str]:
    """Streams, errors by their type, and the MIME types of other outputs."""
    shown = set()
    for output in cell.outputs:
        own = output.get("name") or output.get("ename") or output.output_type
        shown |= {own, *output.get("data", {})}
    return shown


def texts(notebook: NotebookNode) -> Iterator[str]:
    for cell in notebook.cells:
        if cell.cell_type == "code":
            yield from texts_of(cell)


def texts_of(cell: NotebookNode) -> Iterator[str]:
    """The text that the course prints and shows; IPython's own tracebacks are the host's."""
    for output in cell.outputs:
        yield output.get("text", "") + output.get("evalue", "")
        yield output.get("data", {}).get("text/plain", "")
