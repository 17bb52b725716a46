"""One GPU: closed forms against what was measured, for parameters, FLOPs, activations and bytes of a step."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from course_lib import facts, planning
from course_lib.checks.rank.counting import alive, more
from course_lib.models import GPT, PRESETS, PUBLISHED, GPTConfig, next_token_loss
from course_lib.pictures.calculator import CHECKPOINTS, Setting, calculator
from course_lib.pictures.memory_figures import ANSWERS, memory_figure, strategy_map
from course_lib.planning import MemoryTimeline, SavedBytes, held_bytes
from course_lib.scorecard import costs


def test_a_small_gpt_has_the_parameters_and_the_flops_that_are_estimated() -> None:
    config = GPTConfig(vocab_size=20, context=8, layers=2, heads=2, width=16)
    model, tokens = GPT(config), torch.zeros(1, 8, dtype=torch.long)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(tokens)
    counted = sum(param.numel() for param in model.parameters()), counter.get_total_flops()
    flops = facts.transformer_flops(config, 1, 8, backward=False)
    assert counted == (sum(facts.parameters_by_part(config).values()), flops)


FIVE = {  # shapes: configuration, batch, tokens
    "GPT-2's parts": (GPTConfig(layers=2, width=64, heads=4, context=64), 3, 64),
    "LLaMA's parts, grouped queries": (
        GPTConfig(layers=1, width=48, heads=6, kv_heads=2, context=32).modern(), 2, 32,
    ),
    "without biases": (GPTConfig(layers=3, width=32, heads=4, context=40, bias=False), 1, 40),
    "SwiGLU of odd width": (
        GPTConfig(layers=2, width=64, heads=2, context=64, mlp="swiglu", hidden=100), 2, 64,
    ),
    "rotary, short heads": (
        GPTConfig(layers=2, width=32, heads=8, context=128, positions="rotary"), 1, 128,
    ),
}  # fmt: skip


def blocks_of(model: GPT, batch: int, seq: int) -> Tensor:
    """Forward through the blocks alone, from embedded tokens that need a gradient."""
    tokens, positions = torch.zeros(batch, seq, dtype=torch.long), torch.arange(seq)
    with torch.no_grad():
        x = model.embed(tokens, positions)
    x.requires_grad_()
    for block in model.blocks:
        x = block(x, positions)
    return x


# ---- parameters and FLOPs


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_have_the_parameters_of_modules_without_memory(name: str) -> None:
    config = replace(PUBLISHED[name], layers=2)  # every layer is as large: two show it
    with torch.device("meta"):
        model = GPT(config)
    parts = facts.parameters_by_part(config)
    assert sum(parts.values()) == sum(p.numel() for p in model.parameters())
    assert parts["attention"] == sum(
        p.numel() for block in model.blocks for p in block.attention.parameters()
    )
    assert parts["mlp"] == sum(p.numel() for block in model.blocks for p in block.mlp.parameters())


@pytest.mark.parametrize("shape", FIVE)
def test_flops_are_those_that_pytorch_counts_to_the_integer(shape: str) -> None:
    config, batch, seq = FIVE[shape]
    model, tokens = GPT(config), torch.zeros(batch, seq, dtype=torch.long)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as forward:
        loss = next_token_loss(model(tokens), tokens)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as backward:
        loss.backward()
    assert forward.get_total_flops() == facts.transformer_flops(config, batch, seq, backward=False)
    both = forward.get_total_flops() + backward.get_total_flops()
    assert both == facts.transformer_flops(config, batch, seq)


# ---- what forward keeps


@pytest.mark.parametrize("flash", [True, False], ids=["flash", "math"])
@pytest.mark.parametrize("shape", FIVE)
def test_activations_are_predicted_to_the_byte(shape: str, flash: bool) -> None:
    config, batch, seq = FIVE[shape]
    model = GPT(config)
    backend = SDPBackend.FLASH_ATTENTION if flash else SDPBackend.MATH
    with sdpa_kernel(backend), SavedBytes(model) as saved:
        kept = blocks_of(model, batch, seq)
    assert saved.total == facts.activation_bytes(config, batch, seq, 4, flash=flash)
    assert kept.requires_grad


def test_a_checkpointed_model_keeps_the_inputs_of_its_blocks() -> None:
    config, batch, seq = FIVE["GPT-2's parts"]
    model, positions = GPT(config), torch.arange(seq)
    x = torch.randn(batch, seq, config.width, requires_grad=True)
    with SavedBytes(model) as saved:
        y = x
        for block in model.blocks:
            y = torch.utils.checkpoint.checkpoint(block, y, positions, use_reentrant=False)
    inputs = facts.activation_bytes(config, batch, seq, 4, checkpoint=True)
    assert inputs == config.layers * batch * seq * config.width * 4
    assert saved.total == inputs + positions.nbytes
    assert y.requires_grad


class Mixed(nn.Module):
    """A view of a large result is kept twice, and a buffer once."""

    def __init__(self):
        super().__init__()
        self.wide = nn.Linear(8, 64, bias=False)
        self.inner = nn.Sequential(nn.Linear(16, 4), nn.Tanh())
        self.register_buffer("scale", torch.ones(16))

    def forward(self, x: Tensor) -> Tensor:
        part = self.wide(x)[:, :16]
        return self.inner(part * part * self.scale)


def test_bytes_kept_are_of_storages_by_the_innermost_module(seed: int) -> None:
    rows = random.Random(seed).randint(2, 50)
    model = Mixed()
    with SavedBytes(model) as saved:
        model(torch.randn(rows, 8, requires_grad=True))
    assert saved.by_module == {
        "wide": rows * 8 * 4,  # its input
        "": rows
        * 64
        * 4,  # the whole result, of which a part is squared; times the buffer: not kept
        "inner.0": rows * 16 * 4,
        "inner.1": rows * 4 * 4,
    }
    assert saved.total == sum(saved.by_module.values())


def test_memory_that_took_the_place_of_other_memory_counts() -> None:
    model = nn.Sequential(nn.Linear(256, 256), nn.Tanh())
    x = torch.randn(1024, 256, requires_grad=True)
    with SavedBytes(model) as saved:
        for _ in range(4):
            model(x)
    assert saved.total == (1 + 4) * x.nbytes


def test_nothing_is_held_or_counted_when_the_block_is_over() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh())
    x = torch.randn(100, 64)
    saved = SavedBytes(model)
    with pytest.raises(ZeroDivisionError), saved:
        model(x)
        _ = 1 / 0
    counted, kept = saved.total, model(x)
    assert saved.total == counted == 2 * x.nbytes
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert kept.requires_grad


def test_no_memory_is_held_after_backward() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh())
    x = torch.randn(100, 64)
    before = alive()
    with SavedBytes(model) as saved:
        y = model(x)
        y.sum().backward()
        del y
        model(x)  # a graph that is dropped
    assert saved.total == 3 * x.nbytes
    assert more(alive(), before) == 0


def test_autocast_keeps_less_but_not_half() -> None:
    """Residual stream and norms stay in float32, and weights that were cast are kept, too."""
    config = GPTConfig(layers=2, heads=4, width=64, context=128)
    totals = {}
    for on in (False, True):
        model = GPT(config)
        with torch.autocast("cpu", torch.bfloat16, enabled=on), SavedBytes(model) as saved:
            blocks_of(model, 2, 128)
        totals[on] = saved.total
    assert 0.55 < totals[True] / totals[False] < 0.85


# ---- a step's timeline


def stepped(steps: int = 2) -> tuple[GPT, torch.optim.Optimizer, Tensor, MemoryTimeline]:
    config = GPTConfig(layers=2, heads=2, width=32, context=64)
    model, tokens = GPT(config), torch.zeros(2, 64, dtype=torch.long)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    with MemoryTimeline(model, optimizer, resident=[tokens]) as timeline:
        for _ in range(steps):
            timeline.mark("forward")
            loss = next_token_loss(model(tokens), tokens)
            timeline.mark("backward")
            loss.backward()
            timeline.mark("step")
            optimizer.step()
        del loss
    return model, optimizer, tokens, timeline


def test_every_band_of_a_step_is_as_the_formulas_say() -> None:
    model, optimizer, _, timeline = stepped()
    params = sum(p.numel() for p in model.parameters())
    counts = 4 * len(list(model.parameters()))  # AdamW counts each parameter's steps
    last = timeline.moments[-1].bytes
    assert last["weights"] == 4 * params == last["gradients"]
    assert last["optimizer"] == 8 * params + counts
    assert last["activations"] == 0
    assert {kind: last[kind] for kind in ("weights", "gradients", "optimizer")} == held_bytes(
        model, optimizer
    )
    begins = [index for _, index in timeline.phases()]
    assert [name for name, _ in timeline.phases()] == ["forward", "backward", "step"] * 2
    first, second = timeline.moments[: begins[3]], timeline.moments[begins[3] :]
    assert first[begins[2] - 1].bytes["optimizer"] == 0 < first[-1].bytes["optimizer"]
    assert all(moment.bytes["optimizer"] == last["optimizer"] for moment in second)
    # the blocks' activations, and the head's: its norm, its input, the loss's logits and the weighted mean
    config = model.config
    blocks = facts.activation_bytes(config, 2, 64, 4)
    head = 2 * 64 * ((config.width + 2) + config.width + config.vocab_size) * 4
    most = max(moment.bytes["activations"] for moment in timeline.moments)
    assert blocks + head <= most <= blocks + head + 64 * 8 * 4 + 100


def test_the_peak_is_that_of_the_scorecard() -> None:
    model, _, tokens, timeline = stepped()
    again = GPT(model.config)
    optimizer = torch.optim.AdamW(again.parameters(), foreach=False)
    with costs(tokens, *again.parameters()) as spent:
        for _ in range(2):
            loss = next_token_loss(again(tokens), tokens)
            loss.backward()
            optimizer.step()
    assert timeline.peak.total == spent.peak_bytes


def test_the_peak_is_that_of_pytorchs_tracker() -> None:
    """PyTorch's tracker counts the same bytes; it calls tokens that are kept for backward "other"."""
    config = GPTConfig(layers=2, heads=2, width=32, context=64)
    model, tokens = GPT(config), torch.zeros(2, 64, dtype=torch.long)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    tracker = MemTracker()
    tracker.track_external(model, optimizer, tokens)
    with tracker:
        for _ in range(2):
            next_token_loss(model(tokens), tokens).backward()
            optimizer.step()
            tracker.reset_mod_stats()
    (peak,) = tracker.get_tracker_snapshot("peak").values()
    *_, timeline = stepped()
    assert peak["Total"] == timeline.peak.total
    by_name = {str(kind): nbytes for kind, nbytes in peak.items()}
    apart = timeline.peak.bytes["activations"] - by_name["_MemRefType.ACT"]
    assert 0 <= apart <= tokens.nbytes


