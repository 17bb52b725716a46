"""The pretended GPU refuses what a GPU would refuse, and lets the rest through."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from course_lib import RankError, device, launch
from tests import gpu_like


@pytest.fixture(autouse=True)
def pretended() -> Iterator[None]:
    with gpu_like.offered():
        yield


def on_gpu(job: Callable, *args: Any) -> Any:
    return launch(job, *args, world_size=2, backend=gpu_like.NAME)[0]


def test_what_is_made_there_and_computed_from_it_lies_there() -> None:
    def job() -> tuple:
        x = torch.arange(6.0, device=device()).requires_grad_()
        moved = torch.ones(6).to(device())
        y = (x.view(2, 3).t() * 2).sum() + moved.mean()  # a sum of the GPU's
        y.backward()
        lies = [str(t.device) for t in (x, moved, y, x.grad, torch.zeros_like(x), x + 1)]  # type: ignore[arg-type]
        back = x.detach().cpu()
        return lies, str(back.device), back.numpy().tolist(), y.item()

    lies, host, values, y = on_gpu(job)
    assert lies == [str(gpu_like.GPU)] * 6 and host == "cpu"
    assert values == [0, 1, 2, 3, 4, 5] and y == 31


def test_a_collective_of_marked_tensors_goes_through() -> None:
    def job() -> tuple:
        x = torch.full((3,), 1.0 + dist.get_rank(), device=device())
        dist.all_reduce(x)
        parts = torch.empty(6, device=device())
        dist.all_gather_into_tensor(parts, x)
        dist.barrier()
        return x.tolist(), parts.sum().item(), str(parts.device)

    assert on_gpu(job) == ([3, 3, 3], 18, "cpu:7")


def mixed_sum() -> None:
    torch.ones(3, device=device()).add(torch.ones(3))


def on_the_host() -> None:
    dist.all_reduce(torch.ones(3))


def both_kinds() -> None:
    dist.all_gather_into_tensor(torch.empty(6), torch.ones(3, device=device()))


def generator_of_the_host() -> None:
    torch.rand(3, device=device(), generator=torch.Generator())


def generator_of_the_gpu() -> None:
    torch.rand(3, generator=torch.Generator(device()))


def functional_on_the_host() -> None:
    functional.all_reduce(torch.ones(3), "sum", dist.group.WORLD)  # type: ignore[arg-type]


def array_of_the_gpu() -> None:
    torch.ones(3, device=device()).numpy()


def indexed_by_the_gpu() -> None:
    torch.ones(3).__getitem__(torch.zeros(1, dtype=torch.int64, device=device()))


@pytest.mark.parametrize(
    ("job", "says"),
    [
        (mixed_sum, "Expected all tensors to be on the same device"),
        (on_the_host, "tensors of the CPU"),
        (both_kinds, "tensors of both devices"),
        (functional_on_the_host, "tensors of the CPU"),
        (generator_of_the_host, "a generator of the CPU"),
        (generator_of_the_gpu, "a generator of the GPU"),
        (array_of_the_gpu, "take .cpu\\(\\) first"),
        (indexed_by_the_gpu, "indexed with indices of the GPU"),
    ],
)
def test_what_a_gpu_refuses_is_an_error(job: Callable, says: str) -> None:
    with pytest.raises(RankError, match=says):
        on_gpu(job)


def test_what_functions_and_generators_make_there_lies_there() -> None:
    def job() -> tuple:
        x = torch.rand(3, device=device(), generator=torch.Generator(device()).manual_seed(1))
        total = functional.all_reduce(x, "sum", dist.group.WORLD)  # type: ignore[arg-type]
        return torch.equal(total + 0 * x, x + x), str((total + x).device)

    assert on_gpu(job) == (True, "cpu:7")


def test_a_number_of_the_host_may_meet_a_tensor_of_the_gpu() -> None:
    def job() -> float:
        x = torch.ones(3, device=device())
        x.copy_(torch.zeros(3))
        return (x + torch.tensor(2.0)).sum().item()

    assert on_gpu(job) == 6
