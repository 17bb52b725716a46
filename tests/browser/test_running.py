"""Run All, an exercise, a deadlock, an interrupt and a restart, as in a student's first hour."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator

import pytest

from tests.browser.lab import Lab
from tests.browser.server import Server

FIRST = "00_first_ranks/00_first_ranks.ipynb"
# Student versions with widgets, whose kernels work least. In each an exercise is not solved yet, so the cells
# below it say what they wait for. `tests/notebooks` runs all others, without a browser.
FROM_STUBS = ("06_tensor_parallel", "11_experts")
# Ranks that print who they are and then go on until something ends them; two of them compute.
LOOP = """\
import os, time
def loop():
    print("process", os.getpid(), flush=True)
    while True:
        time.sleep(0.01 if dist.get_rank() < 2 else 0)
launch(loop, world_size=4)"""
AFTERWARDS = 'print("afterwards", list(launch(dist.get_rank, world_size=2)))'
IMPORTS = "import torch.distributed as dist\nfrom course_lib import check, device, launch"


@pytest.mark.parametrize("name", FROM_STUBS)
def test_run_all_of_a_student_version_shows_no_red(lab: Lab, name: str) -> None:
    lab.open(f"{name}/{name}.ipynb")
    runs_without_red(lab)


def runs_without_red(lab: Lab) -> None:
    lab.run_all()
    red = lab.red()
    assert not red, "\n".join(red)
    assert (
        lab.ask("return code.filter(cell => cell.executionCount === null).map(cell => cell.id);")
        == []
    )


@pytest.fixture(scope="module")
def opened_first(shared_lab: Lab) -> Lab:
    """Notebook 00. The tests below run it whole, and then work on in it, as a student does."""
    shared_lab.open(FIRST)
    return shared_lab


@pytest.fixture
def first(opened_first: Lab, request: pytest.FixtureRequest) -> Iterator[Lab]:
    yield opened_first
    opened_first.shot(request.node.name)


def test_run_all_of_the_first_notebook_shows_no_red(first: Lab) -> None:
    runs_without_red(first)


def test_a_solved_exercise_gets_its_points(first: Lab) -> None:
    """With the keyboard: the stub is replaced, both cells are run, and the table is on the screen."""
    lab = first
    exercise, check = lab.find("def hello("), lab.find('check("00_first_ranks/hello"')
    lab.run(exercise)
    lab.run(check)
    assert re.search(r"^hello +0\.0 of 1$", lab.text(check), re.MULTILINE)
    answer = "return dist.get_rank(), dist.get_world_size(), str(device())"
    lab.write(exercise, f"def hello():\n    {answer}")
    lab.run(exercise)
    lab.run(check)
    assert re.search(r"^hello +1\.0 of 1$", lab.text(check), re.MULTILINE)
    assert "✗" not in lab.text(check) and lab.text(check).endswith("1.0")
    assert "1.0 of 1" in lab.go_to(check).inner_text()


def test_a_deadlock_is_named_and_the_kernel_goes_on(first: Lab) -> None:
    lab = first
    kernel = lab.kernel_process()
    place = lab.find("def naive_shift(")
    lab.run(place)
    said = lab.text(place)
    assert "send" in said and all(f"rank {rank}" in said for rank in range(3)), said
    assert "deadlock" in lab.go_to(place).inner_text()
    after = lab.add(AFTERWARDS)
    lab.run(after)
    assert lab.text(after) == "afterwards [0, 1]\n"
    assert lab.kernel_process() == kernel, "the kernel is another one"


def ranks_that_loop(lab: Lab) -> tuple[int, list[int]]:
    """The cell in which four ranks run, and their processes."""
    place = lab.add(LOOP)
    lab.start(place)
    lab.wait(
        "(JSON.stringify(cells[argument].outputs.toJSON()).match(/process \\d+/g) ?? []).length === 4",
        place,
    )
    return place, [int(number) for number in re.findall(r"process (\d+)", lab.text(place))]


def interrupt_by_keyboard(lab: Lab) -> None:
    lab.focus()
    lab.page.keyboard.press("i")
    lab.page.keyboard.press("i")


def interrupt_by_button(lab: Lab) -> None:
    lab.page.locator(
        ".jp-NotebookPanel-toolbar [data-jp-item-name='interrupt'] >> visible=true"
    ).click()


@pytest.mark.parametrize("interrupt", [interrupt_by_keyboard, interrupt_by_button])
def test_an_interrupt_ends_the_ranks_and_leaves_the_kernel(
    first: Lab,
    server: Server,
    interrupt: Callable[[Lab], None],
    assert_no_orphans: Callable[..., None],
) -> None:
    lab = first
    place, ranks = ranks_that_loop(lab)
    kernel = lab.kernel_process()
    began = time.monotonic()
    interrupt(lab)
    lab.idle()
    print(f"The cell ended {time.monotonic() - began:.1f} s after the interrupt.")
    assert lab.outputs(place)[-1]["ename"] == "Interrupted"
    assert_no_orphans(ranks)
    assert_no_orphans(server.orphans())
    after = lab.add(AFTERWARDS)
    lab.run(after)
    assert lab.text(after) == "afterwards [0, 1]\n"
    assert lab.kernel_process() == kernel


def test_a_restart_ends_looping_ranks_and_the_next_launch_works(
    first: Lab, server: Server, assert_no_orphans: Callable[..., None]
) -> None:
    lab = first
    place, ranks = ranks_that_loop(lab)
    before = [pid for pid in server.processes() if pid not in server.own()]
    assert set(ranks) <= set(before)
    kernel = lab.kernel_process()
    lab.restart()
    assert_no_orphans(before)
    assert_no_orphans(server.orphans())
    lab.write(place, f"{IMPORTS}\n{AFTERWARDS}")
    lab.run(place)
    assert lab.text(place) == "afterwards [0, 1]\n"
    assert lab.kernel_process() != kernel
