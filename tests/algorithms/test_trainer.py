"""The trainer: every layout has the losses of one process in float64, and sends what its closed form says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from course_lib import launch
from course_lib.ledger.operation import Operation
from course_lib.mesh import Mesh
from course_lib.mesh.coordinates import axis_ranks, coordinates
from course_lib.models import GPT, GPTConfig, next_token_loss
from course_lib.planning import Layout
from course_lib.runtime.launch import Run
from course_lib.trainer import (
    FIFTEEN,
    NINE,
    SGD,
    generate,
    layout_costs,
    make_step,
    smallest_failing,
)
from course_lib.trainer.step import obstacle
from course_lib.zero import Zero3Module


def test_four_ranks_have_the_losses_of_one_process() -> None:
    """Two replicas that share the optimizer's state (ZeRO-1), each in two stages."""
    config = GPTConfig(vocab_size=41, context=16, layers=2, heads=2, width=8, tied=False)
    batch = torch.randint(41, (4, 16)), torch.randint(41, (4, 16))

    def job() -> list[float]:
        layout = Layout({"pp": 2, "dp": 2}, microbatch=1, zero=1)
        step = make_step(config, layout, Mesh(layout.sizes), batch_size=4, lr=0.1)
        return [step(*batch) for _ in range(3)]

    torch.manual_seed(0)
    model, wanted = GPT(config), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        loss = next_token_loss(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        wanted.append(loss.item())
    for losses in launch(job, world_size=4, backend="gloo"):
        assert losses == pytest.approx(wanted, abs=1e-5)


CONFIG = GPTConfig(vocab_size=64, context=32, layers=4, heads=4, width=32, tied=False)
STEPS, ROWS, LR = 5, 8, 0.1
# Beside the fifteen and the nine: axes that meet nowhere among those, and numbers that 2 does not divide.
MORE = {
    "dp 3": Layout({"dp": 3}, 2),
    "dp 3, zero-2, 2 microbatches": Layout({"dp": 3}, 2, zero=2),
    "pp 3, uneven": Layout({"pp": 3}, 3),
    "dp 2 cp 2, zero-2, 2 microbatches": Layout({"dp": 2, "cp": 2}, 2, zero=2),
    "dp 2 tp 2, zero-3": Layout({"dp": 2, "tp": 2}, 2, zero=3),
    "pp 2 dp 2, v 2, zero-2": Layout({"pp": 2, "dp": 2}, 2, chunks=2, zero=2),
    "pp 2 dp 2, v 2, zero-3": Layout({"pp": 2, "dp": 2}, 2, chunks=2, zero=3),
    "pp 2 tp 2, v 2, sequence": Layout({"pp": 2, "tp": 2}, 2, chunks=2, sequence=True),
    "pp 2 dp 2, zero-1, tied": Layout({"pp": 2, "dp": 2}, 2, zero=1),
    "tp outermost": Layout({"tp": 2, "dp": 2, "pp": 1, "cp": 1}, 4),
    "5 replicas": Layout({"dp": 5}, 2, zero=3),
    "6 ranks": Layout({"dp": 3, "cp": 2}, 4, zero=1),
    "7 replicas": Layout({"dp": 7}, 2, zero=1),
    "dp 2 cp 2 tp 2, sequence, zero-2": Layout(
        {"dp": 2, "cp": 2, "tp": 2}, 4, zero=2, sequence=True
    ),
}
ALL = {**FIFTEEN, **{f"two ranks, {name}": layout for name, layout in NINE.items()}, **MORE}
WORLDS = sorted({layout.gpus for layout in ALL.values()})
PER_WORLD = {n: [name for name in ALL if ALL[name].gpus == n] for n in WORLDS}


def config_of(name: str) -> GPTConfig:
    return replace(CONFIG, tied=name.endswith("tied"))


def rows_of(layout: Layout) -> int:
    """8, or as many as an odd number of replicas divides."""
    each = layout.dp * layout.microbatch
    return ROWS if ROWS % each == 0 else 2 * each


def a_batch(step: int, rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Targets that count lie unevenly: the first quarter of the rows has hardly any."""
    generator = torch.Generator().manual_seed(seed + step)
    tokens = torch.randint(CONFIG.vocab_size, (rows, CONFIG.context + 1), generator=generator)
    inputs, targets = tokens[:, :-1], tokens[:, 1:].clone()
    targets[: rows // 4, 3:] = -100
    targets[-1, :20] = -100
    return inputs, targets


class Trained(NamedTuple):
    """On a rank: the losses, and the parameters that it holds, padding of shards included."""

    losses: list[float]
    held: int


def on_a_rank(names: list[str], seed: int, steps: int = STEPS) -> dict[str, Trained]:
    """Every layout in turn; its first step lies between two barriers."""
    torch.set_default_dtype(torch.float64)
    results = {}
    for name in names:
        layout, rows = ALL[name], rows_of(ALL[name])
        step = make_step(config_of(name), layout, Mesh(layout.sizes), rows, LR)
        dist.barrier()
        losses = [step(*a_batch(0, rows, seed))]
        dist.barrier()
        losses += [step(*a_batch(s, rows, seed)) for s in range(1, steps)]
        cut = [stage.module for stage in step.stages if isinstance(stage.module, Zero3Module)]
        units = [unit.shard_numel for module in cut for unit in module.units]
        results[name] = Trained(losses, sum(units) or sum(p.numel() for p in step.params))
    return results


@cache
def run_of(n: int, seed: int) -> Run:
    """All layouts of n ranks, in one launch that the tests share."""
    return launch(on_a_rank, PER_WORLD[n], seed, world_size=n, timeout=240, backend="gloo")


@cache
def alone(tied: bool, rows: int, seed: int) -> list[float]:
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    model = GPT(replace(CONFIG, tied=tied))
    torch.set_default_dtype(torch.float32)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9), []
    for step in range(STEPS):
        inputs, targets = a_batch(step, rows, seed)
        loss = next_token_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("n", WORLDS)
def test_every_layout_has_the_losses_of_one_process(n: int, seed: int) -> None:
    for name in PER_WORLD[n]:
        wanted = alone(config_of(name).tied, rows_of(ALL[name]), seed)
        for rank, results in enumerate(run_of(n, seed)):
            assert results[name].losses == pytest.approx(wanted, abs=1e-9), (name, rank)


def test_the_layouts_are_fifteen_and_nine() -> None:
    assert len(FIFTEEN) == 15 and len(NINE) == 9
    assert {layout.gpus for layout in NINE.values()} == {2}
    assert {layout.zero for layout in FIFTEEN.values()} == {0, 1, 2, 3}
    seen = [
        (tuple(layout.sizes.items()), layout.zero, layout.chunks) for layout in FIFTEEN.values()
    ]
    assert len(set(seen)) == 15


# ---- costs, against the ledger


def axis_of(operation: Operation, rank: int, sizes: Any) -> str:
    if operation.nbytes == 8:
        return "numbers"
    for axis in ("tp", "pp"):
        if operation.group == tuple(sorted(axis_ranks(rank, sizes, axis))):
            return axis
    return "cp" if operation.op in ("send", "recv") else "dp"


@pytest.mark.parametrize("n", WORLDS)
def test_a_step_sends_and_holds_its_closed_forms(n: int, seed: int) -> None:
    """Every axis of every rank to the byte, in float64; uneven stages have no closed form."""
    run = run_of(n, seed)
    for rank in range(n):
        operations = run.ledger.operations(rank)
        marks = [i for i, operation in enumerate(operations) if operation.op == "barrier"]
        spans = list(pairwise(marks))[::2]
        for name, (start, end) in zip(PER_WORLD[n], spans, strict=True):
            if name == "pp 3, uneven":
                continue
            layout = ALL[name]
            costs: dict[str, float] = dict.fromkeys(("pp", "dp", "cp", "tp", "numbers"), 0.0)
            for operation in operations[start + 1 : end]:
                costs[axis_of(operation, rank, layout.sizes)] += operation.bytes_sent
            costs["held"] = run[rank][name].held
            stage = coordinates(rank, layout.sizes)["pp"]
            wanted = layout_costs(config_of(name), layout, rows_of(layout), stage=stage, itemsize=8)
            assert costs == pytest.approx(wanted, abs=1e-6), (name, rank)


def test_zero_1_sends_as_much_as_replicas_and_holds_as_much() -> None:
    ddp, first, third = (
        layout_costs(CONFIG, FIFTEEN[name], ROWS) for name in ("ddp 4", "zero-1 4", "zero-3 4")
    )
    assert first["dp"] == pytest.approx(ddp["dp"], rel=1e-3) and first["held"] == ddp["held"]
    assert third["held"] == pytest.approx(ddp["held"] / 4, rel=1e-3)


def test_stages_that_the_head_makes_uneven_have_no_closed_form() -> None:
    with pytest.raises(ValueError, match=r"stages of \[2, 1, 1\], as the head weighs"):
        layout_costs(CONFIG, MORE["pp 3, uneven"], 9)


# ---- refusals, before a step

WORDS = "make the mesh of layout.sizes"
REFUSED: list[tuple[dict[str, Any], dict[str, Any], int, str]] = [
    ({"sizes": {"tp": 2}}, {}, 8, WORDS),
    ({"sizes": {}}, {}, 8, WORDS),
    ({"microbatch": 3}, {}, 8, "2 replicas with microbatches of 3 rows need a multiple of 6 rows"),
    ({}, {}, 0, "batch_size=0: 2 replicas"),
    ({"sequence": True}, {}, 8, "tp has one rank: leave it out"),
    ({"chunks": 2}, {}, 8, "chunks=2 cuts a rank's layers .* pp has one rank"),
    ({}, {"dropout": 0.1}, 8, "dropout=0.1: ranks draw other masks"),
]


def test_what_cannot_be_composed_is_refused_in_a_sentence() -> None:
    def job() -> list[str]:
        mesh, sentences = Mesh({"dp": 2}), []
        for of_layout, of_model, rows, _ in REFUSED:
            layout = Layout(**{"sizes": {"dp": 2}, **of_layout})
            with pytest.raises(ValueError) as error:
                make_step(replace(CONFIG, **of_model), layout, mesh, rows, LR)
            sentences.append(str(error.value))
        step = make_step(CONFIG, Layout({"dp": 2}, 2), mesh, 8, LR)
        before = [param.detach().clone() for param in step.params]
        tokens = torch.zeros(6, CONFIG.context, dtype=torch.long)
        eight = torch.zeros(8, CONFIG.context, dtype=torch.long)
        for inputs, targets in ((tokens, tokens), (eight[:, 1:], eight), (eight, eight - 100)):
            with pytest.raises(ValueError) as error:
                step(inputs, targets)
            sentences.append(str(error.value))
        assert all(map(torch.equal, step.params, before))
        return sentences

    wanted = [says for _, _, _, says in REFUSED] + ["the step was made for 8 rows of each"] * 2
    wanted.append("no target of the batch counts")
    for sentences in launch(job, world_size=2, backend="gloo"):
        for sentence, says in zip(sentences, wanted, strict=True):
            with pytest.raises(ValueError, match=says):
                raise ValueError(sentence)


def test_a_mesh_in_another_order_is_refused() -> None:
    """Its ranks would read other rows, and hold other parts, than the layout says."""

    class Sizes:
        sizes: ClassVar = {"tp": 2, "dp": 2}

        def size(self, axis: str) -> int:
            return self.sizes.get(axis, 1)

    mesh: Any = Sizes()
    assert WORDS in obstacle(CONFIG, Layout({"dp": 2, "tp": 2}), mesh, 8)
    assert obstacle(CONFIG, Layout({"tp": 2, "dp": 2}), mesh, 8) == ""


def test_a_tied_head_on_another_stage_is_refused_with_zero_2_and_3() -> None:
    def job() -> list[str]:
        mesh, sentences = Mesh({"pp": 2}), []
        tied = replace(CONFIG, tied=True)
        for config, layout in (
            (tied, Layout({"pp": 2}, 2, zero=2)),
            (tied, Layout({"pp": 2}, 2, zero=3)),
            (CONFIG, Layout({"pp": 2}, 8, chunks=2)),  # one microbatch: the schedule refuses
            (replace(CONFIG, layers=1), Layout({"pp": 2}, 2, chunks=2)),  # too few blocks: the cut
        ):
            with pytest.raises(ValueError) as error:
                make_step(config, layout, mesh, 8, LR)
            sentences.append(str(error.value))
        return sentences

    for sentences in launch(job, world_size=2, backend="gloo"):
        assert "ZeRO-2 cuts their gradients" in sentences[0]
        assert "ZeRO-3 cuts their gradients" in sentences[1]
        assert "microbatches" in sentences[2] and "1 blocks cannot be cut into 4" in sentences[3]


def test_another_optimizer_trains_as_in_one_process(seed: int) -> None:
    """AdamW, whole and in shards; the two have the losses of one process only if its state is right."""
    adamw = torch.optim.AdamW, {"weight_decay": 0.1}

    def job() -> list[list[float]]:
        torch.set_default_dtype(torch.float64)
        losses = []
        for zero in (0, 1, 2, 3):
            layout = Layout({"dp": 2}, 4, zero=zero)
            step = make_step(CONFIG, layout, Mesh(layout.sizes), ROWS, 1e-2, optimizer=adamw)
            losses.append([step(*a_batch(s, ROWS, seed)) for s in range(3)])
        return losses

    for losses in launch(job, world_size=2, backend="gloo"):
        for other in losses[1:]:
            assert other == pytest.approx(losses[0], abs=1e-9)
        assert losses[0] != pytest.approx(alone(False, ROWS, seed)[:3], abs=1e-4)
    assert SGD[1] == {"momentum": 0.9}


# ---- smallest_failing

SIZES = {"pp": 2, "dp": 4, "ep": 1, "cp": 2, "tp": 8}


class Counted:
    """A layout fails if one of the sets of axes is in use; it is counted how often that was asked."""

    def __init__(self, *guilty: str):
        self.guilty, self.calls = [set(axes.split()) for axes in guilty], 0

    def __call__(self, sizes: dict[str, int]) -> bool:
        assert [*sizes] == [*SIZES] and all(
            size in (1, SIZES[axis]) for axis, size in sizes.items()
        )
        self.calls += 1
        used = {axis for axis, size in sizes.items() if size > 1}
        sizes.clear()  # the caller's sizes are its own
        return any(axes <= used for axes in self.guilty)


@pytest.mark.parametrize(
    ("guilty", "wanted"),
    [
        (("dp",), {"dp": 4}),
        (("dp cp",), {"dp": 4, "cp": 2}),
        (("pp dp cp tp",), {"pp": 2, "dp": 4, "cp": 2, "tp": 8}),
        (("pp", "tp"), {"tp": 8}),
        (("pp cp", "dp tp", "tp cp"), {"cp": 2, "tp": 8}),
        (("",), {}),
    ],
)
def test_the_smallest_failing_layout(guilty: tuple[str, ...], wanted: dict[str, int]) -> None:
    before, fails = dict(SIZES), Counted(*guilty)
    assert smallest_failing(SIZES, fails) == wanted and [*smallest_failing(SIZES, fails)] == [
        *wanted
    ]
    assert before == SIZES and fails.calls <= 2 * (5 + 5**2)


def test_what_is_left_fails_and_nothing_of_it_can_be_left_out(seed: int) -> None:
    """Any function of the axes in use, also one that fails with fewer axes and not with more."""
    draw = torch.Generator().manual_seed(seed)
    axes = [axis for axis, size in SIZES.items() if size > 1]
    for _ in range(300):
        verdicts = torch.rand(2 ** len(axes), generator=draw) < 0.4

        def fails(sizes: dict[str, int], verdicts: Tensor = verdicts) -> bool:
            return bool(verdicts[sum((sizes[axis] > 1) << i for i, axis in enumerate(axes))])

        if not fails(SIZES) and not verdicts[0]:
            with pytest.raises(ValueError, match="does not fail"):
                smallest_failing(SIZES, fails)
            continue
        left = smallest_failing(SIZES, fails)
        assert fails({**dict.fromkeys(SIZES, 1), **left})
        assert not left or not verdicts[0]
        for axis in left:
            rest = {name: size for name, size in left.items() if name != axis}
            assert not fails({**dict.fromkeys(SIZES, 1), **rest})


def test_a_wrong_step_is_found_by_its_axes() -> None:
    """A step that forgets the sum over dp x cp is wrong on dp and on cp, and right on tp and pp."""
    sizes = {"pp": 1, "dp": 1, "cp": 2, "tp": 2}

    def forgets(sizes: dict[str, int]) -> Callable[[], list[float]]:
        def job() -> list[float]:
            torch.set_default_dtype(torch.float64)
            layout = Layout(sizes, 8)
            step = make_step(CONFIG, layout, Mesh(sizes), ROWS, LR)
            step.layout = replace(layout, zero=1)  # so it counts on ZeRO, which is not there
            return [step(*a_batch(s, ROWS, 0)) for s in range(2)]

        return job

    def fails(sizes: dict[str, int]) -> bool:
        n = Layout(sizes).gpus
        losses = launch(forgets(sizes), world_size=n, backend="gloo")[0]
        return losses != pytest.approx(alone(False, ROWS, 0)[:2], abs=1e-9)

    assert smallest_failing(sizes, fails) == {"cp": 2}


# ---- what a model writes


def test_a_model_writes_what_it_has_learned_and_the_same_for_the_same_seed() -> None:
    """32 bytes in a ring, learned by heart; a prompt longer than the context is cut."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(context=8, layers=1, heads=2, width=32))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    ring = bytes(range(40, 72)) * 3
    rows = torch.tensor([list(ring[i : i + 9]) for i in range(32)])
    for _ in range(35):
        next_token_loss(model(rows[:, :-1]), rows[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert generate(model, ring[:20], 40, temperature=0) == ring[20:60]
    assert generate(model, ring[:1], 5, temperature=0) == ring[1:6]
    drawn = [generate(model, b"(", 30, seed=seed, temperature=3.0) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2] and len(drawn[0]) == 30
    for prompt, temperature in ((b"", 1.0), (b"a", -1.0)):
        with pytest.raises(ValueError, match="a byte or more"):
            generate(model, prompt, 1, temperature=temperature)
