"""Local steps against data parallelism, the mean of the ends, and PyTorch's SGD; bytes and messages."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import course_lib
from course_lib import data_parallel, launch, operation
from course_lib.operation import local_steps


def test_two_ranks_end_at_the_mean_of_what_each_would_reach_alone() -> None:
    torch.manual_seed(0)
    model, samples = Mean(nn.Linear(3, 1).double()), torch.randn(2, 4, 5, 3).double()

    def job() -> Tensor:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        local_steps(model, optimizer, list(samples[dist.get_rank()]), 4, 1.0, 0.0)
        return parameters_to_vector(model.parameters()).detach()

    ends = []
    for own in samples:  # one process trains both models, without any messages
        alone = copy.deepcopy(model)
        optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
        for batch in own:
            optimizer.zero_grad()
            alone(batch).backward()
            optimizer.step()
        ends.append(parameters_to_vector(alone.parameters()).detach())
    for vector in launch(job, world_size=2, backend="gloo"):
        torch.testing.assert_close(vector, (ends[0] + ends[1]) / 2)


class Mean(nn.Module):
    """`model(batch)`: the mean square of the output."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, batch: Tensor) -> Tensor:
        return self.module(batch).square().mean()


class Toy(nn.Module):
    """The mean loss of a batch. A frozen layer, and one that takes part only if a batch's first number is
    positive."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.frozen, self.some, self.last = (nn.Linear(4, 4) for _ in range(4))
        self.frozen.requires_grad_(False)

    def forward(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        h = self.frozen(torch.tanh(self.first(x)))
        h = self.some(h) if x[0, 0] > 0 else h
        return mse_loss(self.last(torch.tanh(h)), y)


WORLDS = [1, 2, 3, 4]
PUBLISHED = (0.7, 0.9)
RequireRanks = Callable[[int], None]
Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def adamw(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.02)


def toy(seed: int) -> Toy:
    torch.manual_seed(seed)
    return Toy().double()


def batches(seed: int, rank: int, steps: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1000 * (seed % 1000) + rank)
    drawn = torch.randn(steps, 2, 6, 4, generator=generator, dtype=torch.float64)
    return [(x, y) for x, y in drawn]


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def job(
    seed: int,
    make: Make,
    steps: int,
    between: int,
    outer: tuple[float, float],
    members: list[int] | None = None,
) -> Tensor:
    """The trained parameters at the end, of this rank. members: of a group, all ranks when left out."""
    where = course_lib.device()
    model, rank = toy(seed).to(where), dist.get_rank()
    group = cast(dist.ProcessGroup, dist.new_group(members)) if members else None
    own = [(x.to(where), y.to(where)) for x, y in batches(seed, rank, steps)]
    if members is None or rank in members:
        local_steps(model, make(trained(model)), own, between, *outer, group=group)
    return parameters_to_vector(trained(model)).detach().cpu()


def one_process(
    seed: int, ranks: list[int], make: Make, steps: int, between: int, outer: tuple[float, float]
) -> Tensor:
    """All ranks in one process; PyTorch's SGD takes the outer steps."""
    models = [toy(seed) for _ in ranks]
    optimizers = [make(trained(model)) for model in models]
    data = [batches(seed, rank, steps) for rank in ranks]
    start = nn.Parameter(parameters_to_vector(trained(models[0])).detach())
    lr, momentum = outer
    sgd_outside = torch.optim.SGD([start], lr=lr, momentum=momentum, nesterov=momentum > 0)
    for step in range(steps):
        for model, optimizer, own in zip(models, optimizers, data, strict=True):
            optimizer.zero_grad()
            model(own[step]).backward()
            optimizer.step()
        if (step + 1) % between == 0 or step + 1 == steps:
            ends = torch.stack([parameters_to_vector(trained(model)).detach() for model in models])
            start.grad = start.detach() - ends.mean(0)
            sgd_outside.step()
            for model in models:
                vector_to_parameters(start.detach().clone(), trained(model))
    return start.detach()