def adamw(model: GPT) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters())


def momentum(model: GPT) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


@pytest.mark.parametrize(
    ("name", "dtype", "make"),
    [
        ("float32", torch.float32, adamw),
        ("autocast", torch.float32, adamw),
        ("pure bf16", torch.bfloat16, adamw),
        ("sgd", torch.float32, momentum),
    ],
)
def test_recipes_that_pytorch_has_are_measured_after_the_second_step(name, dtype, make) -> None:
    """16.00 bytes a parameter for plain float32 and for autocast, 8.00 in bf16 alone, 12.00 for momentum."""
    model = GPT(PRESETS["0.8M"]).to(dtype)
    params = sum(p.numel() for p in model.parameters())
    optimizer, tokens = make(model), torch.zeros(1, 16, dtype=torch.long)
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16, enabled=name == "autocast"):
            loss = next_token_loss(model(tokens), tokens)
        loss.backward()
        optimizer.step()
    held = held_bytes(model, optimizer)
    weights, gradients, master, moments = facts.recipe_bytes(name)
    assert (held["weights"], held["gradients"]) == (weights * params, gradients * params)
    assert held["optimizer"] / params == pytest.approx(master + moments, abs=5e-4)
    assert sum(held.values()) / params == pytest.approx(facts.recipe(name).total, abs=5e-3)


