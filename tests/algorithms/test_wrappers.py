"""Wrappers of modules and sharded optimizers: with each other, and with modules of an unusual kind."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint as of_torch

from course_lib import RankError, device, launch
from course_lib.data_parallel import BucketedDataParallel, NaiveDataParallel
from course_lib.fsdp import PrefetchedModule
from course_lib.recompute import lazy_checkpoint
from course_lib.zero import Zero1Optimizer, Zero2Optimizer, Zero3Module


@pytest.mark.parametrize("wrapper", [PrefetchedModule, Zero3Module])
def test_a_step_is_that_of_one_process(wrapper: Callable[[nn.Module], nn.Module]) -> None:
    torch.manual_seed(0)
    model, samples = Blocks().double(), torch.randn(6, 4).double()

    def job() -> torch.Tensor:
        wrapped = wrapper(model)
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
        wrapped(samples.chunk(2)[dist.get_rank()]).square().mean().backward()
        optimizer.step()
        return wrapped(samples).detach()

    outputs = launch(job, world_size=2, backend="gloo")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(samples).square().mean().backward()
    optimizer.step()
    for output in outputs:
        torch.testing.assert_close(output, model(samples).detach())


RequireRanks = Callable[[int], None]
WRAPPERS: list[Callable] = [PrefetchedModule, Zero3Module, BucketedDataParallel, NaiveDataParallel]
SHARDED = [PrefetchedModule, Zero3Module]
CHECKPOINTS: list[Callable] = [
    lambda function, x: function(x),
    partial(of_torch, use_reentrant=False),
    lazy_checkpoint,
]
OPTIMIZERS = [
    lambda module, kind=kind: kind(module.parameters(), torch.optim.SGD, lr=0.1)
    for kind in (Zero1Optimizer, Zero2Optimizer)
]


class Blocks(nn.Module):
    """A model of two blocks."""

    def __init__(self, *blocks: nn.Module):
        super().__init__()
        self.blocks = nn.ModuleList(blocks or (nn.Linear(4, 4), nn.Linear(4, 4)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def test_parameters_have_one_wrapper() -> None:
    """A second one would send, or free, the weights and gradients of the first one."""

    def job() -> None:
        for first in WRAPPERS[:3]:  # the last one takes nothing away
            for second in (*WRAPPERS, *OPTIMIZERS):
                module = Blocks()
                wrapper = first(module)
                for inside in (wrapper, module, Blocks(module), Blocks(wrapper)):
                    with pytest.raises((ValueError, TypeError), match=r"already|`blocks`"):
                        second(inside)

    launch(job, world_size=2, backend="gloo")


def odd_tensors() -> dict[str, torch.Tensor]:
    """Each a view of a kind of its own; on every rank with other values."""
    torch.manual_seed(dist.get_rank())

    def drawn(
        *shape: int,
    ) -> torch.Tensor:  # moved before it is viewed: a move need not keep strides
        return torch.randn(shape).to(device())

    return {
        "transposed": drawn(2, 3).t(),
        "with gaps": drawn(4, 6)[:, ::2],
        "expanded": drawn(3, 1).expand(3, 5),
        "expanded, transposed": drawn(1, 2, 3).expand(4, 2, 3).transpose(0, 2),
        "a number, expanded": drawn().expand(2, 2),
        "without elements": drawn(0, 3).t(),
        "plain": drawn(2),
    }


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_buffers_and_frozen_parameters_may_be_views(
    wrapper: Callable, backend: str, require_ranks: RequireRanks
) -> None:
    """As masks and tables are: all ranks get the first rank's values."""
    require_ranks(2)

    def job() -> list[torch.Tensor]:
        module = Blocks().to(device())
        for name, tensor in odd_tensors().items():
            module.register_buffer(name, tensor)
            frozen = nn.Parameter(odd_tensors()[name], requires_grad=False)
            module.register_parameter(f"{name}, frozen", frozen)
        wrapped = wrapper(module)
        state = wrapped.full_state_dict() if wrapper in SHARDED else module.state_dict()
        return [state[name + kind] for name in odd_tensors() for kind in ("", ", frozen")]

    def wanted() -> list[torch.Tensor]:
        return [tensor for tensor in odd_tensors().values() for _ in range(2)]

    first = launch(wanted, world_size=1, backend="gloo")[0]
    for found in launch(job, world_size=2, backend=backend):
        torch.testing.assert_close(found, first, rtol=0, atol=0)


