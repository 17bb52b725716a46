"""A step on a mesh against one process in float64: losses, gradients, norms; bytes of every axis."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from course_lib import launch
from course_lib.mesh import (
    Mesh,
    hybrid_step,
    mesh_stages,
    my_part,
    parameters,
    train_step,
)
from course_lib.models import GPT, GPTConfig, next_token_loss
from course_lib.pipeline.generators import one_f_one_b
from course_lib.tensor_parallel.cut import Parallel

LAYERS, HEADS, WIDTH, VOCABULARY, SEQ, ROWS, STEPS, COUNT = 4, 4, 32, 41, 16, 8, 3, 4
SIZES = [
    {"pp": 2, "dp": 2, "tp": 2},
    {"pp": 2, "cp": 2, "tp": 2},
    {"dp": 2, "cp": 2, "tp": 2},
    {"cp": 2, "pp": 2, "dp": 2},
]
SIXTEEN = {"pp": 2, "dp": 2, "cp": 2, "tp": 2}
EVERYTHING = os.environ.get("COURSE_ALL_TESTS") == "1"


def a_model(modern: bool, tied: bool) -> GPT:
    """GPT-2's parts or LLaMA's; every rank draws the same."""
    plain = GPTConfig(VOCABULARY, SEQ, layers=LAYERS, heads=HEADS, width=WIDTH)
    config = plain.modern() if modern else plain
    torch.manual_seed(5)
    return GPT(
        GPTConfig(**{**vars(config), "kv_heads": HEADS // 2 if modern else None, "tied": tied})
    )


def a_batch(seed: int) -> tuple[Tensor, Tensor]:
    """Targets that count lie unevenly over places and rows."""
    generator = torch.Generator().manual_seed(seed)
    inputs, targets = torch.randint(VOCABULARY, (2, ROWS, SEQ), generator=generator)
    targets[0, :9] = -100
    targets[3, 4:] = -100
    targets[6] = -100
    return inputs, targets


class Found(NamedTuple):
    """A run of a rank: (loss, norm) of each step; the first step's gradients by name; what is cut how."""

    steps: list[tuple[float, float]]
    gradients: dict[str, Tensor]
    bounds: dict[str, tuple[int, int, int]]


def alone(modern: bool, tied: bool, dp: int, seed: int) -> Found:
    """One process: the mean over the replicas of the mean over each one's targets."""
    model, (inputs, targets) = a_model(modern, tied).double(), a_batch(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps, first = [], {}
    for _ in range(STEPS):
        pairs = zip(inputs.chunk(dp), targets.chunk(dp), strict=True)
        loss = torch.stack([next_token_loss(model(x), y) for x, y in pairs]).mean()
        loss.backward()
        first = first or {
            name: param.grad.clone()
            for name, param in model.named_parameters()
            if param.grad is not None
        }
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        steps.append((loss.item(), norm.item()))
    return Found(steps, first, {})


def on_a_rank(sizes: dict[str, int], modern: bool, tied: bool, sequence: Any, seed: int) -> Found:
    mesh, schedule = Mesh(sizes), one_f_one_b(sizes.get("pp", 1), COUNT)
    model = a_model(modern, tied).double()
    stages = mesh_stages(model, mesh, schedule, sequence=sequence)
    bounds = {
        id(getattr(layer, name)): (cut.dim, *cut.bounds())
        for stage in stages
        for layer in stage.module.modules()
        if isinstance(layer, Parallel)
        for name, cut in layer.cuts.items()
    }
    named = parameters(stages)
    optimizer = torch.optim.SGD([param for _, param in named], lr=0.1)
    batch, steps, first = a_batch(seed), [], {}
    rows, _ = my_part(mesh.rank, sizes, ROWS, SEQ)
    mine = slice(rows.start, rows.stop)
    microbatches = list(zip(batch[0][mine].chunk(COUNT), batch[1][mine].chunk(COUNT), strict=True))
    hybrid_step(stages, schedule, microbatches, mesh)
    first = {name: param.grad.clone() for name, param in named if param.grad is not None}
    optimizer.zero_grad()
    for _ in range(STEPS):
        steps.append(train_step(stages, schedule, batch, COUNT, mesh, optimizer, 1.0))
    return Found(steps, first, {n: bounds[id(p)] for n, p in named if id(p) in bounds})


def same_as_alone(ranks: list[Found], wanted: Found) -> None:
    """Losses and norms to 1e-12, gradients to 1e-12 of the model's largest; every parameter is held."""
    largest = max(float(gradient.abs().max()) for gradient in wanted.gradients.values())
    for rank, found in enumerate(ranks):
        for step, (ours, theirs) in enumerate(zip(found.steps, wanted.steps, strict=True)):
            assert ours == pytest.approx(theirs, abs=1e-12, rel=1e-12), (rank, step)
        for name, gradient in found.gradients.items():
            part = wanted.gradients[name]
            if name in found.bounds:
                dim, start, end = found.bounds[name]
                part = part.narrow(dim, start, end - start)
            worst = float((gradient - part).abs().max())
            assert worst <= 1e-12 * largest, (rank, name, worst)
    assert {name for found in ranks for name in found.gradients} == set(wanted.gradients)


PARTS = [
    pytest.param(False, True, None, id="gpt2-tied"),
    pytest.param(True, False, "keep", id="llama-untied-sequence"),
    pytest.param(False, False, "keep", id="gpt2-untied-sequence"),
    pytest.param(True, True, None, id="llama-tied"),
]


def some() -> list[Any]:
    """Every mesh, each with other parts of the model; all of them with COURSE_ALL_TESTS=1."""
    pairs = [(i, k) for i in range(len(SIZES)) for k in range(len(PARTS)) if EVERYTHING or i == k]
    return [
        pytest.param(SIZES[i], *PARTS[k].values, id=f"{'x'.join(SIZES[i])}-{PARTS[k].id}")
        for i, k in pairs
    ]


@pytest.mark.parametrize(("sizes", "modern", "tied", "sequence"), some())
def test_eight_ranks_train_as_one_process(
    sizes: dict[str, int], modern: bool, tied: bool, sequence: Any, seed: int, cpu_backend: str
) -> None:
    ranks = launch(
        on_a_rank, sizes, modern, tied, sequence, seed, world_size=8, backend=cpu_backend
    )
    same_as_alone(list(ranks), alone(modern, tied, sizes.get("dp", 1), seed))


@pytest.mark.parametrize(("modern", "tied", "sequence"), PARTS if EVERYTHING else PARTS[:1])
def test_sixteen_ranks_train_as_one_process(
    modern: bool, tied: bool, sequence: Any, seed: int
) -> None:
    ranks = launch(
        on_a_rank, SIXTEEN, modern, tied, sequence, seed,
        world_size=16, backend="gloo", timeout=120,
    )  # fmt: skip
    same_as_alone(list(ranks), alone(modern, tied, 2, seed))
