"""Every widget of the course can be changed by mouse and by keyboard, and is there again after a save.

The keyboard tries every control. The mouse tries one of each kind, since a second slider would be the same
element of ipywidgets again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

from tests.browser.lab import Lab
from tests.browser.widgets import Widget, describe, is_chosen

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = "widgets.ipynb"
STEPPER = """\
from course_lib import launch
from course_lib.collectives import ring_all_reduce
from course_lib.pictures.stepper import stepper
from course_lib.ledger.watch import contribution, watch

def ring():
    tensor = contribution(4)
    with watch(tensor) as film:
        ring_all_reduce(tensor)
    return film

run = launch(ring, world_size=4, backend="gloo")
stepper(run.ledger, run)"""
SCHEDULES = """\
from course_lib.pipeline import gpipe, one_f_one_b
from course_lib.pictures.schedule_explorer import explorer
explorer({"gpipe": gpipe, "one_f_one_b": one_f_one_b})"""
# A cell for each widget, as notebooks show it, with the library's functions in place of the student's.
CELLS = {
    "pictures/stepper.py": [STEPPER],
    "pictures/calculator.py": [
        "from course_lib.pictures.calculator import calculator\ncalculator()"
    ],
    "pictures/memory_figures.py": [
        "from course_lib.pictures.memory_figures import strategy_map\n"
        "strategy_map(lambda *_: (1, False))"
    ],
    "pictures/fsdp_explorer.py": [
        "from course_lib.pictures.fsdp_explorer import fsdp_explorer\nfsdp_explorer()"
    ],
    "pictures/schedule_explorer.py": [SCHEDULES],
    "pictures/schedule_workbench.py": [
        "from course_lib.pictures.schedule_workbench import Workbench\n"
        'Workbench(3, 4).place("0F0 1F0 2F0 2B0")'
    ],
    "pictures/format_explorer.py": [
        "from course_lib.pictures.format_explorer import formats\nformats(0.1, 'fp16')",
        "import torch\nfrom course_lib.pictures.format_explorer import gradients\n"
        "gradients(torch.rand(1000) * 1e-6)",
    ],
    "pictures/mesh_explorer.py": [
        "from course_lib.pictures.mesh_explorer import mesh_explorer\nmesh_explorer()"
    ],
    "pictures/router_playground.py": [
        "from course_lib.pictures.router_playground import router_playground\nrouter_playground()"
    ],
    "pictures/operations_room.py": [
        "from course_lib.pictures.operations_room import operations_room\noperations_room()"
    ],
    "pictures/strategy_advisor.py": [
        "from course_lib.pictures.strategy_advisor import strategy_advisor\nstrategy_advisor()"
    ],
}
ALL = [(module, source) for module, sources in CELLS.items() for source in sources]
# `missing` has the words for a widget that is not there. They may show while the saved state is being read.
SHOWN = """(() => {
    const cell = document.querySelector(`.jp-Notebook .jp-Cell[data-windowed-list-index="${argument}"]`);
    const outputs = [...(cell?.querySelectorAll(".jp-OutputArea-output") ?? [])];
    const missing = /(Error displaying|Error creating|Loading) widget/i;
    return outputs.some(output => output.querySelector(".jupyter-widgets, img"))
        && !outputs.some(output => missing.test(output.innerText));
})()"""
STEPS = ("submit ‹", "submit ›")  # the buttons beside a slider
MOST_ALIKE = 3  # of buttons that differ in their number alone, such as the GPUs of a mesh


def test_every_module_with_widgets_is_tried_here() -> None:
    library = ROOT / "course_lib"
    with_widgets = {
        path.relative_to(library).as_posix()
        for path in library.rglob("*.py")
        if re.search(
            r"^\s*(import|from) ipywidgets", path.read_text(encoding="utf-8"), re.MULTILINE
        )
    }
    assert with_widgets == set(CELLS)


@pytest.fixture(scope="module")
def gallery(shared_lab: Lab, course: Path) -> Lab:
    """A notebook in the student's folder with a cell for each widget."""
    cells = [nbformat.v4.new_code_cell(source) for _, source in ALL]
    # With cells around them, a key that goes to the notebook has an effect on it.
    first, last = (nbformat.v4.new_markdown_cell(text) for text in ("# Widgets", "The end"))
    notebook = nbformat.v4.new_notebook(cells=[first, *cells, last])
    notebook.metadata["kernelspec"] = {
        "display_name": "Python 3",
        "name": "python3",
        "language": "python",
    }
    nbformat.write(notebook, course / "work" / NOTEBOOK)
    shared_lab.open(NOTEBOOK)
    return shared_lab


