"""The trainer: fifteen layouts with one loss, a step on 2 x 2 x 2 against PyTorch's, DDP against one rank.

Nothing is timed before it was found right: the losses of all layouts agree to 1e-9 in float64, and the two
steps on 2 x 2 x 2 to 1e-6 in float32.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.four_dimensions import INSIDE, MICROBATCHES, UNTIED, batch, theirs, without_ledger
from benchmarks.table import Row
from course_lib import launch
from course_lib.mesh import Mesh
from course_lib.models import GPT, PRESETS, GPTConfig, next_token_loss
from course_lib.planning import Layout
from course_lib.trainer import FIFTEEN, ROWS, distribute, make_step

SMALL = GPTConfig(vocab_size=64, context=32, layers=4, heads=4, width=32, tied=False)
MODEL = replace(PRESETS["0.8M"], context=128, tied=False)
STEPS, REPEATS, LR = 5, 9, 0.1


# ---- fifteen layouts


def losses(layout: Layout) -> list[float]:
    torch.set_default_dtype(torch.float64)
    step = make_step(SMALL, layout, Mesh(layout.sizes), ROWS, LR)
    tokens = torch.arange(ROWS * (SMALL.context + 1)).view(ROWS, -1).pow(2) % SMALL.vocab_size
    return [step(tokens[:, :-1], tokens[:, 1:]) for _ in range(STEPS)]


def fifteen() -> Iterator[Row]:
    began, runs = time.perf_counter(), {}
    for name, layout in FIFTEEN.items():
        runs[name] = launch(losses, layout, world_size=layout.gpus, backend="gloo")[0]
    seconds = time.perf_counter() - began
    first = runs["one process"]
    apart = max(abs(a - b) for run in runs.values() for a, b in zip(run, first, strict=True))
    yield Row(
        f"{len(FIFTEEN)} layouts on 1 to 8 ranks, {STEPS} steps of each, float64", "", seconds, 20.0, "s",
    )  # fmt: skip
    yield Row(
        "largest difference of their losses, units of 1e-9", "one process", apart / 1e-9, 1.0,
        detail=f"{apart:.0e}",
    )  # fmt: skip


# ---- our step and PyTorch's, with the optimizer


def ours() -> Callable[[], float]:
    layout = Layout(INSIDE, microbatch=1)
    rows = [microbatch for place in range(2) for microbatch in batch(place)]
    inputs, targets = (torch.cat(parts) for parts in zip(*rows, strict=True))
    step = make_step(UNTIED, layout, Mesh(layout.sizes), 2 * MICROBATCHES, LR)
    return lambda: step(inputs, targets)


def pytorchs() -> Callable[[], float]:
    forward_and_backward, params = theirs()
    optimizer = torch.optim.SGD(params, lr=LR, momentum=0.9)

    def step() -> float:
        loss = forward_and_backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def race() -> tuple[list[list[float]], list[list[float]]]:
    """Losses and seconds of both sides. They step in turns, in an order that all ranks share."""
    torch.set_num_threads(1)
    sides = [ours(), pytorchs()]
    lost: list[list[float]] = [[step() for _ in range(3)] for step in sides]
    taken: list[list[float]] = [[], []]
    order, shuffle = [0, 1], random.Random(0).shuffle
    for _ in range(REPEATS):
        shuffle(order)
        for side in order:
            dist.barrier()
            began = time.perf_counter()
            sides[side]()
            taken[side].append(time.perf_counter() - began)
    return lost, taken


def against_pytorch() -> Iterator[Row]:
    with without_ledger():
        ranks = list(launch(race, world_size=8, backend="gloo", timeout=300))
    worst = max(abs(a - b) for lost, _ in ranks for a, b in zip(*lost, strict=True))
    if worst > 1e-5:
        raise RuntimeError(f"the losses of both steps are {worst:.0e} apart")
    mine, other = (
        statistics.median(
            max(step) for step in zip(*(taken[side] for _, taken in ranks), strict=True)
        )
        for side in (0, 1)
    )
    yield Row(
        "`make_step` on pp 2, dp 2, tp 2, a GPT of width 128, 4 microbatches, gloo",
        "`parallelize_module`, `fully_shard` and `Schedule1F1B`",
        mine / other,
        1.0,
        detail=f"{1e3 * mine:.0f} ms, {1e3 * other:.0f} ms",
    )


# ---- DDP on two ranks against one


def seconds_of(how: str, tokens: Tensor) -> float:
    """Of the fastest step, with a thread for each rank."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = distribute(GPT(MODEL), how)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    rows = tokens.tensor_split(dist.get_world_size())[dist.get_rank()]
    taken = []
    for _ in range(REPEATS):
        dist.barrier()
        began = time.perf_counter()
        next_token_loss(model(rows[:, :-1]), rows[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.barrier()
        taken.append(time.perf_counter() - began)
    return min(taken)


def two_cores() -> Iterator[Row]:
    tokens = torch.randint(MODEL.vocab_size, (ROWS, MODEL.context + 1))
    with without_ledger():
        alone, both = (
            launch(seconds_of, how, tokens, world_size=n, backend="gloo")[0]
            for how, n in (("one", 1), ("ddp", 2))
        )
    yield Row(
        "a step of the 0.8M GPT, 8 x 128 tokens, by DDP on two ranks", "one rank", both / alone, 1 / 1.3,
        detail=f"{1e3 * both:.0f} ms, {1e3 * alone:.0f} ms",
    )  # fmt: skip


def rows() -> Iterator[Row]:
    yield from fifteen()
    yield from against_pytorch()
    yield from two_cores()