def names_of(wrapper: Callable) -> list[str]:
    return (
        ["blocks.0 (Linear)", "blocks.1 (Linear)"]
        if wrapper is Zero3Module
        else ["blocks.0", "blocks.1"]
    )


class Branches(Blocks):
    """Rank 0 uses one block, the others another one: an expert without tokens is the usual reason."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks[min(dist.get_rank(), 1)](x)


@pytest.mark.parametrize("wrapper", SHARDED)
def test_two_units_that_meet_in_one_collective_are_told(wrapper: Callable) -> None:
    """They are of one size: without names half of one and half of the other would arrive."""

    def job() -> None:
        options = {"forward_prefetch": 0} if wrapper is PrefetchedModule else {}
        wrapper(Branches(), **options)(torch.ones(1, 4))

    with pytest.raises(RankError) as caught:
        launch(job, world_size=2, backend="gloo")
    for words in ("do not agree", "a branch that depends on the rank", *names_of(wrapper)):
        assert words in str(caught.value)


class Tied(Blocks):
    """A head outside the blocks has the weight of one of them."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 4)
        self.head.weight = self.blocks[0].weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(super().forward(x))


@pytest.mark.parametrize("wrapper", SHARDED)
def test_a_block_may_share_a_weight_with_a_module_outside(wrapper: Callable) -> None:
    """It is in the unit of the whole module: freed after the block it would be missing in the head."""

    def job() -> None:
        torch.manual_seed(0)
        alone, module = Tied(), Tied()
        module.load_state_dict(alone.state_dict())
        wrapped = wrapper(module)
        for trained in (alone, wrapped):
            optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
            for _ in range(2):
                trained(torch.ones(2, 4)).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        torch.testing.assert_close(wrapped.full_state_dict(), dict(alone.state_dict()))

    launch(job, world_size=2, backend="gloo")


def thrice(kind: Callable, first: nn.Module, second: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return kind(second, kind(first, kind(first, x).tanh()))


def test_a_unit_that_a_checkpoint_calls_twice(backend: str, require_ranks: RequireRanks) -> None:
    """PyTorch's checkpoint gives the second run the tensors of the first one, hooks included."""
    require_ranks(2)

    def job() -> None:
        gradients = []
        for kind in CHECKPOINTS:
            torch.manual_seed(0)
            module = Blocks().to(device())
            wrapped = Zero3Module(module)
            for first, second in itertools.product(module.blocks, repeat=2):
                x = torch.ones(2, 4, device=device(), requires_grad=True)
                module.forward = partial(thrice, kind, first, second)
                wrapped(x * 1.0).square().sum().backward()
            gradients.append([p.grad for p in wrapped.parameters()])
        for found in gradients[1:]:
            torch.testing.assert_close(found, gradients[0])

    launch(job, world_size=2, backend=backend)


def test_second_derivatives_are_right_or_refused() -> None:
    def recorded(module: Callable) -> None:
        module(torch.ones(2, 4, requires_grad=True)).sum().backward(create_graph=True)

    def penalty(module: Callable) -> torch.Tensor:
        x = torch.ones(2, 4, requires_grad=True)
        (slope,) = torch.autograd.grad(module(x).square().sum(), x, create_graph=True)
        return slope.square().sum()

    def job() -> None:
        for wrapper in SHARDED:
            wrapped = wrapper(Blocks())
            x = torch.ones(2, 4, requires_grad=True)
            (slope,) = torch.autograd.grad(wrapped(x).square().sum(), x)
            assert slope.abs().sum() > 0
            for second in (penalty, recorded):
                with pytest.raises(RuntimeError, match="create_graph=True"):
                    second(wrapped)
        for optimizer in OPTIMIZERS:
            torch.manual_seed(0)
            module, alone = Blocks(), Blocks()
            alone.load_state_dict(module.state_dict())
            sharded = optimizer(module)
            penalty(module).backward()
            sharded.step()
            penalty(alone).backward()
            torch.optim.SGD(alone.parameters(), lr=0.1).step()
            torch.testing.assert_close(module.state_dict(), alone.state_dict())
            with pytest.raises(RuntimeError, match="create_graph=True"):
                recorded(module)

    launch(job, world_size=2, backend="gloo")
