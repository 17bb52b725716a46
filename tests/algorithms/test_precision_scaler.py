"""LossScaler against torch.amp.GradScaler, and on ranks with sharded gradients."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import cast

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

from course_lib import device, launch
from course_lib.precision import LossScaler


def test_both_ranks_skip_a_step_in_which_one_has_an_infinite_gradient() -> None:
    def job() -> tuple[bool, float, float]:
        weight = nn.Parameter(torch.ones(1))
        optimizer, scaler = torch.optim.SGD([weight], lr=1.0), LossScaler(scale=1024.0)
        slope = float("inf") if dist.get_rank() == 1 else 1.0
        scaler.scale_loss((slope * weight).sum()).backward()
        taken = scaler.step(optimizer)
        scaler.update()
        return taken, weight.item(), scaler.scale

    assert list(launch(job, world_size=2, backend="gloo")) == [(False, 1.0, 512.0)] * 2


RequireRanks = Callable[[int], None]


def optimizer_of(*starts: float) -> torch.optim.SGD:
    return torch.optim.SGD(
        [nn.Parameter(torch.tensor([start], device=device())) for start in starts], lr=1.0
    )


def give(optimizer: torch.optim.Optimizer, *gradients: float) -> None:
    for param, gradient in zip(optimizer.param_groups[0]["params"], gradients, strict=True):
        param.grad = torch.tensor([gradient], device=device())


def test_it_does_as_torchs_scaler(seed: int) -> None:
    draw = random.Random(seed)
    ours, theirs = optimizer_of(1.0, 2.0), optimizer_of(1.0, 2.0)
    scaler = LossScaler(2.0**10, growth=4.0, backoff=0.25, interval=3)
    reference = torch.amp.GradScaler(
        "cpu", init_scale=2.0**10, growth_factor=4.0, backoff_factor=0.25, growth_interval=3
    )
    for _ in range(60):
        loss = torch.tensor(draw.random())
        assert torch.equal(scaler.scale_loss(loss), reference.scale(loss))
        bad = draw.choice([0.0] * 5 + [float("inf"), float("nan"), -float("inf")])
        for optimizer in (ours, theirs):
            give(optimizer, draw.random() if optimizer is ours else 0.0, bad)
            theirs.param_groups[0]["params"][0].grad = ours.param_groups[0]["params"][
                0
            ].grad.clone()
        before = reference.get_scale()
        taken = scaler.step(ours)
        reference.step(theirs)
        scaler.update()
        reference.update()
        assert scaler.scale == reference.get_scale()
        assert taken == (bad == 0) and (taken or scaler.scale < before)
        pairs = zip(ours.param_groups[0]["params"], theirs.param_groups[0]["params"], strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


def test_several_optimizers_have_a_state_each_as_torchs_scaler_has(seed: int) -> None:
    """Each steps or skips by its own gradients; the scale falls if any of them has skipped."""
    draw = random.Random(seed)
    ours, theirs = ([optimizer_of(1.0), optimizer_of(2.0)] for _ in range(2))
    scaler = LossScaler(2.0**10, interval=3)
    reference = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
    reference.scale(torch.zeros(1))
    for _ in range(40):
        for mine, other in zip(ours, theirs, strict=True):
            gradient = draw.choice([draw.random() * 2.0**10] * 4 + [float("inf"), float("nan")])
            give(mine, gradient)
            give(other, gradient)
            if draw.random() < 0.5:
                scaler.unscale_(mine)
                reference.unscale_(other)
        for mine, other in zip(ours, theirs, strict=True):
            scaler.step(mine)
            reference.step(other)
        for mine in ours:
            with pytest.raises(RuntimeError, match="step was called already"):
                scaler.step(mine)
            with pytest.raises(RuntimeError, match="unscaled already"):
                scaler.unscale_(mine)
        scaler.update()
        reference.update()
        assert scaler.scale == reference.get_scale()
        for mine, other in zip(ours, theirs, strict=True):
            (a,), (b,) = (held.param_groups[0]["params"] for held in (mine, other))
            torch.testing.assert_close(a, b, equal_nan=True)


def test_the_scale_does_not_grow_past_float32_as_torchs() -> None:
    optimizer, scaler = optimizer_of(1.0), LossScaler(2.0**125, interval=1)
    reference = torch.amp.GradScaler("cpu", init_scale=2.0**125, growth_interval=1)
    reference.scale(torch.zeros(1))
    for _ in range(5):
        for held in (scaler, reference):
            give(optimizer, 1.0)
            held.step(optimizer)
            held.update()
        assert scaler.scale == reference.get_scale() <= 2.0**127
    with pytest.raises(ValueError, match=r"at most 3\.4e38"):
        LossScaler(2.0**128)


def test_groups_and_ranks_without_parameters_take_part(
    backend: str, require_ranks: RequireRanks
) -> None:
    """An empty first group, on one rank or on all; a rank whose optimizer holds nothing at all."""
    require_ranks(2)

    def body(rank_with_all: int) -> tuple[bool, bool]:
        weight = nn.Parameter(torch.ones(1, device=device()))
        holds = dist.get_rank() == rank_with_all
        groups = [{"params": []}, {"params": [weight] if holds else []}]
        optimizer, scaler = torch.optim.SGD(groups, lr=1.0), LossScaler(8.0)
        taken = []
        for gradient in (8.0, float("inf")):
            weight.grad = torch.tensor([gradient], device=device())
            taken.append(scaler.step(optimizer))
            scaler.update()
        return taken[0], taken[1]

    for rank in (0, 1):
        assert list(launch(body, rank, world_size=2, backend=backend)) == [(True, False)] * 2


def test_a_step_without_a_gradient_on_any_rank_is_refused() -> None:
    def body() -> str:
        with pytest.raises(
            RuntimeError, match=r"no rank has a gradient.*call backward\(\)"
        ) as info:
            LossScaler().step(optimizer_of(1.0))
        return str(info.value)

    assert body()
    assert len(launch(body, world_size=2, backend="gloo")) == 2


def test_gradients_are_unscaled_once_before_they_are_clipped() -> None:
    optimizer, scaler = optimizer_of(0.0, 0.0), LossScaler(8.0)
    give(optimizer, 24.0, 32.0)
    optimizer.param_groups[0]["params"].append(nn.Parameter(torch.ones(1)))  # without a gradient
    scaler.unscale_(optimizer)
    assert float(nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 1.0)) == 5.0
    with pytest.raises(RuntimeError, match="once a step"):
        scaler.unscale_(optimizer)
    assert scaler.step(optimizer)
    scaler.update()
    with pytest.raises(RuntimeError, match="follows a step"):
        scaler.update()
    assert [p.item() for p in optimizer.param_groups[0]["params"]] == pytest.approx([-0.6, -0.8, 1])


def test_arguments_are_refused_with_a_sentence() -> None:
    with pytest.raises(ValueError, match="expected are scale > 0"):
        LossScaler(0.0)
    with pytest.raises(ValueError, match=r"growth 0\.5"):
        LossScaler(growth=0.5)
    with pytest.raises(ValueError, match="backoff 0"):
        LossScaler(backoff=0.0)
    with pytest.raises(ValueError, match="interval 0"):
        LossScaler(interval=0)


def bodies(rank: int, kind: str) -> tuple[float, float]:
    """One step in which the last rank alone has an infinity: (parameter, scale)."""
    optimizer = optimizer_of(8.0)
    give(optimizer, float("inf") if rank == dist.get_world_size() - 1 else 8.0)
    if kind == "ours":
        scaler = LossScaler(8.0)
        scaler.step(optimizer)
        scaler.update()
        return float(optimizer.param_groups[0]["params"][0]), scaler.scale
    made = {"plain": torch.amp.GradScaler, "sharded": ShardedGradScaler}[kind]
    reference = made(device().type, init_scale=8.0)
    reference.scale(torch.zeros(1, device=device()))
    reference.step(optimizer)
    reference.update()
    return float(optimizer.param_groups[0]["params"][0]), reference.get_scale()


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_all_ranks_skip_together(
    world_size: int, backend: str, require_ranks: RequireRanks
) -> None:
    require_ranks(world_size)
    run = launch(lambda: bodies(dist.get_rank(), "ours"), world_size=world_size, backend=backend)
    assert list(run) == [(8.0, 4.0)] * world_size
    operations = run.ledger.operations(0)
    assert [operation.op for operation in operations] == ["all_reduce"]


def test_torchs_plain_scaler_splits_the_ranks_and_the_sharded_one_does_not(
    backend: str, require_ranks: RequireRanks
) -> None:
    require_ranks(2)
    plain = launch(lambda: bodies(dist.get_rank(), "plain"), world_size=2, backend=backend)
    assert list(plain) == [(7.0, 8.0), (8.0, 4.0)]
    sharded = launch(lambda: bodies(dist.get_rank(), "sharded"), world_size=2, backend=backend)
    assert list(sharded) == [(8.0, 4.0)] * 2


def test_a_group_of_its_own_agrees_alone(backend: str, require_ranks: RequireRanks) -> None:
    require_ranks(4)

    def job() -> tuple[float, float]:
        groups = [cast(dist.ProcessGroup, dist.new_group(ranks)) for ranks in ([0, 2], [1, 3])]
        rank = dist.get_rank()
        optimizer, scaler = optimizer_of(8.0), LossScaler(8.0, group=groups[rank % 2])
        give(optimizer, float("nan") if rank == 2 else 8.0)
        scaler.step(optimizer)
        scaler.update()
        return float(optimizer.param_groups[0]["params"][0]), scaler.scale

    run = launch(job, world_size=4, backend=backend)
    assert list(run) == [(8.0, 4.0), (7.0, 8.0)] * 2
