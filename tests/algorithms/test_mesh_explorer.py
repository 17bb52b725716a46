"""The mesh explorer: the part, the groups and the bytes of a rank, its picture, and its controls."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import ipywidgets
import pytest

from course_lib import facts
from course_lib.mesh.coordinates import axis_ranks
from course_lib.pictures import colours
from course_lib.pictures.mesh_explorer import (
    MOST,
    TASKS,
    MeshExplorer,
    Setting,
    _dress,
    mesh_explorer,
)

SMALL = Setting("small GPT")  # 2 x 2 x 2 x 2, rank 5


def test_the_chosen_rank_shares_a_group_with_one_rank_of_each_axis(explorer: MeshExplorer) -> None:
    assert explorer.marks(SMALL) == {4: "tp", 7: "cp", 1: "dp", 13: "pp", 5: ""}
    turned = replace(SMALL, order=("tp", "cp", "dp", "pp"))
    assert explorer.marks(turned) == {4: "pp", 7: "dp", 1: "cp", 13: "tp", 5: ""}


@pytest.fixture
def explorer() -> MeshExplorer:
    return mesh_explorer()


def test_the_table_says_what_the_rank_holds_reads_and_sends(explorer: MeshExplorer) -> None:
    table, task = explorer.table(SMALL), TASKS["small GPT"]
    assert table.startswith("rank 5 of 16: pp 0, dp 1, cp 0, tp 1\n")
    for line in (
        "layers    0 to 7 of 16, embedding\n", "heads     8 to 15 of 16 in each of them\n",
        "rows      32 to 63 of 64, in 4 microbatches\n",
        "positions 0 to 31 and 96 to 127 of 128 in each row\n",
    ):  # fmt: skip
        assert line in table
    sent = facts.axis_bytes(task.shape, SMALL.mesh, 4, task.rows, task.seq)
    rows = {line.split()[0]: line.split() for line in table.splitlines()[7:]}
    assert {*rows} == {"pp", "dp,cp", "cp", "tp"}
    for name, axis, wire, group in (
        ("pp", "pp", "network", "5, 13"), ("dp,cp", "dp", "NVLink", "1, 3, 5, 7"),
        ("cp", "cp", "NVLink", "5, 7"), ("tp", "tp", "NVLink", "4, 5"),
    ):  # fmt: skip
        assert rows[name][1:] == [wire, f"{sent[axis]:,.0f}", *group.split()]


def test_both_ends_of_the_pipeline_and_a_single_stage(explorer: MeshExplorer) -> None:
    last = replace(SMALL, rank=15)
    assert "layers    8 to 15 of 16, head\n" in explorer.table(last)
    alone = replace(SMALL, sizes={"pp": 1, "dp": 1, "cp": 1, "tp": 2}, rank=0)
    table = explorer.table(alone)
    assert (
        "layers    0 to 15 of 16, embedding, head\n" in table and "positions 0 to 127 of" in table
    )
    assert "dp     -                     0   0" in table


def test_a_mesh_that_cannot_be_is_a_sentence(explorer: MeshExplorer) -> None:
    sizes = {"pp": 1, "dp": 1, "cp": 1, "tp": 1}
    assert explorer.obstacle(SMALL) == ""
    for change, says in (
        ({"pp": 16, "dp": 16}, "256 GPUs: at most 64 GPUs are drawn."),
        ({"tp": 16, "pp": 4}, ""),
    ):
        assert explorer.crowd(replace(SMALL, sizes={**sizes, **change}, rank=0)) == says
    odd = mesh_explorer({"odd": replace(TASKS["small GPT"], seq=30)})
    assert "30 tokens cannot be cut into 4" in odd.obstacle(replace(SMALL, task="odd"))
    few = mesh_explorer({"few": replace(TASKS["small GPT"], rows=3)})
    assert "3 rows cannot be cut into 8 equal parts" in few.obstacle(replace(SMALL, task="few"))
    with pytest.raises(ValueError, match="at least one task"):
        mesh_explorer({})


def test_the_picture_has_the_fill_and_the_hatch_of_each_axis(explorer: MeshExplorer) -> None:
    figure = explorer.chart(SMALL)
    gpus = {p.get_gid(): p for p in figure.axes[0].patches if p.get_gid()}
    assert {*gpus} == {f"gpu {rank}" for rank in range(16)}
    for rank, axis in explorer.marks(SMALL).items():
        assert gpus[f"gpu {rank}"].get_hatch() == (colours.AXIS_HATCHES.get(axis, ""))
    names = [text.get_text() for text in figure.axes[0].texts]
    assert "node 0" in names and "node 1" in names and "node 2" not in names
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["pp", "dp", "cp", "tp"]


# ---- the widget


class Shown:
    """The parts of the widget by name."""

    def __init__(self, view: Any):
        settings, self.sentence, self.grid, self.table = view.children
        rows = [one for box in settings.children for one in box.children]
        columns = [one.children[0] if hasattr(one, "children") else one for one in rows]
        self.controls = {one.description: one for one in columns}

    @property
    def buttons(self) -> dict[int, Any]:
        rows = [row for node in self.grid.children for row in node.children[1:]]
        found = [button for row in rows for button in row.children]
        return {int(button.description.strip("[]").split()[0]): button for button in found}


def test_a_click_chooses_a_rank(explorer: MeshExplorer) -> None:
    shown = Shown(explorer.widget())
    assert len(shown.grid.children) == 2 and len(shown.buttons) == 16
    assert shown.buttons[13].description == "13 pp"
    assert shown.buttons[13].style.button_color == colours.AXES["pp"]
    shown.buttons[8].click()
    assert "rank 8 of 16: pp 1, dp 0, cp 0, tp 0" in shown.table.value
    assert shown.buttons[0].description == "0 pp" and shown.buttons[9].description == "9 tp"
    assert shown.buttons[5].style.button_color is None


def test_the_controls_change_the_mesh_and_say_what_cannot_be(explorer: MeshExplorer) -> None:
    shown = Shown(explorer.widget())
    assert {*shown.controls} == {"pp", "dp", "cp", "tp", "order", "a node", "model"}
    for name, value in (
        ("order", "tp > cp > dp > pp"), ("a node", 4), ("tp", 4), ("model", "GPT-3"),
    ):  # fmt: skip
        before = shown.table.value, len(shown.grid.children)
        shown.controls[name].value = value
        assert (shown.table.value, len(shown.grid.children)) != before, name
        assert shown.sentence.value == ""
    shown.controls["dp"].value = 16
    assert shown.sentence.value == "256 GPUs: at most 64 GPUs are drawn."
    assert shown.grid.layout.display == "none" and "of 256" in shown.table.value
    shown.controls["dp"].value = 1
    assert shown.sentence.value == "" and shown.grid.layout.display == ""
    shown.buttons[15].click()
    shown.controls["tp"].value = 1  # rank 15 is no longer there
    assert "rank 3 of 4" in shown.table.value


def test_the_groups_can_be_ones_own(explorer: MeshExplorer) -> None:
    def mine(rank: int, sizes: dict[str, int], axis: Any) -> list[int]:
        return axis_ranks(rank, dict(reversed(sizes.items())), axis)

    assert mesh_explorer(axis_ranks=mine).marks(SMALL) != explorer.marks(SMALL)

    def stub(rank: int, sizes: dict[str, int], axis: Any) -> list[int]:
        raise NotImplementedError

    shown = Shown(mesh_explorer(axis_ranks=stub).widget())
    assert shown.sentence.value == "axis_ranks is not written yet."


def test_buttons_of_old_widgets_have_no_colour_of_text() -> None:
    """ipywidgets 7: the chosen GPU is told by brackets, since white on black is not to be had."""

    class Style:
        button_color = font_weight = ""

    class Button:
        def __init__(self) -> None:
            self.description, self.style = "", Style()

    old = Button()
    _dress(old, 5, "")
    assert old.description == "[5]" and old.style.button_color == colours.ALARM
    _dress(old, 5, "tp")
    assert old.description == "5 tp" and old.style.button_color == colours.AXES["tp"]
    new = ipywidgets.Button()
    _dress(new, 5, "")
    assert new.description == ("5" if hasattr(new.style, "text_color") else "[5]")


def test_gpus_that_are_not_chosen_follow_the_theme_and_the_chosen_one_has_a_frame() -> None:
    button = ipywidgets.Button()
    _dress(button, 5, "")
    assert "white" in button.layout.border_top
    for axis in ("tp", None):
        _dress(button, 5, axis)
        assert button.layout.border_top is None
    assert button.style.button_color is None and button.style.text_color is None


def test_outside_a_kernel_there_is_a_still_picture(explorer: MeshExplorer) -> None:
    bundle = explorer._repr_mimebundle_()
    assert {*bundle} == {"text/plain", "image/png"}
    assert base64.b64decode(bundle["image/png"]).startswith(b"\x89PNG")
    assert bundle["text/plain"] == "rank 5 of 16: pp 0, dp 1, cp 0, tp 1"
    assert MOST >= 16
