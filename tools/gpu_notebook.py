"""Run a whole solution notebook on this machine's GPUs, and write down which cells went wrong.

    python tools/gpu_notebook.py 05_fsdp build/gpu/05 --lean

`tools/gpu_session.py` starts it, in a process of its own for each notebook. OUT.json lists what went wrong,
OUT.ipynb is the notebook with its outputs.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
from nbclient.exceptions import CellTimeoutError, DeadKernelError

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from autograder.course.build import QuietClient  # noqa: E402
from autograder.course.scores import score_cell  # noqa: E402
from autograder.course.twin import read_twin  # noqa: E402

SOLUTIONS = ROOT / "solutions"
HIDDEN = "### BEGIN HIDDEN TESTS"
NEVER = (  # in no cell's output, also if the cell reports an error and goes on
    "Expected all tensors to be on the same device",
    "RankTimeout: not finished",
)


def lean(notebook: nbformat.NotebookNode) -> None:
    """Leave out each visible check that a hidden one follows: the same lines, on other values."""
    for cell in notebook.cells:
        before, begin, after = cell.source.partition(HIDDEN)
        if cell.cell_type == "code" and begin and "report = check(" in before:
            cell.source = before[: before.index("report = check(")] + begin + after


def run(assignment: str, out: Path, leave_out: bool = False) -> None:
    """Write OUT.ipynb and OUT.json, also if the run is interrupted."""
    folder = SOLUTIONS / assignment
    notebook = read_twin(folder / f"{assignment}.py")
    if leave_out:
        lean(notebook)
    stopped = ""

    def execute() -> None:
        QuietClient(
            notebook, timeout=300, kernel_name="python3", allow_errors=True, coalesce_streams=True,
            resources={"metadata": {"path": str(folder)}}, shutdown_kernel="immediate",
        ).execute()  # fmt: skip

    try:
        try:
            execute()
        except RuntimeError:  # two kernels that start at once may take the same port, and one dies
            execute()
    except (KeyboardInterrupt, DeadKernelError, CellTimeoutError, AssertionError) as error:
        # nbclient, interrupted, may also fail in ending the kernel; the cells that ran are reported anyway
        stopped = f"not finished ({type(error).__name__})"
    nbformat.write(notebook, out.with_suffix(".ipynb"))
    out.with_suffix(".json").write_text(json.dumps(list(faults(notebook, stopped))))


def faults(notebook: nbformat.NotebookNode, stopped: str = "") -> Iterator[str]:
    """A line for each error, forbidden sentence, and graded cell below its maximum."""
    if stopped:
        ran = [cell for cell in notebook.cells if cell.get("execution_count")]
        yield f"{stopped}: {len(ran)} cells had run"
    for number, cell in enumerate(notebook.cells):
        where = f"cell {number} ({cell.metadata.get('nbgrader', {}).get('grade_id', cell['id'])})"
        expected = "raises-exception" in cell.metadata.get("tags", ())
        for output in cell.get("outputs", ()):
            if output.output_type == "error" and not expected:
                text = output.evalue.splitlines()
                yield f"{where}: {output.ename}: {' | '.join(text[:3])[:400]}"
            said = output.get("text", "") or output.get("data", {}).get("text/plain", "")
            yield from (f"{where}: it says {sign!r}" for sign in NEVER if sign in said)
        own = cell.metadata.get("nbgrader", {})
        graded = own.get("grade") and not own.get("solution")
        if graded and (cell.get("outputs") or not stopped):
            score = score_cell(cell)
            if score.points != score.maximum:
                yield f"{where}: {score.points} of {score.maximum} points"


def carried(runs: Path) -> tuple[int, int]:
    """How many runs of several ranks went over NCCL, and how many over gloo; see `run.write_down`."""
    backends = re.findall(r"(?m)^\d+ (\w+)$", runs.read_text())
    return backends.count("nccl"), backends.count("gloo")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("assignment")
    parser.add_argument("out", type=Path)
    parser.add_argument("--lean", action="store_true")
    options = parser.parse_args()
    run(options.assignment, options.out, options.lean)