def test_a_master_copy_makes_sixteen_bytes_of_two_and_two() -> None:
    """ZeRO's recipe, and Megatron's with a float32 copy of the gradients while the step reads them."""
    model = GPT(PRESETS["0.1M"]).to(torch.bfloat16)
    params = sum(p.numel() for p in model.parameters())
    master = [p.detach().float() for p in model.parameters()]
    optimizer = torch.optim.Adam(master)
    tokens = torch.zeros(1, 16, dtype=torch.long)
    next_token_loss(model(tokens), tokens).backward()
    for copy, p in zip(master, model.parameters(), strict=True):
        assert p.grad is not None
        copy.grad = p.grad.float()
    optimizer.step()
    copies = sum(copy.grad.nbytes for copy in master if copy.grad is not None)
    held = held_bytes(model)
    states = sum(
        value.nbytes for state in optimizer.state.values() for value in state.values()
    )  # fmt: skip
    kept = held["weights"] + held["gradients"] + sum(copy.nbytes for copy in master) + states
    assert kept / params == pytest.approx(facts.recipe("zero").total, abs=5e-3)
    assert (kept + copies) / params == pytest.approx(facts.recipe("megatron fp16").total, abs=5e-3)


# ---- plans and pictures


def test_first_that_fits_is_the_first_bill_that_fits(seed: int) -> None:
    draw = random.Random(seed)
    config = PUBLISHED["LLaMA-7B"]
    for _ in range(20):
        gpus, seq = 2 ** draw.randint(0, 8), 2 ** draw.randint(9, 13)
        bills = {
            layout: facts.layout_bytes(config, gpus, 1, seq, *layout) for layout in facts.LAYOUTS
        }
        layout = draw.choice(facts.LAYOUTS)
        room = sum(bills[layout].values())
        cheaper = [each for each in facts.LAYOUTS if sum(bills[each].values()) <= room]
        assert facts.first_that_fits(config, gpus, room, 1, seq) == cheaper[0]
        least = min(sum(parts.values()) for parts in bills.values())
        assert facts.first_that_fits(config, gpus, least - 1, 1, seq) is None


