"""1F1B by `run_schedule` against `Schedule1F1B` of `torch.distributed.pipelining`, and against the simulator.

For the first both have stages of one model and the same microbatches, in turns, the ledger off on both
sides. Before anything is timed, all gradients are compared, in float64. The head is not tied: PyTorch leaves
it to the user to add up the gradients that first and last stage share.

For the second the step's passes are timed, and simulated from their medians. Two ranks: with a core each
on most machines, as a bubble is only seen if an idle rank does not leave its core to another. Twice: with
passes that take a few times as long as a message, whose time then shows, and with longer passes.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from benchmarks.table import Row
from course_lib import launch
from course_lib.models import GPT, GPTConfig, next_token_loss
from course_lib.pipeline import Stage, gpt_stages, measure, one_f_one_b, run_schedule, simulate

CONFIG = GPTConfig(width=128, heads=4, layers=4, context=32, tied=False)
ROWS, MICROBATCHES = 4, 8  # of a microbatch, of a step
ROUNDS, REPEATS = 3, 9  # launches, and steps of each within one
WORLDS = (2, 4)
REACH = 1.1
LARGER = replace(CONFIG, width=256, context=64)
BUBBLE_RANKS, BUBBLE_REACH = 2, 0.1

Step = Callable[[], object]


def batch(config: GPTConfig = CONFIG) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    shape = (2, MICROBATCHES, ROWS, config.context)
    inputs, targets = torch.randint(config.vocab_size, shape, generator=generator)
    return list(zip(inputs, targets, strict=True))


def a_stage(dtype: torch.dtype, config: GPTConfig = CONFIG) -> Stage:
    torch.manual_seed(0)
    schedule = one_f_one_b(dist.get_world_size(), MICROBATCHES)
    (stage,) = gpt_stages(GPT(config).to(dtype), schedule, dist.get_rank())
    return stage


def ours(stage: Stage, config: GPTConfig = CONFIG) -> Step:
    schedule, microbatches = one_f_one_b(dist.get_world_size(), MICROBATCHES), batch(config)
    return lambda: run_schedule(stage, schedule, microbatches)


def theirs(stage: Stage) -> Step:
    inputs, targets = (torch.cat(part) for part in zip(*batch(), strict=True))
    count = targets.numel()

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        return next_token_loss(logits, targets, "sum") / count

    made = PipelineStage(stage.module, stage.index, stage.length, torch.device("cpu"))
    schedule: Any = Schedule1F1B(made, MICROBATCHES, loss_fn=loss, scale_grads=False)
    first = [inputs] if stage.first else []
    last = {"target": targets} if stage.last else {}
    return lambda: schedule.step(*first, **last)


def flat_gradients(module: nn.Module) -> Tensor:
    grads = [param.grad for param in module.parameters()]
    return torch.cat([grad.flatten() for grad in grads if grad is not None])


def largest_error() -> float:
    """The largest error of all gradients, relative to the largest, in float64: rounding, or a fault."""
    losses = []
    for kind in (ours, theirs):
        stage = a_stage(torch.float64)
        kind(stage)()
        losses.append(flat_gradients(stage.module))
    mine, other = losses
    return float((mine - other).abs().max() / other.abs().max())


def race() -> tuple[float, list[float], list[float]]:
    """The largest error; seconds of the steps of ours and of theirs, in an order that all ranks share."""
    torch.set_num_threads(1)
    error = largest_error()
    stages = [a_stage(torch.float32) for _ in range(2)]
    steps = [ours(stages[0]), theirs(stages[1])]
    taken: list[list[float]] = [[], []]
    order = [0, 1]
    shuffle = random.Random(0).shuffle
    for repeat in range(REPEATS + 2):
        shuffle(order)
        for contender in order:
            stages[contender].module.zero_grad()
            dist.barrier()
            began = time.perf_counter()
            steps[contender]()
            if repeat >= 2:  # the first ones make objects that later ones find
                taken[contender].append(time.perf_counter() - began)
    return error, taken[0], taken[1]


@contextmanager
def without_ledger() -> Iterator[None]:
    """Ranks that are launched meanwhile record nothing."""
    kept = os.environ.get("COURSE_LEDGER")
    os.environ["COURSE_LEDGER"] = "off"
    try:
        yield
    finally:
        if kept is None:
            os.environ.pop("COURSE_LEDGER")
        else:
            os.environ["COURSE_LEDGER"] = kept


def medians(world_size: int) -> tuple[float, float]:
    """Seconds of a step of ours and of theirs; it takes as long as on its slowest rank."""
    taken: tuple[list[float], list[float]] = ([], [])
    with without_ledger():
        for number in range(ROUNDS):
            runs = launch(race, world_size=world_size, backend="gloo", timeout=300, seed=number)
            if not max(error for error, _, _ in runs) < 1e-9:
                raise RuntimeError(
                    f"gradients differ from Schedule1F1B's by {runs[0][0]:.1g} in float64: no time is worth "
                    "comparing"
                )
            for side in (0, 1):
                taken[side].extend(map(max, zip(*(times[side] for _, *times in runs), strict=True)))
    return statistics.median(taken[0]), statistics.median(taken[1])


class Bubble(NamedTuple):
    """The bubbles of a step of median length, as fractions of the total; seconds of the shortest pass."""

    measured: float
    free: float  # simulated, with messages that take no time
    slow: float  # simulated, with messages that take as long as measured
    shortest: float

    @property
    def off(self) -> float:
        return abs(self.measured - self.free)


def bubble(config: GPTConfig) -> Bubble:
    torch.set_num_threads(1)
    stage = a_stage(torch.float32, config)
    schedule = one_f_one_b(dist.get_world_size(), MICROBATCHES)
    timeline = measure(ours(stage, config), stage, schedule, steps=REPEATS)
    slow = timeline.durations
    free = {index: replace(durations, communication=0) for index, durations in slow.items()}
    return Bubble(
        timeline.of_total,
        simulate(schedule, free).of_total,
        simulate(schedule, slow).of_total,
        min(durations.forward for durations in slow.values()),
    )


def typical(config: GPTConfig) -> Bubble:
    """`bubble` of the launch whose difference between measured and simulated is the median one."""
    with without_ledger():
        comparisons = [
            launch(
                bubble, config, world_size=BUBBLE_RANKS, backend="gloo", timeout=300, seed=number
            )[0]
            for number in range(ROUNDS)
        ]
    return sorted(comparisons, key=lambda comparison: comparison.off)[ROUNDS // 2]


def rows() -> Iterator[Row]:
    for world_size in WORLDS:
        mine, other = medians(world_size)
        yield Row(
            f"1F1B, {MICROBATCHES} microbatches, GPT of width {CONFIG.width} on {world_size} ranks, gloo",
            "`Schedule1F1B`",
            mine / other,
            REACH,
            detail=f"{mine * 1e3:.0f} ms, {other * 1e3:.0f} ms",
        )
    for config, passes in ((CONFIG, "short passes"), (LARGER, "longer passes")):
        comparison = typical(config)
        yield Row(
            f"bubble of 1F1B measured, {MICROBATCHES} microbatches on {BUBBLE_RANKS} ranks, gloo, "
            f"{passes}",
            "simulated from medians of F and B, messages taking no time",
            comparison.off,
            BUBBLE_REACH,
            unit="points",
            detail=f"{comparison.measured:.1%}, {comparison.free:.1%}; with the messages' time "
            f"{comparison.slow:.1%}; from {comparison.shortest * 1e3:.0f} ms a pass",
        )
