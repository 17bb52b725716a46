"""The closed forms of a training run against published figures: models, GPUs, recipes, budgets, layouts."""

from __future__ import annotations

import math
import random

import pytest

from course_lib import facts
from course_lib.facts.zero import zero_memory
from course_lib.models import PUBLISHED

PARAMETERS = {
    "GPT-2 small": 124_439_808,
    "GPT-2 XL": 1_557_611_200,
    "LLaMA-7B": 6_738_415_616,
    "LLaMA-13B": 13_015_864_320,
    "LLaMA-65B": 65_285_660_672,
    "Llama-2-70B": 68_976_648_192,
    "Llama-3-8B": 8_030_261_248,
    "Llama-3-70B": 70_553_706_496,
    "Llama-3-405B": 405_853_388_800,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_published_models_have_their_parameters_exactly(name: str) -> None:
    assert facts.transformer_parameters(PUBLISHED[name]) == PARAMETERS[name]
    assert sum(facts.parameters_by_part(PUBLISHED[name]).values()) == PARAMETERS[name]


def test_shares_of_the_mlp() -> None:
    for name, share in {"GPT-3": 0.66, "GPT-2 small": 0.46, "Llama-3-70B": 0.80}.items():
        parts = facts.parameters_by_part(PUBLISHED[name])
        assert parts["mlp"] / sum(parts.values()) == pytest.approx(share, abs=0.005)
    assert facts.transformer_parameters(PUBLISHED["GPT-3"]) == pytest.approx(174.6e9, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "seq", "share", "unmasked"),
    [
        ("GPT-3", 2048, 0.973, 0.986),
        ("LLaMA-7B", 2048, 0.943, 0.980),
        ("Llama-3-8B", 8192, 0.832, 0.936),
        ("GPT-2 small", 1024, 0.874, 0.936),
    ],
)
def test_six_n_d_leaves_out_attention(name: str, seq: int, share: float, unmasked: float) -> None:
    """N with the embedding, as it is quoted."""
    config = PUBLISHED[name]
    rule = facts.six_n_d(facts.transformer_parameters(config), seq)
    assert rule / facts.transformer_flops(config, 1, seq) == pytest.approx(share, abs=6e-4)
    skipped = facts.transformer_flops(config, 1, seq, causal=True)
    assert rule / skipped == pytest.approx(unmasked, abs=1.5e-3)


def test_gpus_are_at_the_ridge_of_their_data_sheets() -> None:
    ridges = {g.name: facts.ridge(g.flops, g.bandwidth) for g in facts.GPUS}
    assert ridges["H100 SXM"] == pytest.approx(295, abs=0.5)
    assert ridges["A100 SXM"] == pytest.approx(153, abs=0.5)
    assert facts.least_tokens(989e12, 3.35e12) == ridges["H100 SXM"]
    slower = {g.name: g.bandwidth / facts.link(g.host_link).each_way for g in facts.GPUS}
    assert slower["A100 SXM"] == pytest.approx(64, abs=0.5)
    assert slower["H100 SXM"] == pytest.approx(52, abs=0.5)
    assert facts.gpu("A100").fp8 is None
    for each in facts.GPUS:
        assert each.fp8 is None or each.fp8 == pytest.approx(2 * each.flops, rel=0.01)


def test_a_product_is_bound_by_bytes_until_there_are_enough_tokens(seed: int) -> None:
    draw = random.Random(seed)
    flops, bandwidth = draw.uniform(1e12, 1e15), draw.uniform(1e11, 1e13)
    enough, wide = facts.least_tokens(flops, bandwidth), 10**9
    arithmetic = [
        2 * m * wide * wide / flops for m in (math.ceil(enough * 1.01), int(enough * 0.99))
    ]
    times = [facts.matmul_seconds(m, wide, wide, flops, bandwidth)
             for m in (math.ceil(enough * 1.01), int(enough * 0.99))]  # fmt: skip
    assert times[0] == arithmetic[0]
    assert times[1] > arithmetic[1]


def test_totals_of_recipes() -> None:
    totals = {each.name: each.total for each in facts.RECIPES}
    assert totals == {
        "float32": 16, "autocast": 16, "zero": 16, "megatron bf16": 18, "megatron fp16": 20,
        "pure bf16": 8, "deepseek-v3": 13 + 4 / 128**2, "adam 8 bits": 10 + 8 / 256, "sgd": 12,
    }  # fmt: skip
    with pytest.raises(ValueError, match="'fp4' is not one of the recipes: float32, autocast"):
        facts.recipe_bytes("fp4")
    assert all(len(each.code.splitlines()) == 4 for each in facts.RECIPES)


def test_recipe_1_of_the_lectures() -> None:
    """7B, 8 sequences of 2,048 tokens: activations 89 GB, and what saves how much of them."""
    config = PUBLISHED["LLaMA-7B"]
    assert facts.activation_bytes(config, 8, 2048) == pytest.approx(89.3e9, rel=1e-3)
    assert facts.activation_bytes(config, 8, 2048, flash=False) == pytest.approx(158e9, rel=1e-3)
    assert facts.activation_bytes(config, 8, 2048, checkpoint=True) == pytest.approx(
        4.295e9, rel=1e-3
    )
    assert facts.logits_bytes(config, 8, 2048) * 2 / 3 == pytest.approx(2.1e9, rel=1e-2)


