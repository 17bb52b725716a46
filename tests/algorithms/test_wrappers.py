"""Wrappers of modules and sharded optimizers: with each other, and with modules of an unusual kind."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_lib import launch
from course_lib.data_parallel import BucketedDataParallel, NaiveDataParallel
from course_lib.fsdp import PrefetchedModule
from course_lib.zero import Zero1Optimizer, Zero2Optimizer, Zero3Module

WRAPPERS: list[Callable] = [PrefetchedModule, Zero3Module, BucketedDataParallel, NaiveDataParallel]
SHARDED = [PrefetchedModule, Zero3Module]
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
    return {
        "transposed": torch.randn(2, 3).t(),
        "with gaps": torch.randn(4, 6)[:, ::2],
        "expanded": torch.randn(3, 1).expand(3, 5),
        "expanded, transposed": torch.randn(1, 2, 3).expand(4, 2, 3).transpose(0, 2),
        "a number, expanded": torch.randn(()).expand(2, 2),
        "without elements": torch.empty(0, 3).t(),
        "plain": torch.randn(2),
    }


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_buffers_and_frozen_parameters_may_be_views(wrapper: Callable, cpu_backend: str) -> None:
    """As masks and tables are: all ranks get the first rank's values."""

    def job() -> list[torch.Tensor]:
        module = Blocks()
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
    for found in launch(job, world_size=2, backend=cpu_backend):
        torch.testing.assert_close(found, first, rtol=0, atol=0)