def test_pictures_are_drawn_of_the_numbers() -> None:
    *_, timeline = stepped(1)
    figure = memory_figure(timeline, "a step")
    (axes,) = figure.axes
    assert len(axes.collections) == len(planning.KINDS)
    both = memory_figure({"a step": timeline, "again": timeline})
    assert len({one.get_ylim() for one in both.axes}) == 1 and len(both.axes) == 2
    chart = strategy_map(facts.first_that_fits, gpus=(1, 8, 1024))
    rows = chart.answers(70e9, 4096)
    assert rows[0] == [(0, False)] * 3, "GPT-2 small fits one GPU"
    assert rows[-1] == [None, None, (3, True)], "Llama-3-405B"
    assert {answer for row in rows for answer in row} <= {*ANSWERS}
    assert chart._repr_mimebundle_().keys() >= {"text/plain", "image/png"}
    assert chart.widget().children[2].value[:4] == b"\x89PNG"
    listed = strategy_map(lambda *_: [3, False])  # type: ignore[arg-type, return-value]
    assert {answer for row in listed.answers(70e9, 4096) for answer in row} == {(3, False)}, (
        "the check takes a list as well, so the map does"
    )
    with pytest.raises(ValueError, match="'ZeRO-2' is not"):
        strategy_map(lambda *_: "ZeRO-2").answers(70e9, 4096)  # type: ignore[arg-type, return-value]


def test_the_calculator_has_the_bill_of_the_facts_and_a_sentence() -> None:
    shown = calculator()
    for stage in range(4):
        for checkpoint in ("none", "full"):
            setting = Setting("Llama-3-8B", 2, 4096, 8, stage, checkpoint)
            wanted = facts.layout_bytes(
                PUBLISHED["Llama-3-8B"], 8, 2, 4096, stage, checkpoint == "full"
            )
            assert shown.bill(setting) == pytest.approx(wanted)
    kept = [shown.bill(Setting("GPT-3", checkpoint=each))["activations"] for each in CHECKPOINTS]
    assert kept[0] > kept[1] > kept[2] > 0
    small = Setting("GPT-2 small", 1, 1024)
    assert "to spare. Largest: the optimizer, 1.5 GB" in shown.sentence(small)
    assert "too much. Largest: the weights, 141.1 GB" in shown.sentence(
        Setting("Llama-3-70B", gpus=64, stage=2)
    )
    assert f"{sum(shown.bill(small).values()) / 1e9:.2f} GB" in shown.table(small)
    assert {*shown._repr_mimebundle_()} == {"text/plain", "image/png"}
    with pytest.raises(ValueError, match="give at least one model"):
        calculator({})


def test_the_calculators_controls_change_the_table() -> None:
    *_, timeline = stepped(1)
    shown = calculator(measured=timeline)
    box = shown.widget()
    controls = shown._controls(__import__("ipywidgets"))
    assert {*controls} == set(Setting.__dataclass_fields__)
    table = box.children[0].children[2]
    before = table.value
    stage = box.children[0].children[1].children[0]
    assert stage.description == "stage"
    stage.value = 3
    assert table.value != before and "gathered block" in table.value
    assert len(box.children) == 3, "the measured run is below the bar"
