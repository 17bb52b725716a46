"""The model of a step in four functions of plain numbers, against the package's and published ones."""

from __future__ import annotations

from typing import Any

import pytest

from course_lib.checks.notebooks.four_dimensions.timing import (
    GRID,
    TABLE_1,
    fit,
    row_args,
    row_tflops,
)
from course_lib.models import GPTConfig
from course_lib.planning import Layout, by_hand, published
from course_lib.planning.memory import memory_per_gpu
from course_lib.planning.roofline import Work
from course_lib.planning.step_time import step_seconds
from course_lib.planning.topology import a100_cluster


def test_a_step_by_hand_takes_as_long_as_the_packages() -> None:
    """175B parameters on 1,024 A100s: 16 stages, 8 replicas, 8 GPUs to a layer."""
    gpt = GPTConfig(51_200, 2048, 96, 96, 12288)
    layout = Layout({"pp": 16, "dp": 8, "tp": 8}, recompute="full", sequence=True)
    numbers = {
        "pp": 16, "dp": 8, "cp": 1, "tp": 8,
        "microbatch": 1, "chunks": 1, "zero": 0, "recompute": "full", "sequence": True,
    }  # fmt: skip
    seconds = by_hand.step_seconds(gpt, numbers, 1536, by_hand.A100, by_hand.SELENE, 0.63)
    package = step_seconds(gpt, layout, 1536, a100_cluster(1024), Work(0.63))
    assert seconds == pytest.approx(package, rel=0.01)


GPT = GPTConfig(51_200, 2048, 96, 96, 12288)


def plain(layout: Layout) -> dict[str, Any]:
    names = ("microbatch", "chunks", "zero", "recompute", "sequence")
    return {**layout.sizes, **{name: getattr(layout, name) for name in names}}


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize(
    ("pp", "dp", "tp", "chunks", "zero"),
    [(16, 8, 8, 1, 0), (8, 16, 8, 4, 1), (1, 128, 8, 1, 3), (8, 32, 4, 1, 1)],
)
def test_it_is_the_packages_model(
    recompute: str, pp: int, dp: int, tp: int, chunks: int, zero: int
) -> None:
    layout = Layout({"pp": pp, "dp": dp, "tp": tp}, 1, chunks, zero, recompute, sequence=True)
    ours = by_hand.step_seconds(GPT, plain(layout), 1536, by_hand.A100, by_hand.SELENE, 0.63)
    theirs = step_seconds(GPT, layout, 1536, a100_cluster(1024), Work(0.63))
    assert ours == pytest.approx(theirs, rel=0.01)
    gb = by_hand.memory_per_gpu(GPT, plain(layout), 1536)
    # With one stage the package also counts the logits, 6 bytes each.
    logits = 6 * 2048 * 51_200 / tp / 1e9 if pp == 1 else 0
    assert gb + logits == pytest.approx(memory_per_gpu(GPT, layout, 1536) / 1e9, rel=0.01)


def test_the_rows_of_the_exercise_are_those_that_were_printed() -> None:
    for mine, row in zip(TABLE_1, published.TABLE_1, strict=True):
        assert mine[:9] == (
            float(row.name[:-1]), row.config.heads, row.config.width, row.config.layers, row.tp, row.pp,
            row.gpus, row.batch, row.tflops,
        )  # fmt: skip


def test_table_1_fitted_on_one_row() -> None:
    """The constant of the 76.1B row predicts the nine others within 8 %."""
    rates = [
        [row_tflops(row, by_hand.step_seconds(*row_args(row, e))) for e in GRID] for row in TABLE_1
    ]
    ratios = fit(rates)
    assert ratios[5] == pytest.approx(1)
    assert all(abs(ratio - 1) < 0.08 for ratio in ratios)


def test_lecture_001s_layout_in_gb() -> None:
    """175B on 8 x 16 x 8: 44 GB of states, 13 with ZeRO-1; activations 34.4 or 10.3 GB."""
    layout = {
        **by_hand.LEAN,
        "pp": 8,
        "dp": 16,
        "tp": 8,
        "sequence": True,
        "recompute": "selective",
    }
    small = {**layout, "zero": 1}
    saved = by_hand.memory_per_gpu(GPT, layout, 1536) - by_hand.memory_per_gpu(GPT, small, 1536)
    assert saved == pytest.approx(43.75 - 13.0, rel=0.03)  # and the table
    whole = {**layout, "recompute": "none"}
    scores = by_hand.memory_per_gpu(GPT, whole, 1536) - by_hand.memory_per_gpu(GPT, layout, 1536)
    assert scores == pytest.approx(34.4 - 10.3, rel=0.01)


def test_the_best_layout_can_be_cut_and_fits_and_none_is_faster() -> None:
    best = by_hand.best_layout(GPT, 1024, 1536, by_hand.A100, by_hand.SELENE)
    assert best is not None and (best["pp"], best["dp"], best["tp"]) == (8, 32, 4)
    assert not by_hand.obstacle(GPT, best, 1536)
    assert by_hand.memory_per_gpu(GPT, best, 1536) <= 76
    assert by_hand.best_layout(GPT, 8, 8, by_hand.A100, by_hand.SELENE) is None
