"""Operations by the axis of a mesh, and the timeline that is filled by axis."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from course_lib.ledger.ledger import Ledger
from course_lib.mesh.coordinates import axis_ranks
from course_lib.pictures import colours, marks
from course_lib.pictures.axes import BINS, ByAxis
from tests.ledger.made_ledgers import MadeRun, ring
from tests.ledger.test_figures import arrows, boxes, collection, texts

CUBE = {"pp": 2, "dp": 2, "tp": 2}
SIZES = [
    CUBE,
    {"pp": 3, "dp": 2, "tp": 4},
    {"dp": 5, "tp": 1},
    {"pp": 2, "dp": 2, "cp": 2, "tp": 2},
]


def operation(op: str, rank: int, group: tuple[int, ...], peer: int | None = None) -> Any:
    return SimpleNamespace(op=op, rank=rank, group=group, peer=peer)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_a_group_is_named_by_the_axes_in_which_its_ranks_differ(sizes: dict[str, int]) -> None:
    world = int(np.prod(list(sizes.values())))
    by_axis, names = ByAxis(sizes, world), list(sizes)
    for rank in range(world):
        for chosen in product([False, True], repeat=len(names)):
            axes = tuple(name for name, taken in zip(names, chosen, strict=True) if taken)
            group = tuple(sorted(axis_ranks(rank, sizes, axes))) if axes else (rank,)
            wanted = tuple(name for name in axes if sizes[name] > 1)
            assert by_axis.of(operation("all_reduce", rank, group)) == wanted


def test_a_message_has_the_axes_of_its_two_ends_whatever_its_group() -> None:
    by_axis, world = ByAxis(CUBE, 8), tuple(range(8))
    for op, rank, peer, wanted in (
        ("send", 0, 1, ("tp",)), ("recv", 6, 4, ("dp",)), ("send", 3, 7, ("pp",)),
        ("send", 0, 7, ("pp", "dp", "tp")), ("recv", 2, None, ("pp", "dp", "tp")),
    ):  # fmt: skip
        assert by_axis.of(operation(op, rank, world, peer)) == wanted


def test_groups_that_are_not_along_an_axis_and_wrong_sizes() -> None:
    mesh: Any = SimpleNamespace(sizes=CUBE)
    by_axis = ByAxis(mesh, 8)
    assert by_axis.of(operation("all_reduce", 0, (0, 5))) == ()
    assert by_axis.of(operation("all_reduce", 0, (0, 1, 2))) == ()
    assert ByAxis({}, 1).of(operation("all_reduce", 0, (0,))) == ()
    with pytest.raises(ValueError, match="has 8 places, but the ledger has 4 ranks"):
        ByAxis(CUBE, 4)


def a_run() -> Ledger:
    """On 2 x 2: a message along pp, a collective along tp, one along both, one along neither."""
    run = MadeRun(4)
    run.add(2, "recv", 0, 8, 0.000, 0.000, 0.002)
    run.add(0, "send", 2, 8, 0.001, 0.001, 0.002)
    run.built_in("all_reduce", 0, group=(0, 1))
    run.built_in("all_gather", 0)
    run.built_in("barrier", 0, group=(0, 3))
    return run.ledger()


def gids(figure) -> set[str]:
    return {one.get_gid() for one in figure.axes[0].collections if one.get_paths()}


def test_every_operation_has_the_fill_and_the_hatch_of_its_axis() -> None:
    sizes = {"pp": 2, "tp": 2}
    figure = a_run().timeline(axes=sizes)
    assert {"blocked pp", "collectives tp", "collectives pp", "collectives"} <= gids(figure)
    assert next(rank for *_, rank in boxes(figure, "blocked pp")) in (0, 2)
    for axis in sizes:
        drawn = collection(figure, f"collectives {axis}")
        wanted = [int(colours.AXES[axis][i : i + 2], 16) / 255 for i in (1, 3, 5)]
        assert np.allclose(np.asarray(drawn.get_facecolor())[0, :3], wanted)
        assert drawn.get_hatch() == colours.AXIS_HATCHES[axis]
    legend = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert [text for text in legend if "along" in text] == ["along pp", "along tp", "along no axis"]
    assert "blocked in communication" not in legend and "message" in legend
    assert len(arrows(figure)) == 1
    assert any("striped: a group over several axes" in text for text in texts(figure))


def test_a_group_over_two_axes_is_striped() -> None:
    figure = a_run().timeline(axes={"pp": 2, "tp": 2})
    heights = {
        axis: {
            round(float(np.ptp(np.asarray(path.vertices)[:, 1])), 3)
            for path in collection(figure, f"collectives {axis}").get_paths()
        }
        for axis in ("pp", "tp")
    }
    whole, half = round(2 * marks.HALF_ROW, 3), round(marks.HALF_ROW, 3)
    assert heights == {"pp": {half}, "tp": {half, whole}}


def test_without_axes_nothing_changes() -> None:
    figure = a_run().timeline()
    assert not [gid for gid in gids(figure) if gid and ("pp" in gid or "tp" in gid)]
    drawn = collection(figure, "collectives")
    assert np.allclose(np.asarray(drawn.get_facecolor())[0, :3], 0xB8 / 255)
    legend = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert "blocked in communication" in legend and "built-in collective" in legend


def test_columns_are_filled_by_the_share_of_each_axis(seed: int) -> None:
    """Of every column, the heights of an axis are the share of time for which it blocked the rank."""
    rng = np.random.default_rng(seed)
    by_axis, moment = ByAxis(CUBE, 8), 0.0
    spans: list[tuple[float, float, int, tuple[str, ...]]] = []
    while moment < 100:
        first = moment + rng.random() * 0.3
        moment = first + rng.random() * 0.3
        spans.append((first, moment, 5, (("pp",), ("tp",))[int(rng.integers(2))]))
    pieces = by_axis.shares(spans, (0.0, 100.0), 0.2)
    for names in (("pp",), ("tp",)):
        total = sum(
            min(last, 100.0) - min(first, 100.0) for first, last, _, n in spans if n == names
        )
        area = sum(
            (box[1][0] - box[0][0]) * (box[2][1] - box[1][1]) / 0.4
            for box, n in pieces
            if n == names
        )
        assert area == pytest.approx(total)
    lows = [vertex[1] for box, _ in pieces for vertex in box]
    assert min(lows) >= 4.8 - 1e-9 and max(lows) <= 5.2 + 1e-9


def test_thousands_of_operations_are_drawn_as_columns() -> None:
    run = MadeRun(4)
    for _ in range(BINS + 1):
        run.built_in("all_reduce", 0, group=(0, 1))
    figure = run.ledger().timeline(axes={"pp": 2, "tp": 2})
    drawn = boxes(figure, "blocked tp")
    assert 0 < len(drawn) <= 2 * BINS and {rank for *_, rank in drawn} == {0, 1}


def test_axes_of_other_names_have_a_fill_too() -> None:
    figure = a_run().timeline(axes={"outer": 2, "inner": 2})
    assert {"collectives inner", "collectives outer"} <= gids(figure)


def test_the_fills_of_axes_differ_from_those_of_compute() -> None:
    compute = {colours.FORWARD, colours.BACKWARD, colours.WEIGHT_GRADIENT, colours.IDLE}
    assert not compute & set(colours.AXES.values())
    assert len(set(colours.AXIS_HATCHES.values())) == len(colours.AXES) == 5


def test_many_messages_are_left_out_where_they_would_hide_the_axes() -> None:
    figure = ring(4, rounds=marks.MANY).ledger().timeline(axes={"pp": 2, "tp": 2})
    assert arrows(figure) == [] and "bundles" not in gids(figure)
    assert any("messages are left out" in text for text in texts(figure))