def worth_trying(widget: Widget, by: str) -> Iterator[int]:
    """The controls that are to be changed: of many buttons alike the first ones, and by mouse one of a kind.

    The widget is asked anew for each, since a change may bring other controls, or take some away.
    """
    number = alike = 0
    done: set[str] = set()  # kinds of which one was tried
    moved = False  # whether the newest slider was
    while number < widget.controls().count():
        control = widget.controls().nth(number)
        name = describe(control)
        kind = name.partition(" ")[0]
        alike = alike + 1 if kind in ("button", "submit") else 0
        # At a slider's first option a step back changes nothing, so its steps are tried after it.
        wanted = moved if name in STEPS else by == "keyboard" or kind not in done
        worth = wanted and alike <= MOST_ALIKE and not is_chosen(control)
        moved = worth if kind == "slider" else moved
        if worth:
            done.add(kind)
            yield number
        number += 1


@pytest.mark.parametrize("by", ["mouse", "keyboard"])
@pytest.mark.parametrize(
    "place", range(1, len(ALL) + 1), ids=[source.split("\n")[-1] for _, source in ALL]
)
def test_controls_can_be_changed(gallery: Lab, place: int, by: str) -> None:
    if gallery.count(place) is None:
        gallery.run(place)
    assert not gallery.red()
    widget = Widget(gallery, place)
    before = widget.picture()
    failures = []
    for number in worth_trying(widget, by):
        failures.append(widget.press(number) if by == "keyboard" else widget.click(number))
        gallery.idle()
    assert failures, "the widget has no controls"
    gallery.shot(f"widget_{place}_{by}")
    assert not any(failures), "\n".join(filter(None, failures))
    widget.wait_for_another_picture(before)
    assert not gallery.red()


def run_all_of(gallery: Lab) -> None:
    for place in range(1, len(ALL) + 1):
        if gallery.count(place) is None:
            gallery.run(place)
            Widget(gallery, place)


def test_each_widget_is_there_when_the_notebook_is_opened_again(gallery: Lab) -> None:
    run_all_of(gallery)
    gallery.save()
    gallery.server.end_kernels()
    gallery.open(NOTEBOOK)
    for place in range(1, len(ALL) + 1):
        node = gallery.go_to(place)
        gallery.wait(SHOWN, place)
        assert (
            node.locator(".jp-OutputArea-output")
            .locator(".jupyter-widgets, img")
            .first.is_visible()
        )
    gallery.shot("widgets_again")


def test_a_restart_before_the_notebook_is_saved_costs_no_widget(gallery: Lab, course: Path) -> None:
    run_all_of(gallery)
    gallery.save()
    gallery.restart()
    gallery.add("'saved after the restart'")
    gallery.save()
    saved = nbformat.read(course / "work" / NOTEBOOK, as_version=4)
    assert "after the restart" in saved.cells[-1].source
    states = saved.metadata.widgets["application/vnd.jupyter.widget-state+json"].state
    shown = [
        output.data["application/vnd.jupyter.widget-view+json"].model_id
        for cell in saved.cells
        for output in cell.get("outputs", [])
    ]
    assert len(shown) == len(ALL)
    assert set(shown) <= set(states)