@pytest.mark.parametrize("world_size", WORLDS)
def test_with_one_step_between_it_is_data_parallelism(
    world_size: int, backend: str, seed: int, require_ranks: RequireRanks
) -> None:
    require_ranks(world_size)

    def replicas() -> Tensor:
        model, where = toy(seed), course_lib.device()
        replica = data_parallel.NaiveDataParallel(model.to(where))
        optimizer = sgd(trained(model))
        for x, y in batches(seed, dist.get_rank(), 3):
            optimizer.zero_grad()
            replica((x.to(where), y.to(where))).backward()
            replica.finish_gradient_synchronization()
            optimizer.step()
        return parameters_to_vector(trained(model)).detach().cpu()

    wanted = launch(replicas, world_size=world_size, backend=backend)[0]
    for vector in launch(job, seed, sgd, 3, 1, (1.0, 0.0), world_size=world_size, backend=backend):
        torch.testing.assert_close(vector, wanted)


@pytest.mark.parametrize(
    ("make", "outer"), [(sgd, (1.0, 0.0)), (sgd, PUBLISHED), (adamw, PUBLISHED)]
)
@pytest.mark.parametrize("world_size", WORLDS)
def test_every_rank_ends_where_one_process_ends(
    world_size: int,
    outer: tuple[float, float],
    make: Make,
    backend: str,
    seed: int,
    require_ranks: RequireRanks,
) -> None:
    """Seven steps in periods of three: the last is shorter, and is sent."""
    require_ranks(world_size)
    wanted = one_process(seed, list(range(world_size)), make, 7, 3, outer)
    ends = list(launch(job, seed, make, 7, 3, outer, world_size=world_size, backend=backend))
    torch.testing.assert_close(ends[0], wanted)
    assert all(torch.equal(ends[0], other) for other in ends)


def test_a_group_of_ranks(backend: str, seed: int, require_ranks: RequireRanks) -> None:
    require_ranks(3)
    members = [0, 2]
    ends = launch(job, seed, sgd, 5, 2, PUBLISHED, members, world_size=3, backend=backend)
    wanted = one_process(seed, members, sgd, 5, 2, PUBLISHED)
    torch.testing.assert_close(ends[0], wanted)
    assert torch.equal(ends[0], ends[2])
    assert torch.equal(ends[1], parameters_to_vector(trained(toy(seed))).detach())


@pytest.mark.parametrize("between", [1, 2, 3, 7, 100])
def test_a_row_travels_in_each_period(
    between: int, backend: str, seed: int, require_ranks: RequireRanks
) -> None:
    require_ranks(2)
    run = launch(job, seed, sgd, 7, between, PUBLISHED, world_size=2, backend=backend)
    row = sum(p.numel() for p in trained(toy(seed))) * 8
    sent = [operation for operation in run.ledger.operations(0) if operation.bytes_sent]
    assert [operation.op for operation in sent] == ["all_reduce"] * -(-7 // between)
    assert {operation.bytes_sent for operation in sent} == {2 * (1 / 2) * row}


def test_the_outer_gradient_points_up_the_loss() -> None:
    """One rank, whose outer step is twice as long as the way that the inner steps took."""
    model = Mean(nn.Linear(2, 1, bias=False).double())
    before = parameters_to_vector(model.parameters()).detach()

    def steps(outer_lr: float) -> Tensor:
        moved = copy.deepcopy(model)
        optimizer = torch.optim.SGD(moved.parameters(), lr=0.01)
        local_steps(moved, optimizer, [torch.eye(2).double()] * 2, 2, outer_lr, 0.0)
        return parameters_to_vector(moved.parameters()).detach() - before

    def both() -> tuple[Tensor, Tensor]:
        return steps(1.0), steps(2.0)

    once, twice = launch(both, world_size=1, backend="gloo")[0]
    torch.testing.assert_close(twice, 2 * once)


@pytest.mark.parametrize(
    ("between", "momentum", "says"), [(0, 0.5, "steps_between"), (1, 1.0, "outer_momentum")]
)
def test_impossible_arguments_are_refused(between: int, momentum: float, says: str) -> None:
    model = toy(0)
    with pytest.raises(ValueError, match=says):
        operation.local_steps(model, sgd(trained(model)), [], between, 1.0, momentum)
