"""The solutions of all notebooks where a GPU is pretended (`tests/gpu_like.py`): nothing is left on the host.

Every launch that names no backend runs there, and so does every check. Launches that are pinned to gloo stay
on the CPU, as they do on a machine with GPUs. A run tries a few notebooks, and `make test-all` tries all.
"""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest

from autograder.course.build import QuietClient
from autograder.course.config import SOLUTIONS, assignments
from autograder.course.twin import read_twin
from tests.checks.test_imitated_devices import NOT_THERE
from tests.gpu_like import GPU

ROOT = Path(__file__).resolve().parents[2]
BEFORE = f"""\
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests import gpu_like
pretended = gpu_like.offered(checks=True, by_default=True)
pretended.__enter__()
"""
AFTER = """\
import course_lib
print(course_lib.launch(lambda: str(course_lib.device()), world_size=1)[0])
"""


@pytest.mark.drawn(0.08)
@pytest.mark.parametrize("assignment", assignments())
def test_no_tensor_is_left_on_the_host(assignment: str) -> None:
    notebook = read_twin(SOLUTIONS / assignment / f"{assignment}.py")
    notebook.cells.insert(0, nbformat.v4.new_code_cell(BEFORE))
    notebook.cells.append(nbformat.v4.new_code_cell(AFTER))
    QuietClient(
        notebook, timeout=600, kernel_name="python3", allow_errors=True, coalesce_streams=True,
        resources={"metadata": {"path": str(SOLUTIONS / assignment)}}, shutdown_kernel="immediate",
    ).execute()  # fmt: skip
    (last,) = notebook.cells[-1].outputs
    assert last.text.strip() == str(GPU), "a launch at the end still runs on the pretended GPU"
    mixed = [
        f"{cell.source[:200]}\n{json.dumps(output)[:2000]}"
        for cell in notebook.cells
        if not any(f'check("{name}"' in cell.source for name in NOT_THERE)
        for output in cell.get("outputs", ())
        if output.output_type == "error" or "OtherDevice" in json.dumps(output)
    ]
    assert not mixed, "\n\n".join(mixed)
