"""The bytes of four axes in closed form, against what ranks were seen to send, and the wire of an axis."""

from __future__ import annotations

import pytest

from course_lib.facts import gpu, layer_parameters, link, transformer_parameters
from course_lib.facts.four_dimensions import ACROSS, INSIDE, axis_bytes, rank_parameters, wire
from course_lib.models import GPTConfig
from course_lib.planning import Cluster, Layout

SMALL = GPTConfig(256, 128, 4, 4, 64)
CUBE = {"pp": 2, "dp": 2, "tp": 2}


@pytest.mark.parametrize(
    ("sizes", "stage", "measured"),
    [
        (CUBE, 0, {"tp": 589_824, "pp": 98_304, "dp": 267_008, "cp": 0}),
        (CUBE, 1, {"tp": 592_896, "pp": 98_304, "dp": 234_752, "cp": 0}),
        ({"pp": 2, "dp": 1, "cp": 2, "tp": 2}, 0, {"cp": 524_288, "dp": 267_008}),
    ],
)
def test_bytes_of_real_ranks(sizes: dict[str, int], stage: int, measured: dict[str, int]) -> None:
    """As the ledger booked them for ranks 0 and 7 of 2 x 2 x 2, and for rank 0 of 2 x 2 with cp 2."""
    sent = axis_bytes(SMALL, sizes, 4, 8, 64, stage)
    assert {axis: sent[axis] for axis in measured} == measured


def test_the_parameters_of_all_stages_are_the_models() -> None:
    for tied in (True, False):
        shape = GPTConfig(256, 128, 4, 4, 64, tied=tied)
        parts = [rank_parameters(shape, {"pp": 4}, stage) for stage in range(4)]
        twice = shape.vocab_size * shape.width if tied else 0
        assert sum(parts) - twice == transformer_parameters(shape)
        assert rank_parameters(shape, {"dp": 8}, 0) == transformer_parameters(shape)
    assert rank_parameters(SMALL, {"pp": 4, "tp": 2}, 1) > layer_parameters(SMALL) / 2


def test_one_rank_sends_nothing_and_odd_cuts_are_refused() -> None:
    assert set(axis_bytes(SMALL, {"pp": 1}, 2, 4, 64).values()) == {0}
    with pytest.raises(ValueError, match="4 layers cannot be cut into 3"):
        axis_bytes(SMALL, {"pp": 3}, 2, 4, 64)
    with pytest.raises(ValueError, match="stage 2 must lie in 0"):
        axis_bytes(SMALL, CUBE, 2, 8, 64, stage=2)


@pytest.mark.parametrize("per_node", [2, 4, 6, 8, 12])
@pytest.mark.parametrize(
    "sizes",
    [
        {"pp": 2, "dp": 2, "tp": 2},
        {"pp": 3, "dp": 2, "tp": 4},
        {"tp": 16, "dp": 2},
        {"dp": 2, "cp": 3, "tp": 4},
        {"tp": 2, "pp": 4, "dp": 3},
    ],
)
def test_the_wire_is_that_of_the_slowest_group(sizes: dict[str, int], per_node: int) -> None:
    """Against the nodes of all groups, one by one."""
    layout = Layout(sizes)
    cluster = Cluster(layout.gpus, per_node, gpu("A100"), link("NVLink 3"), link("InfiniBand HDR"))
    for axis in sizes:
        crossing = any(cluster.crosses(layout.ranks(axis, rank)) for rank in range(layout.gpus))
        assert wire(sizes, axis, per_node) == (ACROSS if crossing else INSIDE), axis
