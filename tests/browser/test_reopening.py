"""A notebook that was saved and is opened again: its widgets are there, or their pictures."""

from __future__ import annotations

import pytest

from tests.browser.lab import Lab
from tests.browser.widgets import Widget

NOTEBOOK = "10_four_dimensions/10_four_dimensions.ipynb"
CELLS = ("import mesh_explorer\n", "import strategy_advisor\n")
SHOWN = """(() => {
    const cell = document.querySelector(`.jp-Notebook .jp-Cell[data-windowed-list-index="${argument}"]`);
    const outputs = [...(cell?.querySelectorAll(".jp-OutputArea-output") ?? [])];
    return outputs.some(output => /Error (displaying|creating|loading) widget/i.test(output.innerText)
        || output.querySelector(".jupyter-widgets, img"));
})()"""


@pytest.mark.parametrize("cell", CELLS, ids=["mesh_explorer", "strategy_advisor"])
def test_a_widget_is_there_when_the_notebook_is_opened_again(lab: Lab, cell: str) -> None:
    lab.open(NOTEBOOK)
    place = lab.find(cell)
    lab.run(place)
    widget = Widget(lab, place)
    assert not widget.click(0)
    lab.idle()
    lab.save()
    lab.server.end_kernels()
    lab.open(NOTEBOOK)
    node = lab.go_to(place)
    lab.wait(SHOWN, place)
    outputs = node.locator(".jp-OutputArea-output")
    assert "Error" not in outputs.first.inner_text()
    assert outputs.locator(".jupyter-widgets, img").first.is_visible()
