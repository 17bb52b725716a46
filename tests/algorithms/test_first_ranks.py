"""The reference of notebook 00: any number of ranks, any tensor, any group."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from typing import cast

import pytest
import torch
import torch.distributed as dist

import course_lib
from course_lib import first_ranks, launch


def test_every_rank_gets_the_tensor_of_the_rank_before_it() -> None:
    def job() -> float:
        return first_ranks.ring_shift(torch.tensor([10.0 * dist.get_rank()])).item()

    assert list(launch(job, world_size=3, backend="gloo")) == [20.0, 0.0, 10.0]


WORLDS = [1, 2, 3, 4, 5, 8]
RequireRanks = Callable[[int], None]


def value(rank: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.arange(24, device=course_lib.device()) + 3 * rank).to(dtype)


def views(rank: int) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """name: (memory, a view of it)"""
    return {
        "flat": (a := value(rank), a),
        "transposed": (b := value(rank), b.view(4, 6).t()),
        "with gaps": (c := value(rank), c.view(4, 6)[:, 1::2]),
        "scalar": (d := value(rank), d[rank]),
        "empty": (e := value(rank), e[5:5]),
        "bfloat16": (f := value(rank, torch.bfloat16), f),
        "int64": (g := value(rank, torch.int64), g),
        "bool": (h := value(rank) % 2 == 0, h),
    }


@pytest.mark.parametrize("world_size", WORLDS)
def test_hello(world_size: int, backend: str, require_ranks: RequireRanks):
    require_ranks(world_size)
    found = launch(first_ranks.hello, world_size=world_size, backend=backend)
    gpus = torch.cuda.device_count()
    devices = [f"cuda:{r % gpus}" if backend == "nccl" else "cpu" for r in range(world_size)]
    assert list(found) == [(r, world_size, devices[r]) for r in range(world_size)]


@pytest.mark.parametrize("world_size", WORLDS)
def test_exchange_and_ring_shift(world_size: int, backend: str, require_ranks: RequireRanks):
    """The exchange is in place and leaves the gaps of a view alone; the shift returns a new tensor."""

    def body() -> list[str]:
        problems, rank, n = [], dist.get_rank(), dist.get_world_size()
        partner = rank ^ 1 if rank ^ 1 < n else rank
        for name in views(rank):
            memory, view = views(rank)[name]
            wanted, target = views(rank)[name]
            target.copy_(views(partner)[name][1].clone())
            if first_ranks.exchange(view) is not None or not torch.equal(memory, wanted):
                problems.append(f"exchange, {name}: {memory} instead of {wanted}")
            memory, view = views(rank)[name]
            result = first_ranks.ring_shift(view)
            left = views((rank - 1) % n)[name][1]
            if not torch.equal(result, left) or result.dtype != left.dtype:
                problems.append(f"ring_shift, {name}: {result} instead of {left}")
            if not torch.equal(memory, views(rank)[name][0]):
                problems.append(f"ring_shift, {name}: its input has changed")
            if result.numel() and result.data_ptr() == view.data_ptr():
                problems.append(f"ring_shift, {name}: the result is its input")
        return problems

    require_ranks(world_size)
    found = launch(body, world_size=world_size, backend=backend)
    assert [p for problems in found for p in problems] == []


@pytest.mark.parametrize("world_size", WORLDS)
def test_messages(world_size: int, backend: str, require_ranks: RequireRanks):
    """Every rank with a partner sends its bytes once, all of them in one round."""

    def body(function: Callable) -> None:
        function(value(dist.get_rank()))

    require_ranks(world_size)
    for function, last in ((first_ranks.exchange, world_size & 1), (first_ranks.ring_shift, 0)):
        ledger = launch(body, function, world_size=world_size, backend=backend).ledger
        alone = world_size == 1
        sent = [96] * (world_size - last) + [0] * last if not alone else [0]
        assert [ledger.bytes_sent(r) for r in range(world_size)] == sent
        assert sum(ledger.messages_sent(r) for r in range(world_size)) == sum(sent) // 96
        assert len(ledger.rounds()) == (0 if alone else 1)
        assert {one.op for one in ledger.operations()} <= {"send", "recv"}


def test_peers_are_ranks_of_the_group(backend: str, require_ranks: RequireRanks):
    def body() -> list[float]:
        groups = {1: dist.new_group([1, 3]), 0: dist.new_group([0, 2, 4])}
        group = cast(dist.ProcessGroup, groups[dist.get_rank() % 2])
        swapped = value(dist.get_rank())[:1]
        first_ranks.exchange(swapped, group)
        return [swapped.item(), first_ranks.ring_shift(value(dist.get_rank())[:1], group).item()]

    require_ranks(5)
    found = launch(body, world_size=5, backend=backend)
    #                rank 0    rank 1    rank 2    rank 3    rank 4, which has no partner
    assert found == [[6, 12], [9, 9], [0, 0], [3, 3], [12, 6]]


def test_it_imports_torch_only():
    tree = ast.parse(inspect.getsource(first_ranks))
    imported = {
        a.name.split(".")[0] for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names
    }
    imported |= {(n.module or "") for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert imported == {"__future__", "torch"}
