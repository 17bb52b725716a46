"""The figures of notebook 01, and the recipes that it runs."""

from __future__ import annotations

import pytest
import torch

from course_lib import facts, planning
from course_lib.facts.hardware import gpu
from course_lib.models import GPT, PRESETS, PUBLISHED, GPTConfig
from course_lib.pictures import plan_figures

RUN = {
    "float32": {},
    "autocast": {"autocast": True},
    "zero": {"dtype": torch.bfloat16, "master": True},
    "pure bf16": {"dtype": torch.bfloat16},
    "sgd": {"optimizer": torch.optim.SGD, "momentum": 0.9},
}


@pytest.mark.parametrize("name", RUN)
def test_a_recipe_that_runs_keeps_the_bytes_of_the_closed_form(name: str) -> None:
    options = dict(RUN[name])
    model = GPT(PRESETS["0.1M"]).to(options.pop("dtype", torch.float32))
    states = planning.recipe_states(model, torch.randint(256, (2, 16)), **options)
    assert states == pytest.approx(facts.recipe_bytes(name))


def ends(figure) -> dict[str, float]:
    """The right end of each row of bars, by its name."""
    (axes,) = figure.axes
    rows = [label.get_text() for label in axes.get_yticklabels()]
    right = [0.0] * len(rows)
    for bar in axes.patches:
        row = round(bar.get_y() + bar.get_height() / 2)
        right[row] = max(right[row], bar.get_x() + bar.get_width())
    return dict(zip(rows, right, strict=True))


def test_shares_are_of_a_hundred_percent_and_the_smallest_model_comes_first() -> None:
    shares = ends(plan_figures.parameter_shares(PUBLISHED))
    assert [*shares][:: len(shares) - 1] == ["GPT-2 small: 0.124B", "Llama-3-405B: 406B"]
    assert list(shares.values()) == pytest.approx([100] * len(PUBLISHED))
    forward = ends(plan_figures.forward_shares(PUBLISHED, [("GPT-3", 2048), ("GPT-2 small", 1024)]))
    assert list(forward) == ["GPT-3, 2,048 tokens", "GPT-2 small, 1,024 tokens"]
    assert list(forward.values()) == pytest.approx([100, 100])


def test_the_bars_of_recipes_and_layouts_end_at_their_sums() -> None:
    recipes = ends(plan_figures.recipe_bars(facts.recipe_bytes, billions=6.74, room=80))
    assert recipes["float32: 108 GB"] == pytest.approx(16 * 6.74)
    config = GPTConfig(50257, 2048, layers=4, heads=4, width=256)
    layouts = ends(plan_figures.layout_bars(config, gpus=8, batch=4, seq=2048, room=80e9))
    bill = facts.layout_bytes(config, 8, 4, 2048, 3, True)
    assert layouts["stage 3, checkpointed"] == pytest.approx(sum(bill.values()) / 1e9)
    assert len(layouts) == 8


def test_the_curve_of_6nd_is_drawn_from_the_functions_it_is_handed(capsys) -> None:
    def step(config, batch, seq, causal=False):
        return 12 * batch * seq

    three = {name: PUBLISHED[name] for name in ("GPT-2 small", "Llama-3-8B", "GPT-3")}
    figure = plan_figures.rule_of_thumb(step, lambda config: 1, three)
    assert capsys.readouterr().out.count("6ND is 0.500 of the step") == 3
    assert {y for line in figure.axes[0].lines for y in line.get_ydata()} == {0.5}


def test_roofs_and_laws_have_their_curves_and_dots() -> None:
    figures = [
        plan_figures.reach([gpu("H100"), gpu("A100")]),
        plan_figures.under_the_roof(facts.matmul_seconds, 1e11, 3e10, {1: 0.1, 8: 0.2}),
        plan_figures.along_the_budget(),
        plan_figures.laws_and_models(facts.compute_optimal),
    ]
    assert [len(figure.axes[0].lines) for figure in figures] == [4, 2, 5, 9]
