"""In a real Jupyter kernel: cell numbers in messages, interrupts, and a kernel that is closed or killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import KernelManager, start_new_kernel

from course_lib import check
from course_lib.runtime.errors import Interrupted
from tests.runtime.test_processes import children, listing

IMPORTS = """
import time, os
import torch, torch.distributed as dist
from course_lib import launch, Deadlock
"""
CIRCLE = """def circle():
    rank, n = dist.get_rank(), dist.get_world_size()
    x = torch.ones(4)
    dist.recv(x, (rank - 1) % n)
    dist.send(x, (rank + 1) % n)
"""


class Notebook:
    """A kernel, and what its cells print."""

    def __init__(self) -> None:
        self.manager, self.client = start_new_kernel(kernel_name="python3")
        self.cell(IMPORTS)

    @property
    def pid(self) -> int:
        return self.manager.provisioner.pid  # type: ignore[union-attr]

    def begin(self, code: str) -> None:
        self.message = self.client.execute(code)

    def read(self, words: str | None = None, seconds: float = 60) -> dict[str, str]:
        """Output until the cell ends, or until it has printed `words`."""
        said = {"stdout": "", "stderr": "", "error": ""}
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            message: dict[str, Any] = self.client.get_iopub_msg(timeout=seconds)
            if message["parent_header"].get("msg_id") != self.message:
                continue
            content, kind = message["content"], message["msg_type"]
            if kind == "stream":
                said[content["name"]] += content["text"]
            elif kind == "error":
                said["error"] += "\n".join(content["traceback"])
            elif kind == "status" and content["execution_state"] == "idle":
                return said
            if words and words in said["stdout"]:
                return said
        raise AssertionError(f"the cell did not end: {said}")

    def cell(self, code: str) -> dict[str, str]:
        self.begin(code)
        return self.read()


@pytest.fixture
def notebook(own_temporary_folder: Path) -> Iterator[Notebook]:
    found = Notebook()
    yield found
    found.client.stop_channels()
    manager: KernelManager = found.manager
    manager.shutdown_kernel(now=True)


def test_a_deadlock_names_cells_and_lines_and_nothing_else(notebook: Notebook) -> None:
    notebook.cell("launch(dist.get_rank, world_size=3)")
    notebook.cell(CIRCLE)
    said = notebook.cell("launch(circle, world_size=3)")
    assert said["error"].startswith("Deadlock: rank 0 -> rank 2 -> rank 1 -> rank 0, each waiting")
    assert "Cell In[3], line 4: dist.recv(x, (rank - 1) % n)" in said["error"]
    assert "site-packages" not in said["error"] and "runtime/launch.py" not in said["error"]
    assert said["stderr"] == ""
    assert (
        "[0, 1, 2]" in notebook.cell("print(list(launch(dist.get_rank, world_size=3)))")["stdout"]
    )


def test_an_error_shows_the_students_frames(notebook: Notebook) -> None:
    notebook.cell(
        "def helper(x):\n    return x / 0\n\ndef body():\n    return helper(dist.get_rank())"
    )
    said = notebook.cell("launch(body, world_size=2)")["error"]
    assert "all ranks raised ZeroDivisionError" in said
    assert "Cell In[2], line 5, in body" in said and "Cell In[2], line 2, in helper" in said
    assert "--- ranks 0 and 1 ---" in said


@pytest.mark.parametrize("call", ["dist.get_rank()", "dist.send(torch.ones(2), 1)"])
def test_a_call_outside_the_ranks_is_pointed_to_launch(notebook: Notebook, call: str) -> None:
    notebook.cell("import torch\ndef function():\n    return " + call)
    said = notebook.cell("function()")
    assert "Default process group has not been initialized" in said["error"], "as PyTorch words it"
    assert "as in launch(function, its arguments, world_size=2)" in said["stdout"]
    assert "Note" not in notebook.cell("1 / 0")["stdout"]
    assert "Note" not in notebook.cell("print(1)")["stdout"]


def test_a_check_says_that_the_newest_cell_of_its_function_failed(notebook: Notebook) -> None:
    """Else a table full of points would stand below a mistake in the grammar."""
    notebook.cell("from course_lib import check, device")
    right = "def hello():\n    return dist.get_rank(), dist.get_world_size(), str(device())"
    notebook.cell(right)
    judged = "report = check('00_first_ranks/hello', hello)"
    assert "did not run to its end" not in notebook.cell(judged)["stdout"]
    notebook.cell(right.replace("()", "(", 1))
    said = notebook.cell(judged)["stdout"]
    assert said.endswith(
        "The newest cell that defines `hello`, In[5], did not run to its end. This table is about the "
        "`hello` of In[3].\n"
    )
    notebook.cell(right)
    assert "did not run to its end" not in notebook.cell(judged)["stdout"]
    notebook.cell(f"%%writefile {os.devnull}\n{right}")  # another place in which the name may stand
    notebook.cell(f'text = """\n{right}\n"""')
    assert "did not run to its end" not in notebook.cell(judged)["stdout"]


def test_a_check_says_that_the_function_has_another_name_now(notebook: Notebook) -> None:
    """A check would judge the older function, and never mention the newer one."""
    notebook.cell("from course_lib import check, device")
    right = (
        'def hello():\n    """Who is it?"""\n'
        "    return dist.get_rank(), dist.get_world_size(), str(device())"
    )
    judged = "report = check('00_first_ranks/hello', hello)"
    notebook.cell(right)
    notebook.cell('def helper():\n    """Not that one."""')
    assert "If `" not in notebook.cell(judged)["stdout"]
    notebook.cell(
        right.replace("()", "(", 1)
    )  # did not run to its end, and is older than the next one
    notebook.cell(right.replace("hello", "helo"))
    assert notebook.cell(judged)["stdout"].endswith(
        "In[7] defines `helo`, and no `hello`. This table is about the `hello` of In[3]. If `helo` is your "
        "newer version, name it `hello`.\n"
    )
    notebook.cell(right.replace("hello", "hello_before") + "\n\n" + right)  # a copy beside it
    assert "If `" not in notebook.cell(judged)["stdout"]


def test_the_stack_of_a_crash_names_the_cell(notebook: Notebook) -> None:
    notebook.cell("import os\ndef body():\n    if dist.get_rank() == 1:\n        os.abort()")
    said = notebook.cell("launch(body, world_size=2)")
    assert "[rank 1, stderr]   Cell In[2], line 4 in body" in said["stdout"]
    assert "ipykernel" not in said["stdout"] + said["error"]
    assert "rank 1" in said["error"] and "SIGABRT" in said["error"]


def test_cells_see_each_others_definitions_as_they_are_now(notebook: Notebook) -> None:
    notebook.cell("import math\nfactor = 2\ndef helper(x):\n    return math.floor(x) * factor")
    notebook.cell(
        "class A:\n    def f(self): return 1\nclass B(A):\n    def f(self): return super().f() + 1"
    )
    notebook.cell("def body():\n    return helper(2.5), B().f(), (lambda y: y + factor)(1)")
    assert "[(4, 2, 3), (4, 2, 3)]" in notebook.cell("print(launch(body, world_size=2))")["stdout"]
    notebook.cell("factor = 5")
    assert "(10, 2, 6)" in notebook.cell("print(launch(body, world_size=2))")["stdout"]


def test_interrupt_ends_the_ranks_and_the_kernel_lives(
    notebook: Notebook, assert_no_orphans: Callable[..., None]
) -> None:
    notebook.cell(
        "def loop():\n    print('in', flush=True)\n    while True:\n        time.sleep(0.01)"
    )
    before = set(children(notebook.pid))
    notebook.begin("launch(loop, world_size=3)")
    notebook.read("in\n")
    ranks = set(children(notebook.pid)) - before
    time.sleep(0.5)
    notebook.manager.interrupt_kernel()
    said = notebook.read()
    assert said["error"].startswith("KeyboardInterrupt: interrupted, so the ranks were ended")
    assert "Cell In[2], line" in said["error"]
    assert_no_orphans(ranks)
    assert "[0, 1]" in notebook.cell("print(list(launch(dist.get_rank, world_size=2)))")["stdout"]


def test_an_interrupted_check_says_where_its_ranks_were(monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(*args: object) -> None:
        raise Interrupted(
            "interrupted, so the ranks were ended\n  rank 0: computes, in no communication"
        )

    monkeypatch.setattr("course_lib.checks.client.submit", pressed)
    with pytest.raises(Interrupted, match=r"(?s)was interrupted; run it again.*rank 0: computes"):
        check("02_collectives/all_gather", None)


def test_an_interrupted_check_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("course_lib.checks.client.submit", pressed)
    with pytest.raises(Interrupted) as caught:
        check("02_collectives/all_gather", None)
    said = (
        "KeyboardInterrupt: the check of 02_collectives/all_gather was interrupted; run it again."
    )
    assert caught.value._render_traceback_() == [said]


@pytest.mark.parametrize("how", ["shutdown", "restart", "kill -9"])
def test_nothing_is_left_when_the_kernel_ends(
    notebook: Notebook, how: str, assert_no_orphans: Callable[..., None]
) -> None:
    before = listing()
    notebook.cell(
        "def loop():\n    print('in', flush=True)\n    while True:\n        time.sleep(0.01)"
    )
    notebook.begin("launch(loop, world_size=3)")
    notebook.read("in\n")
    pids = children(notebook.pid)
    assert len(pids) >= 4
    if how == "shutdown":
        notebook.manager.shutdown_kernel()
    elif how == "restart":
        notebook.manager.restart_kernel()
    else:
        os.kill(notebook.pid, signal.SIGKILL)
    assert_no_orphans(pids, 15)
    assert listing() <= before, "Jupyter may take its own connection file away; nothing is new"
