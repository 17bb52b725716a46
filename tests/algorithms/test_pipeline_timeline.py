"""Measured timelines: each rank's passes on one clock, from any executor."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.utils.checkpoint import checkpoint

from course_lib import launch
from course_lib.pictures.gantt import gantt, gantts, summary
from course_lib.pipeline import (
    Action,
    Durations,
    Schedule,
    Stage,
    run_schedule,
    simulate,
    stage_ranks,
)
from course_lib.pipeline.actions import flat
from course_lib.pipeline.clocks import ahead, readings
from course_lib.pipeline.generators import (
    dualpipe,
    gpipe,
    interleaved_one_f_one_b,
    one_f_one_b,
    zero_bubble_h1,
)
from course_lib.pipeline.halves import LaterWeights
from course_lib.pipeline.stopwatch import Pass, Stopwatch
from course_lib.pipeline.timeline import Timeline, measure, together


def test_a_measured_step_has_the_passes_of_its_schedule() -> None:
    schedule = one_f_one_b(2, 3)
    batch = [(torch.ones(1, 4), torch.ones(1, 4)) for _ in range(3)]

    def job() -> Timeline:
        stage = Stage(
            dist.get_rank(), 2, nn.Linear(4, 4), shape=lambda inputs: inputs.shape,
            loss=lambda output, targets: (output - targets).square().sum(),
        )  # fmt: skip
        return measure(lambda: run_schedule(stage, schedule, batch), stage, schedule, steps=1)

    for timeline in launch(job, world_size=2, backend="gloo"):
        assert [list(row) for row in timeline.schedule] == schedule


WIDTH = 4
FORWARD, BACKWARD, LOSS = 0.01, 0.02, 0.015  # seconds, per stage more (`slower`); the loss's twice
NAP = 0.005


class Nap(torch.autograd.Function):
    """The identity, after a nap."""

    @staticmethod
    def forward(ctx, x: Tensor, forward: float, backward: float) -> Tensor:
        ctx.backward_seconds = backward
        time.sleep(forward)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        time.sleep(ctx.backward_seconds)
        return gradients[0], None, None


class Slow(nn.Module):
    """A linear layer of which later stages take longer. The nap's backward comes after the layer's."""

    def __init__(self, index: int):
        super().__init__()
        self.linear, self.index = nn.Linear(WIDTH, WIDTH), index

    def forward(self, x: Tensor) -> Tensor:
        # not of x: in the first stage it needs no gradient, so that its naps would be left out
        bias = Nap.apply(self.linear.bias, *slower(self.index))
        return nn.functional.linear(x, self.linear.weight, bias)


def slower(index: int) -> tuple[float, float]:
    return FORWARD + NAP * index, BACKWARD + NAP * index


def slow_loss(output: Tensor, targets: Tensor) -> Tensor:
    return Nap.apply((output - targets).square().sum(), LOSS, LOSS)


def slow_stages(schedule: Schedule, rank: int, copies: int = 1) -> list[Stage]:
    ranks = stage_ranks(schedule)
    torch.manual_seed(0)
    return [
        Stage(
            index, len(ranks) // copies, Slow(index % (len(ranks) // copies)), lambda x: x.shape,
            loss=slow_loss, count=lambda targets: torch.tensor(targets.numel()), copies=copies,
        )
        for index in sorted(ranks) if ranks[index] == rank
    ]  # fmt: skip


def a_batch(seed: int, count: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn((2, count, 3, WIDTH), generator=generator)
    return list(zip(x, y, strict=True))


def in_order(schedule: Schedule) -> list[list[Action]]:
    """The schedule with its pairs taken apart."""
    return [list(flat(row)) for row in schedule]


def least(action: Action, length: int) -> float:
    """Seconds that a pass naps at least."""
    index = action.stage % length
    forward, backward = slower(index)
    last = LOSS if index == length - 1 else 0.0
    return {"F": forward + last, "B": backward + last, "I": backward + last, "W": 0.0}[action.kind]


def nothing_before_its_input(found: Timeline, length: int) -> None:
    """A forward ends before the next stage's begins, a backward before the previous stage's begins."""
    times = {
        (
            event.action.stage,
            "F" if event.action.kind == "F" else "B",
            event.action.microbatch,
        ): event
        for event in found.events
        if isinstance(event.action, Action) and event.action.kind != "W"
    }
    for (stage, kind, k), event in times.items():
        if kind == "F" and (stage + 1) % length:
            assert event.end <= times[stage + 1, "F", k].start
        if kind == "B" and stage % length:
            assert event.end <= times[stage - 1, "B", k].start
        if kind == "B":
            assert times[stage, "F", k].end <= event.start


CASES: dict[str, tuple[Schedule, int]] = {
    "gpipe": (gpipe(2, 3), 1),
    "one_f_one_b": (one_f_one_b(3, 4), 1),
    "interleaved": (interleaved_one_f_one_b(2, 2, 2), 1),
    "halves": (zero_bubble_h1(2, 3), 1),
    "pairs": (dualpipe(2, 4), 2),
}


@pytest.mark.parametrize("name", CASES)
def test_every_pass_is_timed_where_it_was_done(name: str, seed: int):
    schedule, copies = CASES[name]
    batch = a_batch(seed, 1 + max(one.microbatch for row in schedule for one in flat(row)))

    def body() -> tuple[Timeline, bool]:
        stages = slow_stages(schedule, dist.get_rank(), copies)
        found = measure(lambda: run_schedule(stages, schedule, batch), stages, schedule, steps=1)
        clean = all(
            stage.loss is slow_loss
            and not stage.module._forward_hooks
            and not stage.module._forward_pre_hooks
            for stage in stages
        )
        return found, clean

    run = launch(body, world_size=len(schedule), backend="gloo", timeout=60)
    found = run[0][0]
    assert all(other == found and clean for other, clean in run)
    assert found.schedule == in_order(schedule)
    length = len(stage_ranks(schedule)) // copies
    nothing_before_its_input(found, length)
    assert min(event.start for event in found.events) == 0
    for event in found.events:
        assert isinstance(event.action, Action)
        assert event.end - event.start >= least(event.action, length), event
    for starts, ends in zip(found.starts, found.ends, strict=True):
        assert all(end <= start for end, start in zip(ends[:-1], starts[1:], strict=True))
    assert found.bubble == pytest.approx([found.total - busy for busy in found.busy])


def students_gpipe(
    stage: Stage, schedule: Schedule, batch: Sequence[tuple[Tensor, Tensor]], late: bool
) -> None:
    """Another executor: blocking, its losses computed at once or only when a backward needs them."""
    rank, count = dist.get_rank(), sum(targets.numel() for _, targets in batch)
    kept: dict[int, tuple[Tensor, Tensor]] = {}
    for action in flat(schedule[rank]):
        k = action.microbatch
        x, targets = batch[k]
        if action.kind == "F":
            if not stage.first:
                x = torch.empty_like(x)
                dist.recv(x, rank - 1)
                x.requires_grad_()
            output = checkpoint(stage.module, x, use_reentrant=False) if late else stage.module(x)
            if stage.last and not late:
                output = stage.loss(output, targets) / count
            if not stage.last:
                dist.send(output.detach(), rank + 1)
            kept[k] = x, output
        else:
            x, output = kept.pop(k)
            if stage.last:
                (stage.loss(output, targets) / count if late else output).backward()
            else:
                gradient = torch.empty_like(output)
                dist.recv(gradient, rank + 1)
                output.backward(gradient)
            if not stage.first:
                assert x.grad is not None
                dist.send(x.grad, rank - 1)


@pytest.mark.parametrize("late", [False, True])
def test_other_executors_are_measured_as_well(late: bool, seed: int):
    """Among them one that recomputes forwards in backward, and losses long after their forwards."""
    schedule, batch = gpipe(2, 3), a_batch(seed, 3)

    def body() -> Timeline:
        (stage,) = slow_stages(schedule, dist.get_rank())
        return measure(
            lambda: students_gpipe(stage, schedule, batch, late), stage, schedule, steps=1
        )

    found = launch(body, world_size=2, backend="gloo", timeout=60)[0]
    assert found.schedule == schedule
    nothing_before_its_input(found, 2)
    for event in found.events:
        assert isinstance(event.action, Action)
        stage, kind, _ = event.action
        seconds = event.end - event.start
        if not late:
            assert seconds >= least(event.action, 2), event
        elif kind == "B":  # the forward again, and of the last stage the loss's backward
            assert seconds >= sum(slower(stage)) + LOSS * stage, event


def test_pytorchs_schedule_is_measured_as_well(seed: int):
    schedule, batch = one_f_one_b(2, 4), a_batch(seed, 4)

    def body() -> Timeline:
        (stage,) = slow_stages(schedule, dist.get_rank())
        x, y = (torch.cat(part) for part in zip(*batch, strict=True))
        made = PipelineStage(stage.module, stage.index, stage.length, torch.device("cpu"))
        theirs: Any = Schedule1F1B(
            made, 4, loss_fn=lambda output, targets: stage.loss(output, targets), scale_grads=False
        )
        first, last = ([x] if stage.first else []), ({"target": y} if stage.last else {})
        return measure(lambda: theirs.step(*first, **last), stage, schedule, steps=1)

    found = launch(body, world_size=2, backend="gloo", timeout=60)[0]
    assert found.schedule == schedule
    nothing_before_its_input(found, 2)
    for event in found.events:
        assert isinstance(event.action, Action)
        assert event.end - event.start >= least(event.action, 2), event


# ---- what follows from the times


def by_the_clock(schedule: Schedule, durations: dict[int, Durations]) -> Timeline:
    """The measurements of a run whose passes take exactly these times, on a clock with a random start."""
    found = simulate(schedule, durations)
    rows: list[list[Pass]] = [[] for _ in schedule]
    for rank, action, start, end in found.events:
        assert isinstance(action, Action)
        rows[rank].append(Pass(action, 1000 + start, 1000 + end))
    return together(rows, len(stage_ranks(schedule)))


@pytest.mark.parametrize("generator", [gpipe, one_f_one_b, zero_bubble_h1])
def test_durations_of_a_timeline_simulate_to_that_timeline(
    generator: Callable[[int, int], Schedule], seed: int
):
    chance = random.Random(seed)
    for _ in range(10):
        stages = chance.randrange(2, 6)
        schedule = generator(stages, chance.randrange(stages, 12))
        message = chance.random()
        durations = {
            stage: Durations(*(1 + chance.random() for _ in range(3)), communication=message)
            for stage in range(stages)
        }
        found = by_the_clock(schedule, durations)
        again = simulate(schedule, found.durations)
        assert found.delay == pytest.approx(message)
        assert again.total == pytest.approx(found.total)
        assert again.busy == pytest.approx(found.busy)
        assert again.of_total == pytest.approx(found.of_total)
        halved = generator is zero_bubble_h1
        for stage, one in found.durations.items():
            assert one.forward == pytest.approx(durations[stage].forward)
            assert math.isnan(one.input) != halved
            assert (one.backward is None) == halved


def test_a_median_forgets_the_one_that_was_disturbed():
    row = [(Action(0, "F", k), k, k + (5 if k == 1 else 0.5)) for k in range(3)]
    found = together([[Pass(*one) for one in row]], 1)
    assert found.durations[0].forward == 0.5
    assert found.delay == 0


def test_nothing_measured_is_a_sentence():
    with pytest.raises(ValueError, match="no stage's module was run in a step"):
        together([[], []], 2)


def test_a_module_that_is_run_too_often_is_a_sentence_and_leaves_nothing_behind():
    schedule = gpipe(1, 2)
    (stage,) = slow_stages(schedule, 0)
    x = torch.zeros(3, WIDTH)
    with (
        pytest.raises(ValueError, match="which has 2 forwards of it: run each microbatch once"),
        Stopwatch([stage], schedule[0]),
    ):
        for _ in range(3):
            stage.module(x)
    assert stage.loss is slow_loss
    assert not stage.module._forward_hooks
    around = LaterWeights.around
    with Stopwatch([stage], schedule[0]) as watch:
        stage.module(x)
        assert LaterWeights.around is not around
    assert LaterWeights.around is around
    assert [one.action for one in watch.passes()] == [Action(0, "F", 0)]


# ---- clocks


def test_clocks_of_two_machines_are_brought_together(seed: int):
    """Barriers that all ranks enter and leave at random moments; the error is at most half of the bounds."""
    chance = random.Random(seed)
    for _ in range(200):
        shift = chance.choice([0.0, chance.uniform(-1e4, 1e4)])
        mine, reference, widest = [], [], math.inf
        for k in range(8):
            entered = [k + chance.random() / 100 for _ in range(2)]
            left = [max(entered) + chance.random() / 100 for _ in range(2)]
            reference.append((entered[0], left[0]))
            mine.append((entered[1] + shift, left[1] + shift))
            widest = min(widest, left[0] - entered[1] + left[1] - entered[0])
        found = ahead(mine, reference)
        if shift == 0:
            assert found == 0
        else:
            assert abs(found - shift) <= widest / 2 + 1e-9


def test_ranks_of_one_machine_share_a_clock():
    run = launch(readings, world_size=3, backend="gloo")
    assert [ahead(mine, run[0]) for mine in run] == [0, 0, 0]


@pytest.mark.gpu
def test_on_a_gpu_a_pass_takes_as_long_as_its_kernels(seed: int):
    """Launching 40 products of large matrices takes a fraction of what they take."""
    size, products = 4096, 40
    schedule = gpipe(1, 3)

    class Long(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.eye(size))

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(products):
                x = x @ self.weight
            return x

    def body() -> tuple[Timeline, float]:
        device = torch.device("cuda", torch.cuda.current_device())
        stage = Stage(
            0, 1, Long().to(device), lambda x: x.shape,
            loss=lambda y, t: (y - t).square().sum(),
            count=lambda t: torch.tensor(t.numel(), device=device),
        )  # fmt: skip
        batch = [
            (torch.randn(size, size, device=device), torch.zeros(size, size, device=device))
        ] * 3
        found = measure(lambda: run_schedule(stage, schedule, batch), stage, schedule, steps=1)
        torch.cuda.synchronize()
        began = time.perf_counter()
        run_schedule(stage, schedule, batch)
        torch.cuda.synchronize()
        return found, time.perf_counter() - began

    found, seconds = launch(body, world_size=1, backend="nccl", timeout=120)[0]
    assert found.schedule == schedule
    assert sum(found.busy) == pytest.approx(seconds, rel=0.3)


# ---- charts


def test_measured_and_simulated_are_drawn_under_one_scale():
    schedule = one_f_one_b(2, 3)
    measured = by_the_clock(schedule, {0: Durations(0.001), 1: Durations(0.002)})
    simulated = simulate(schedule, Durations(0.001, 0.0005, 0.0005))
    figure = gantts({"measured": measured, "simulated": simulated}, seconds=True)
    longest = max(measured.total, simulated.total)
    assert [ax.get_xlim() for ax in figure.axes] == [(0, longest)] * 2
    upper, lower = (ax.get_position() for ax in figure.axes)
    assert upper.y0 > lower.y1
    for ax, times in zip(figure.axes, (measured, simulated), strict=True):
        boxes = [path.get_extents() for one in ax.collections for path in one.get_paths()]
        assert sorted(box.x0 for box in boxes) == pytest.approx(
            sorted(event.start for event in times.events)
        )
        assert summary(times, seconds=True) in [one.get_text() for one in ax.texts]
    assert summary(simulated, seconds=True).startswith("total 8 ms · ")
    assert "milliseconds" in [one.get_text() for one in figure.axes[0].texts]
    with pytest.raises(ValueError, match="only a simulation knows its critical path"):
        gantt(measured, critical=True)
    with pytest.raises(ValueError, match="give at least one chart"):
        gantts({})