def test_runs_and_their_speed() -> None:
    runs = {run.name: run for run in facts.RUNS}
    flops = {name: facts.six_n_d(run.params, run.tokens) for name, run in runs.items()}
    assert flops["GPT-3"] == pytest.approx(3.14e23, rel=2e-3)
    assert flops["Llama-3-405B"] == pytest.approx(3.79e25, rel=2e-3)
    assert facts.days(405e9, 15.6e12, 16_384, 400e12, 1) == pytest.approx(67, abs=0.1)
    assert facts.model_flops_utilization(65.2e9, 380, 312e12) == pytest.approx(0.476, abs=1e-3)
    for name, share in {"LLaMA-65B": 0.477, "DeepSeek-V3": 0.346}.items():
        run = runs[name]
        assert run.gpu_hours and run.peak
        assert flops[name] / (run.gpu_hours * 3600 * run.peak) == pytest.approx(share, abs=1e-3)
    speed = facts.tokens_per_second_per_gpu(70e9, 989e12, 0.4)
    assert speed == pytest.approx(942, abs=0.5)
    assert facts.days(70e9, 15e12, 1, 989e12) / 365.25 == pytest.approx(505, abs=1)
    assert facts.days(70e9, 86_400 * speed, 1, 989e12, 0.4) == pytest.approx(1)


def test_chinchillas_law_does_not_give_chinchilla() -> None:
    """Printed: 32B and 93 tokens a parameter; TeX source: 40B and 59; fitted anew: 72B and 18."""
    for name, billions, ratio in (
        ("printed", 32.2, 92.6), ("TeX source", 40.3, 59.1), ("replication", 72.2, 18.4),
    ):  # fmt: skip
        params, tokens = facts.compute_optimal(facts.CHINCHILLA, facts.LAWS[name])
        assert params / 1e9 == pytest.approx(billions, abs=0.05)
        assert tokens / params == pytest.approx(ratio, abs=0.05)
        assert facts.six_n_d(params, tokens) == pytest.approx(facts.CHINCHILLA)


@pytest.mark.parametrize("name", facts.LAWS)
def test_the_optimum_is_the_least_loss(name: str, seed: int) -> None:
    law, budget = facts.LAWS[name], 10 ** random.Random(seed).uniform(18, 26)
    params, tokens = facts.compute_optimal(budget, law)
    least = facts.law_loss(params, tokens, law)
    for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2):
        assert facts.law_loss(params * factor, tokens / factor, law) > least


def test_from_the_crossover_on_two_laws_differ_twofold() -> None:
    printed, anew = facts.LAWS["printed"], facts.LAWS["replication"]
    budget = facts.crossover(printed, anew)
    assert budget == facts.crossover(anew, printed) == pytest.approx(8.7e22, rel=1e-3)

    def ratio(at: float) -> float:
        return facts.compute_optimal(at, anew)[0] / facts.compute_optimal(at, printed)[0]

    assert ratio(budget) == pytest.approx(2)
    assert ratio(2 * budget) > 2 > ratio(budget / 2)
    assert facts.crossover(printed, printed) == math.inf
    other = printed._replace(A=10 * printed.A)
    assert facts.crossover(printed, other) == 0


def test_a_layouts_bill_is_zeros_and_what_no_stage_divides() -> None:
    config = PUBLISHED["Llama-3-70B"]
    params = facts.transformer_parameters(config)
    for stage in range(4):
        bill = facts.layout_bytes(config, 64, 1, 4096, stage)
        states = bill["weights"] + bill["gradients"] + bill["optimizer"]
        assert states == pytest.approx(zero_memory(params, 64, stage))
        assert (bill["gathered block"] > 0) == (stage == 3)
        assert bill["activations"] == facts.activation_bytes(config, 1, 4096)
        assert bill["logits"] == 6 * 4096 * 128_256
    assert facts.layout_bytes(config, 64, 1, 4096, 2)["weights"] == pytest.approx(141.1e9, rel=1e-3)


def test_the_order_of_layouts_is_that_of_their_cost() -> None:
    assert tuple((stage, again) for again in (False, True) for stage in range(4)) == facts.LAYOUTS
    config = PUBLISHED["LLaMA-13B"]
    assert facts.first_that_fits(config, 8, 80e9, 1, 8192) == (1, True)
    assert facts.first_that_fits(config, 1, 80e9, 1, 8192) is None
    assert facts.first_that_fits(PUBLISHED["GPT-2 small"], 1, 80e9, 1, 1024) == (0, False)


def test_eight_bits_and_their_scales() -> None:
    assert facts.scaled_bytes(1, 128) == facts.scaled_bytes(1, 32, scale=1) == 1.03125
    assert facts.scaled_bytes(128, 128) == pytest.approx(1.000244, abs=1e-6)
    assert [facts.eight_bit_states(block) for block in (64, 256, 2048)] == pytest.approx(
        [2.125, 2.03125, 2.00390625]
    )
    assert facts.recipe("adam 8 bits").moments == facts.eight_bit_states()
    assert facts.PROMOTED_AFTER * 32 == facts.ACCUMULATOR_TERMS
