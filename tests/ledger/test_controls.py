"""Every control of a widget works from the keyboard, in front ends that take the arrow keys for commands."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ipywidgets
import pytest

from course_lib import pipeline
from course_lib.pictures.calculator import calculator
from course_lib.pictures.controls import choice, stepped
from course_lib.pictures.format_explorer import formats
from course_lib.pictures.fsdp_explorer import fsdp_explorer
from course_lib.pictures.mesh_explorer import mesh_explorer
from course_lib.pictures.operations_room import operations_room
from course_lib.pictures.router_playground import router_playground
from course_lib.pictures.schedule_explorer import explorer
from course_lib.pictures.schedule_workbench import Workbench
from course_lib.pictures.strategy_advisor import strategy_advisor

LIBRARY = Path(__file__).resolve().parents[2] / "course_lib"
ARROWS_ALONE = {"Dropdown", "Select", "RadioButtons", "SelectMultiple"}
BOXES: dict[str, Callable[[], Any]] = {
    "calculator": calculator,
    "formats": formats,
    "fsdp": fsdp_explorer,
    "mesh": mesh_explorer,
    "operations": operations_room,
    "router": router_playground,
    "pipeline": lambda: explorer({"gpipe": pipeline.gpipe}),
    "strategy": strategy_advisor,
    "workbench": lambda: Workbench(3, 4),
}


def test_no_widget_of_the_library_needs_the_arrow_keys() -> None:
    used = {
        node.attr
        for path in LIBRARY.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "widgets"
    }
    assert "SelectionSlider" in used
    assert not used & ARROWS_ALONE


def boxes(widget: Any) -> Iterator[Any]:
    yield widget
    for child in getattr(widget, "children", ()):
        yield from boxes(child)


@pytest.mark.parametrize("name", BOXES)
def test_every_slider_of_options_stands_between_its_label_and_two_buttons(name: str) -> None:
    every = list(boxes(BOXES[name]().widget()))
    sliders = {each for each in every if isinstance(each, ipywidgets.SelectionSlider)}
    rows = [
        each.children
        for each in every
        if isinstance(each, ipywidgets.HBox) and each.children and each.children[0] in sliders
    ]
    assert {row[0] for row in rows} == sliders
    for _, *buttons in rows:
        assert [type(button) for button in buttons] == [ipywidgets.Button] * 2


def test_the_buttons_go_through_all_options_and_stop_at_the_ends() -> None:
    slider = choice(ipywidgets, [2**k for k in range(6)], 8, "tokens")
    (row,) = stepped(ipywidgets, [slider])
    _, less, more = row.children
    seen = []
    for button in [more] * 4 + [less] * 7:
        button.click()
        seen.append(slider.value)
    assert seen == [16, 32, 32, 32, 16, 8, 4, 2, 1, 1, 1]


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ([2, 4, 8], "ToggleButtons"),
        ([1, 2, 4, 8, 16], "SelectionSlider"),
        (["none", "selective", "full"], "ToggleButtons"),
        (["scores are stored (2021)", "flash, sums overlap (2024)"], "ToggleButtons"),
        ([f"Llama-{k}" for k in range(9)], "SelectionSlider"),
    ],
)
def test_a_few_short_options_are_buttons(options: list, kind: str) -> None:
    control = choice(ipywidgets, iter(options), options[1], "which")
    assert type(control).__name__ == kind
    assert control.value == options[1] and control.description == "which"
    assert stepped(ipywidgets, [control])[0] is control or kind == "SelectionSlider"
