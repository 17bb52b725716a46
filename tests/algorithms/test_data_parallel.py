"""Replicas against one process in float64 and against PyTorch's; their messages, and when these are sent."""

from __future__ import annotations

import ast
import contextlib
import copy
import inspect
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
import torch.utils.checkpoint
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DistributedSampler

import course_lib
from course_lib import data_parallel, facts, launch
from course_lib.ledger.operation import Operation


def test_the_mean_of_two_ranks_gradients_is_that_of_one_process() -> None:
    torch.manual_seed(0)
    model, samples = nn.Linear(3, 1).double(), torch.randn(4, 3).double()

    def job() -> torch.Tensor:
        replica = data_parallel.NaiveDataParallel(model)
        own = samples.chunk(2)[dist.get_rank()]
        replica(own).square().mean().backward()
        replica.finish_gradient_synchronization()
        return model.weight.grad

    gradients = launch(job, world_size=2, backend="gloo")
    model(samples).square().mean().backward()
    for gradient in gradients:
        torch.testing.assert_close(gradient, model.weight.grad)


WORLDS = [1, 2, 3, 4, 8]
WRAPPERS: dict[str, Callable[..., nn.Module]] = {
    "naive": data_parallel.NaiveDataParallel,
    "flat": data_parallel.FlatDataParallel,
    "one bucket": data_parallel.BucketedDataParallel,
    "small buckets": lambda m, **options: data_parallel.BucketedDataParallel(m, 300, **options),
    "a bucket each": lambda m, **options: data_parallel.BucketedDataParallel(m, 1, **options),
}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
}
WIDTH = 6

RequireRanks = Callable[[int], None]


class Traps(nn.Module):
    """One small module with every case that a wrapper can get wrong.

    A frozen parameter, a layer that is used twice, tied weights, nested modules, a parameter of no
    dimension and one of no element, one that is registered before the layer in which it is used last, a
    layer that gets a gradient only when `branch` says so, and one that never gets any.
    """

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(()))
        self.nothing = nn.Parameter(torch.empty(0, 3))
        self.embedding = nn.Embedding(11, WIDTH)
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.twice = nn.Linear(WIDTH, WIDTH)
        self.nested = nn.ModuleDict({"inner": nn.Sequential(nn.LayerNorm(WIDTH), nn.Tanh())})
        self.sometimes = nn.Linear(WIDTH, WIDTH)
        self.never = nn.Linear(WIDTH, WIDTH)
        self.turned = nn.Parameter(torch.randn(WIDTH, 3).t())  # not contiguous
        self.head = nn.Linear(WIDTH, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("counter", torch.tensor([3, 1]))

    def forward(self, tokens: torch.Tensor, branch: bool = False) -> torch.Tensor:
        x = torch.tanh(self.twice(self.frozen(self.embedding(tokens))))
        x = self.nested["inner"](self.twice(x)) + self.nothing.sum() + (x @ self.turned.t()).mean()
        if branch:
            x = x + self.sometimes(x)
        return self.head(x) * self.scale


def made(seed: int, double: bool = True) -> Traps:
    """The module of a rank, drawn from its seed; float64, so that only wrong logic can make a difference."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = Traps()
    return (module.double() if double else module).to(course_lib.device())


def batch(seed: int, step: int, rank: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed * 10007 + step * 101 + rank)
    both = torch.randint(0, 11, (2, size), generator=generator).to(course_lib.device())
    return both[0], both[1]


def loss_of(module: nn.Module, data: tuple, reduction: str, branch: bool = False) -> torch.Tensor:
    return F.cross_entropy(module(data[0], branch), data[1], reduction=reduction)


def state(module: nn.Module) -> dict[str, torch.Tensor]:
    """Copies of the parameters and gradients, for a comparison in one process."""
    inner = cast(nn.Module, getattr(module, "module", module))
    held = {name: p.detach().clone().cpu() for name, p in inner.named_parameters()}
    gradients = {f"{n}.grad": p.grad for n, p in inner.named_parameters() if p.grad is not None}
    return {**held, **{name: g.detach().clone().cpu() for name, g in gradients.items()}}


def differences(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> list[str]:
    told = [f"{name} is there or missing, wrongly" for name in found.keys() ^ wanted.keys()]
    for name in found.keys() & wanted.keys():
        error = (found[name] - wanted[name]).abs()
        if error.numel() and not error.max() <= 1e-10:
            told.append(f"{name} differs by {error.max():.2g}")
    return told


def run(body: Callable, *args: object, world_size: int, backend: str) -> Any:
    """The run, in which no rank may report a problem: each rank returns a list of its problems."""
    found = launch(body, *args, world_size=world_size, backend=backend, timeout=120)
    problems = [f"rank {r}: {p}" for r, result in enumerate(found) for p in result]
    assert not problems, "\n".join(problems[:20])
    return found


def finish(module: nn.Module, count: float | None = None) -> None:
    cast(Any, module).finish_gradient_synchronization(count)


# ---- sampling


def test_every_sample_is_seen_as_by_torch(seed: int):
    rng = random.Random(seed)
    sizes = [0, 1, 2, 7, rng.randrange(10, 300)]
    for n in sizes:
        for world_size in WORLDS:
            for drop_last in (False, True):
                for shuffle in (False, True):
                    epoch = rng.randrange(5)
                    shards = []
                    for rank in range(world_size):
                        sampler = DistributedSampler(
                            cast(Any, range(n)), world_size, rank, shuffle, seed % 1000, drop_last
                        )
                        sampler.set_epoch(epoch)
                        shard = data_parallel.shard_indices(
                            n, rank, world_size, epoch, shuffle=shuffle, seed=seed % 1000,
                            drop_last=drop_last,
                        )  # fmt: skip
                        shards.append(shard)
                        if n:  # torch's divides by 0
                            assert shard == list(sampler), (n, world_size, rank)
                    joined = [index for shard in shards for index in shard]
                    assert len({len(shard) for shard in shards}) == 1
                    if drop_last:
                        assert len(joined) == len(set(joined)) == n - n % world_size
                    else:
                        assert set(joined) == set(range(n))
                        assert len(joined) - n < max(world_size, 1)


def test_epochs_and_seeds_change_the_order(seed: int):
    orders = {
        tuple(data_parallel.shard_indices(50, 1, 3, epoch, seed=seed + more))
        for epoch in (0, 2) for more in (0, 1)
    }  # fmt: skip
    assert len(orders) == 4


@pytest.mark.parametrize("arguments", [(5, 3, 3), (5, -1, 3), (5, 0, 0), (-1, 0, 2)])
def test_shards_that_cannot_be(arguments: tuple[int, int, int]):
    with pytest.raises(ValueError, match=r"ranks count from 0|0 samples or more"):
        data_parallel.shard_indices(*arguments)


# ---- values: several steps against one process


@pytest.mark.parametrize("world_size", WORLDS)
def test_steps_are_those_of_one_process(
    world_size: int, seed: int, backend: str, require_ranks: RequireRanks
):
    """Own initialisation and data on each rank, uneven batches, accumulation: gradients, parameters."""

    def one_process(optimizer_name: str, how: str, exact: bool) -> list[dict[str, torch.Tensor]]:
        module = made(seed)
        optimizer = OPTIMIZERS[optimizer_name](module.parameters())
        found = []
        for step in range(3):
            for data in [d for r in range(world_size) for d in parts(step, r, how)]:
                total = counted(step, how) if how != "mean" else 1
                one = loss_of(module, data, "sum" if how != "mean" else "mean", odd(step))
                (one / total / (world_size if how == "mean" else 1)).backward()
            if not exact:
                for p in trainable(module):
                    p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            found.append(state(module))
            optimizer.step()
            optimizer.zero_grad()
        return found

    def parts(step: int, rank: int, how: str) -> list[tuple]:
        """A rank's microbatches; by count rank r has r + 1 samples, and the last rank one more."""
        if how == "mean":
            return [batch(seed, step, rank, 4)]
        sizes = [rank + 1 + (rank == world_size - 1)] * (3 if how == "accumulated" else 1)
        return [batch(seed, step * 7 + k, rank, size) for k, size in enumerate(sizes)]

    def counted(step: int, how: str, ranks: Any = range(world_size)) -> int:
        return sum(len(d[0]) for r in ranks for d in parts(step, r, how))

    def odd(step: int) -> bool:
        return step != 1  # `sometimes` has a gradient, then none, then one again

    def step_of(module: nn.Module, step: int, how: str) -> None:
        rank = dist.get_rank()
        data = parts(step, rank, how)
        for number, one in enumerate(data):
            last = number == len(data) - 1
            with contextlib.nullcontext() if last else cast(Any, module).no_sync():
                reduction = "mean" if how == "mean" else "sum"
                loss_of(module, one, reduction, odd(step)).backward()
        finish(module, None if how == "mean" else counted(step, how, [rank]))

    def body() -> list[str]:
        problems = []
        for wrapper in WRAPPERS if world_size < 8 else ("naive", "small buckets"):
            for optimizer_name in OPTIMIZERS:
                for how in ("mean", "counted", "accumulated"):
                    exact = how == "counted"
                    inner = made(seed if dist.get_rank() == 0 else seed + 1 + dist.get_rank())
                    module = WRAPPERS[wrapper](inner, find_unused_parameters=exact)
                    optimizer = OPTIMIZERS[optimizer_name](module.parameters())
                    wanted = expected[optimizer_name, how]
                    for step in range(3):
                        step_of(module, step, how)
                        for problem in differences(state(module), wanted[step]):
                            problems.append(
                                f"{wrapper}, {optimizer_name}, {how}, step {step}: {problem}"
                            )
                        optimizer.step()
                        optimizer.zero_grad(set_to_none=how != "accumulated" or step > 0)
        return problems

    require_ranks(world_size)
    expected = {
        (name, how): one_process(name, how, how == "counted")
        for name in OPTIMIZERS
        for how in ("mean", "counted", "accumulated")
    }
    run(body, world_size=world_size, backend=backend)


def trainable(module: nn.Module) -> list[nn.Parameter]:
    return [p for p in module.parameters() if p.requires_grad]


def test_ranks_that_take_different_branches(seed: int, backend: str, require_ranks: RequireRanks):
    """Rank 1 alone has a gradient for `sometimes`; rank 2 has no samples, and runs no backward."""

    def body() -> list[str]:
        rank, problems = dist.get_rank(), []
        for name, wrap in WRAPPERS.items():
            module = wrap(made(seed + rank), find_unused_parameters=True)
            if rank != 2:
                loss_of(module, batch(seed, 0, rank, 3), "sum", branch=rank == 1).backward()
            finish(module, 3 if rank != 2 else 0)
            problems += [f"{name}: {p}" for p in differences(state(module), wanted)]
        return problems

    reference = made(seed)
    for rank in (0, 1):
        (loss_of(reference, batch(seed, 0, rank, 3), "sum", branch=rank == 1) / 6).backward()
    wanted = state(reference)
    assert "sometimes.weight.grad" in wanted
    assert "never.weight.grad" not in wanted
    require_ranks(3)
    run(body, world_size=3, backend=backend)


def test_backward_again_before_finishing_adds(seed: int, backend: str, require_ranks: RequireRanks):
    """Several passes without no_sync(), mixed with it, and on top of gradients that were not reset."""
    patterns = {
        "two": "ss",
        "three": "sss",
        "then alone": "sn",
        "alone between": "nsns",
        "one": "s",
    }

    def body() -> list[str]:
        rank, problems = dist.get_rank(), []
        for name, wrap in WRAPPERS.items():
            for pattern, passes in patterns.items():
                module = wrap(made(seed + rank))
                for repeat in (1, 2):  # the second on top of the first's gradients
                    for k, one in enumerate(passes):
                        with (
                            cast(Any, module).no_sync() if one == "n" else contextlib.nullcontext()
                        ):
                            loss_of(module, batch(seed, k, rank, 3), "mean", True).backward()
                    finish(module)
                    wanted = {
                        key: value * repeat if key.endswith(".grad") else value
                        for key, value in expected[pattern].items()
                    }
                    found = differences(state(module), wanted)
                    problems += [f"{name}, {pattern}, {repeat}: {p}" for p in found]
        return problems

    expected = {}
    for pattern, passes in patterns.items():
        reference = made(seed)
        for k in range(len(passes)):
            for rank in range(2):
                (loss_of(reference, batch(seed, k, rank, 3), "mean", True) / 2).backward()
        for p in trainable(reference):
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        expected[pattern] = state(reference)
    require_ranks(2)
    run(body, world_size=2, backend=backend)


def test_ddp_makes_the_same_gradients(seed: int, backend: str, require_ranks: RequireRanks):
    """In float32 and bfloat16, which one process cannot match to the bit: so against DDP, side by side."""

    def body() -> list[str]:
        rank, problems = dist.get_rank(), []
        for dtype in (torch.float32, torch.bfloat16):
            torch.manual_seed(seed + rank)
            layers = [nn.Linear(9, 17), nn.Tanh(), nn.Linear(17, 13), nn.Tanh(), nn.Linear(13, 2)]
            inner = nn.Sequential(*layers).to(dtype).to(course_lib.device())
            generator = torch.Generator().manual_seed(seed * 3 + rank)
            data = torch.randn(5, 9, generator=generator).to(dtype).to(course_lib.device())
            theirs = nn.parallel.DistributedDataParallel(copy.deepcopy(inner))
            theirs(data).square().mean().backward()
            wanted = state(theirs)
            bound = 4 * torch.finfo(dtype).eps
            for name, wrap in WRAPPERS.items():
                module = wrap(copy.deepcopy(inner))
                module(data).square().mean().backward()
                finish(module)
                for key, value in state(module).items():
                    error = (value.float() - wanted[key].float()).abs().max()
                    if not error <= bound * wanted[key].float().abs().max():
                        problems.append(f"{name}, {dtype}, {key}: {error:.2g}")
        return problems

    require_ranks(3)
    run(body, world_size=3, backend=backend)


def test_a_batch_norm_keeps_each_ranks_own_statistics(
    seed: int, backend: str, require_ranks: RequireRanks
):
    """As DDP with broadcast_buffers=False: gradients are averaged, running means and variances are not."""

    def body() -> list[str]:
        rank, problems = dist.get_rank(), []
        torch.manual_seed(seed + rank)
        inner = nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)
        ).double()
        inner = inner.to(course_lib.device())
        generator = torch.Generator().manual_seed(seed * 5 + rank)
        steps = torch.randn(3, 7, 6, generator=generator, dtype=torch.float64).to(
            course_lib.device()
        )

        def trained(module: nn.Module) -> dict[str, torch.Tensor]:
            optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
            for data in steps:
                optimizer.zero_grad()
                module(data).square().mean().backward()
                if not isinstance(module, nn.parallel.DistributedDataParallel):
                    finish(module)
                optimizer.step()
            return dict(cast(Any, module).module.state_dict())

        theirs = nn.parallel.DistributedDataParallel(copy.deepcopy(inner), broadcast_buffers=False)
        wanted = trained(theirs)
        for name, wrap in WRAPPERS.items():
            found = trained(wrap(copy.deepcopy(inner)))
            problems += [f"{name}: {p}" for p in differences(found, wanted)]
        means = [torch.empty_like(wanted["1.running_mean"]) for _ in range(2)]
        dist.all_gather(means, wanted["1.running_mean"])
        return [
            *problems,
            *(["the ranks' statistics are equal"] if means[0].equal(means[1]) else []),
        ]

    require_ranks(2)
    run(body, world_size=2, backend=backend)


class Dtypes(nn.Module):
    """Parameters of four dtypes, complex ones among them, and buffers of two."""

    def __init__(self, rank: int):
        super().__init__()
        kinds = [torch.float64, torch.float32, torch.complex64, torch.float64, torch.bfloat16]
        self.several = nn.ParameterList(torch.full((3,), rank + 1.0, dtype=kind) for kind in kinds)
        self.register_buffer("flag", torch.tensor([rank == 0]))
        self.register_buffer("sizes", torch.full((2, 2), rank).t())

    def forward(self, x: float) -> torch.Tensor:
        return sum((abs(p) * x).sum().to(torch.float64) for p in self.several)  # type: ignore[return-value]


def test_dtypes_travel_in_buckets_of_their_own(require_ranks: RequireRanks):
    def body() -> list[str]:
        rank, problems = dist.get_rank(), []
        for name, wrap in WRAPPERS.items():
            module = wrap(Dtypes(rank))
            inner = cast(Any, module.module)
            if not (inner.flag.all() and (inner.sizes == 0).all()):
                problems.append(f"{name}: buffers are not those of rank 0")
            module(1.0 + rank).backward()
            finish(module)
            for p in inner.several:
                if not (p.grad is not None and p.grad.dtype == p.dtype and (p == 1).all()):
                    problems.append(f"{name}: {p.dtype} holds {p.tolist()}")
                elif not torch.allclose(p.grad, torch.full_like(p, 1.5)):
                    problems.append(f"{name}: the gradient of {p.dtype} is {p.grad.tolist()}")
        return problems

    run(body, world_size=2, backend="gloo")


def test_groups_of_their_own(seed: int, backend: str, require_ranks: RequireRanks):
    """Two groups with different data, their first ranks not rank 0; a rank outside gets a clear error."""

    def body() -> list[str]:
        rank, problems = dist.get_rank(), []
        groups = [[3, 1], [0, 4]]
        made_groups = [cast(dist.ProcessGroup, dist.new_group(ranks)) for ranks in groups]
        mine = next((k for k, ranks in enumerate(groups) if rank in ranks), None)
        for name, wrap in WRAPPERS.items():
            if mine is None:
                try:
                    wrap(made(seed), group=made_groups[0])
                except ValueError as error:
                    problems += [] if "not in the group" in str(error) else [str(error)]
                else:
                    problems.append(f"{name}: a rank outside the group was not refused")
                continue
            module = wrap(made(seed + rank), group=made_groups[mine])
            loss_of(module, batch(seed, 0, rank, 3), "mean", True).backward()
            finish(module)
            problems += [f"{name}: {p}" for p in differences(state(module), expected[mine])]
        return problems

    expected = []
    for ranks in ([1, 3], [0, 4]):
        reference = made(seed + ranks[0])
        for r in ranks:
            (loss_of(reference, batch(seed, 0, r, 3), "mean", True) / 2).backward()
        for p in trainable(reference):
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        expected.append(state(reference))
    require_ranks(5)
    run(body, world_size=5, backend=backend)


def test_checkpointed_segments_that_share_a_layer(backend: str, require_ranks: RequireRanks):
    """Re-entrant checkpointing calls a layer's gradient hook once for each segment, not once in all."""

    def body() -> list[str]:
        rank = dist.get_rank()
        wanted = None
        problems = []
        for name, wrap in {"reference": lambda m: m, **WRAPPERS}.items():
            torch.manual_seed(1)
            inner = nn.Linear(4, 4, dtype=torch.float64).to(course_lib.device())
            module = wrap(inner)
            x = torch.ones(
                2, 4, dtype=torch.float64, device=course_lib.device(), requires_grad=True
            )
            for _ in range(3):
                x = torch.utils.checkpoint.checkpoint(inner, x, use_reentrant=True)
            (x.sum() * (1 if wanted is None else 2 * rank)).backward()
            if wanted is None:
                wanted = state(inner)
                continue
            finish(module)
            problems += [f"{name}: {p}" for p in differences(state(inner), wanted)]
        return problems

    require_ranks(2)
    run(body, world_size=2, backend=backend)


# ---- forward, state, and parts of the module that a wrapper leaves alone


def test_forward_passes_on(seed: int, backend: str, require_ranks: RequireRanks):
    def body() -> list[str]:
        problems = []
        for name, wrap in WRAPPERS.items():
            inner = made(seed)
            module = wrap(inner)
            data = batch(seed, 0, dist.get_rank(), 3)[0]
            with torch.no_grad():
                same = torch.equal(module(data, branch=True), inner(data, branch=True))
            module.eval()
            with torch.inference_mode():
                same &= not inner.training and torch.equal(module(data), inner(data))
            if not same or [f"module.{key}" for key in inner.state_dict()] != list(
                module.state_dict()
            ):
                problems.append(f"{name}: forward or state differs")
            if any(p.grad is not None for p in inner.parameters()):
                problems.append(f"{name}: a gradient appeared")
            module.load_state_dict(module.state_dict())
            loss_of(module, batch(seed, 0, 0, 2), "sum").backward()  # in eval, too
            finish(module)
        return problems

    require_ranks(1)
    found = run(body, world_size=1, backend=backend)
    assert found.ledger.bytes_sent(0) == 0


# ---- what is sent, and when


def between_barriers(operations: list[Operation]) -> list[list[Operation]]:
    """A rank's operations before its first barrier, between it and the next, and so on."""
    parts: list[list[Operation]] = [[]]
    for one in operations:
        if one.op == "barrier":
            parts.append([])
        else:
            parts[-1].append(one)
    return parts


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_bytes_are_those_of_the_closed_form(
    world_size: int, seed: int, backend: str, require_ranks: RequireRanks
):
    """A broadcast for each tensor, then 2 (N-1)/N of the gradients; one all-reduce for each message."""

    def body() -> None:
        for wrap in WRAPPERS.values():
            for counted in (False, True):
                module = wrap(made(seed), find_unused_parameters=counted)
                dist.barrier()
                for number in range(3):
                    with cast(Any, module).no_sync() if number < 2 else contextlib.nullcontext():
                        loss_of(module, batch(seed, 0, dist.get_rank(), 4), "sum", True).backward()
                finish(module, 12 if counted else None)
                dist.barrier()

    require_ranks(world_size)
    module = made(seed)
    parameters = [p for p in trainable(module) if p.numel()]
    sent = [p for p in parameters if all(p is not other for other in module.never.parameters())]
    tensors = [t for t in [*module.parameters(), *module.buffers()] if t.numel()]
    ledger = launch(body, world_size=world_size, backend=backend, timeout=120).ledger
    for rank in range(world_size):
        parts = iter(between_barriers(ledger.operations(rank)))
        for name in WRAPPERS:
            for counted in (False, True):
                assert [one.op for one in next(parts)] == ["broadcast"] * len(tensors)
                step = next(parts)
                assert {one.op for one in step} == {"all_reduce"}
                # A wrapper that asks after backward which parameters are used need not send the others.
                carried = sent if counted and name in ("naive", "flat") else parameters
                counts = {"naive": len(carried), "small buckets": buckets(parameters, 300)}
                counts |= {"flat": 1, "one bucket": 1, "a bucket each": len(parameters)}
                assert len(step) == counts[name] + 2 * counted
                nbytes = sum(p.nbytes for p in carried)
                asked = len(trainable(module)) * counted
                wanted = facts.data_parallel_bytes(world_size, nbytes, 1, counted, asked)
                assert sum(one.bytes_sent for one in step) == pytest.approx(wanted, abs=1e-6)


def buckets(parameters: list[nn.Parameter], bucket_bytes: int) -> int:
    """The number of buckets when parameters fill them greedily from the last to the first."""
    count, room = 0, 0
    for parameter in reversed(parameters):
        if count == 0 or parameter.nbytes > room:
            count, room = count + 1, bucket_bytes
        room -= parameter.nbytes
    return count


def test_the_first_bucket_leaves_before_backward_ends(backend: str, require_ranks: RequireRanks):
    """A barrier in the backward pass of the first layer stands between the buckets' all-reduces."""
    # kind: all-reduces while four layers are left, when one is left, after backward
    wanted = {
        "a bucket each": [3, 1, 0],
        "one bucket": [0, 1, 0],
        "flat": [0, 0, 1],
        "naive": [0, 0, 4],
    }

    def body() -> None:
        for kind in wanted:
            layers = [nn.Linear(8, 8, bias=False).to(course_lib.device()) for _ in range(4)]
            layers[0].weight.register_post_accumulate_grad_hook(
                lambda _: cast(None, dist.barrier())
            )
            module = WRAPPERS[kind](nn.Sequential(*layers))
            for _ in range(2):
                dist.barrier()
                module(torch.ones(3, 8, device=course_lib.device())).sum().backward()
                dist.barrier()
                finish(module)
            dist.barrier()

    require_ranks(2)
    ledger = launch(body, world_size=2, backend=backend).ledger
    for rank in range(2):
        parts = iter(between_barriers(ledger.operations(rank)))
        for numbers in wanted.values():
            assert {one.op for one in next(parts)} == {"broadcast"}
            for _ in range(2):
                assert [len(next(parts)) for _ in numbers] == numbers


def test_buckets_leave_in_order_when_gradients_arrive_in_another(
    seed: int, backend: str, require_ranks: RequireRanks
):
    """Each rank uses the layers in an order of its own; sizes differ, so that a swapped pair is found."""

    def body() -> list[str]:
        rank, sizes = dist.get_rank(), [3, 5, 7, 9]
        weights = [torch.full((n,), 1.0, device=course_lib.device()) for n in sizes]
        module = data_parallel.BucketedDataParallel(Weights(weights), 1)
        order = [[0, 1, 2, 3], [3, 2, 1, 0], random.Random(seed).sample(range(4), 4)][rank]
        for _ in range(2):
            module(order, rank + 1.0).backward()
            finish(module)
            found = [p.grad for p in module.parameters()]
            if any(g is None or not torch.equal(g, torch.full_like(g, 2.0)) for g in found):
                return [f"the gradients are {found}, not 2 = (1 + 2 + 3) / 3"]
            module.zero_grad()
        return []

    require_ranks(3)
    found = run(body, world_size=3, backend=backend)
    for rank in range(3):
        step = [one.nbytes for one in found.ledger.operations(rank, "all_reduce")]
        assert step == [36, 28, 20, 12] * 2


class Weights(nn.Module):
    def __init__(self, weights: list[torch.Tensor]):
        super().__init__()
        self.weights = nn.ParameterList(weights)

    def forward(self, order: list[int], factor: float) -> torch.Tensor:
        """A chain, so that backward meets the weights in the reverse of `order`."""
        total = torch.zeros((), device=course_lib.device())
        for place in order:
            total = total + factor * self.weights[place].sum()
        return total


def test_gradients_lie_in_the_buckets_and_nowhere_else(
    seed: int, backend: str, require_ranks: RequireRanks
):
    """After a step the gradients' storages are the buckets', and hold as many bytes as the parameters."""

    def body() -> list[int]:
        module = data_parallel.BucketedDataParallel(made(seed), 500)
        seen = set()
        for step in range(3):
            loss_of(module, batch(seed, step, dist.get_rank(), 3), "mean").backward()
            finish(module)
            storages = {
                p.grad.untyped_storage().data_ptr(): p.grad.untyped_storage().nbytes()
                for p in trainable(module)
                if p.grad is not None and p.numel()
            }
            seen.add(tuple(storages.values()))
            module.zero_grad()
        return [sum(one) for one in seen]

    require_ranks(2)
    for found in launch(body, world_size=2, backend=backend):
        assert found == [sum(p.nbytes for p in trainable(made(seed)))]


# ---- wrong calls


def wrong_calls() -> Iterator[tuple[str, Callable[[], object], type[Exception], str]]:
    """(name, call, error, part of the sentence), on one rank."""
    for name, wrap in WRAPPERS.items():
        yield name, lambda w=wrap: w([1]), TypeError, "module is a list"
        yield name, lambda w=wrap: w(nn.ReLU()), ValueError, "no parameter that requires a gradient"
        frozen = nn.Linear(1, 1).requires_grad_(False)
        yield (
            name,
            lambda w=wrap, m=frozen: w(m),
            ValueError,
            "no parameter that requires a gradient",
        )
        yield (
            name,
            lambda w=wrap: w(nn.Linear(1, 1, device="meta")),
            ValueError,
            "weight has no storage",
        )
        yield name, lambda w=wrap: w(nn.LazyLinear(1)), ValueError, "weight has no storage"
        for other in WRAPPERS.values():
            wrapped = other(nn.Linear(1, 1))
            yield (
                name,
                lambda w=wrap, m=wrapped: w(m),
                ValueError,
                "wrapped by .*DataParallel already",
            )
            nested = nn.Sequential(wrapped)
            yield name, lambda w=wrap, m=nested: w(m), ValueError, "wrapped by"
        ddp = nn.parallel.DistributedDataParallel(nn.Linear(1, 1))
        yield name, lambda w=wrap, m=ddp: w(m), ValueError, "wrapped by DistributedDataParallel"

        module = wrap(nn.Linear(1, 1))
        yield name, lambda m=module: finish(m), RuntimeError, "call backward"
        yield name, lambda m=module: finish(m, -1), ValueError, "count=-1"
        yield name, lambda m=module: finish(m, float("nan")), ValueError, "count=nan"
        yield name, lambda m=module: finish_within(m), RuntimeError, "no_sync"
        done = wrap(nn.Linear(1, 1))
        done(torch.ones(1, 1)).backward()
        finish(done)
        done.zero_grad()
        yield name, lambda m=done: finish(m), RuntimeError, "call backward"
        idle = wrap(nn.Linear(1, 1))
        yield name, lambda m=idle: finish(m, 0), RuntimeError, "0 on every rank"
        sparse = wrap(nn.Embedding(3, 2, sparse=True))
        yield (
            name,
            lambda m=sparse: backward_and_finish(m, torch.tensor([1])),
            ValueError,
            "sparse=False",
        )


def finish_within(module: nn.Module) -> None:
    with cast(Any, module).no_sync():
        finish(module)


def backward_and_finish(module: nn.Module, data: torch.Tensor) -> None:
    module(data).sum().backward()
    finish(module)


def test_wrong_calls_are_told_what_is_wrong():
    def body() -> list[str]:
        problems = []
        calls = list(wrong_calls())
        inner = nn.Linear(1, 1)
        data_parallel.BucketedDataParallel(inner)
        half = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
        half[0].requires_grad_(False)
        thawed = data_parallel.BucketedDataParallel(half)
        half[0].requires_grad_(True)
        calls += [
            (
                "hooked",
                lambda: data_parallel.BucketedDataParallel(inner),
                ValueError,
                "holds weight already",
            ),
            (
                "part",
                lambda: data_parallel.BucketedDataParallel(nn.Sequential(inner)),
                ValueError,
                "holds 0.weight already",
            ),
            (
                "bytes",
                lambda: data_parallel.BucketedDataParallel(nn.Linear(1, 1), 0),
                ValueError,
                "bytes=0",
            ),
            (
                "thawed",
                lambda: backward_and_finish(thawed, torch.ones(1, 1)),
                RuntimeError,
                "0.weight",
            ),
        ]
        for name, call, kind, sentence in calls:
            try:
                call()
            except kind as error:
                if not re.search(sentence, str(error)):
                    problems.append(f"{name}: {sentence!r} is not in {error}")
            except Exception as error:
                problems.append(f"{name}: {type(error).__name__}: {error}")
            else:
                problems.append(f"{name}: not refused ({sentence})")
        return problems

    run(body, world_size=1, backend="gloo")


# ---- closed forms


def test_exposed_time_is_that_of_following_each_bucket(seed: int):
    rng = random.Random(seed)
    for _ in range(50):
        backward, communication = rng.uniform(0.1, 9), rng.uniform(0.1, 9)
        count = rng.randrange(1, 12)
        ready = [backward * (k + 1) / count for k in range(count)]
        followed = facts.exposed_after(ready, [communication / count] * count, backward)
        assert facts.exposed_communication(backward, communication, count) == pytest.approx(
            followed
        )
        alone = facts.exposed_communication(backward, communication, count, overlap=False)
        assert alone == communication >= followed - 1e-12
    assert facts.exposed_communication(0.1, 0.08, 10) == pytest.approx(0.008)
    assert facts.exposed_after([1, 1], [0.0, 0.0], 3) == 0
    assert facts.scaling_efficiency(0.3, 0.1) == pytest.approx(0.75)
    with pytest.raises(ValueError, match="buckets=0"):
        facts.exposed_communication(1, 1, 0)


def test_bytes_and_seconds_by_hand():
    assert facts.data_parallel_bytes(8, 2 * 7e9) == pytest.approx(24.5e9)
    assert facts.data_parallel_bytes(4, 400, 3, True, 4) == pytest.approx(1.5 * (1200 + 8 + 4))
    assert facts.synchronization_seconds(4, 800, 2, 1e-3, 1e-6) == pytest.approx(12e-3 + 1.2e-3)


# ---- the files


FILES = sorted(
    p for p in Path(inspect.getfile(data_parallel)).parent.glob("*.py") if p.stem != "__init__"
)


def test_the_files_can_be_copied_out_together(tmp_path: Path):
    """They import torch and each other only, and work under another name outside the package."""
    (tmp_path / "lifted").mkdir()
    for path in FILES:
        source = path.read_text()
        assert len(source.splitlines()) < 300, path.name
        for node in ast.walk(ast.parse(source)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            top = {name.partition(".")[0] for name in names}
            assert top <= {"__future__", "collections", "contextlib", "torch", "weakref"}, path.name
        shutil.copy(path, tmp_path / "lifted")
    imports = [
        f"from lifted.{Path(inspect.getfile(getattr(data_parallel, name))).stem} import {name}"
        for name in data_parallel.__all__
    ]
    begin, end = "import sys; sys.path[:0] = ['.']", "assert 'course_lib' not in sys.modules"
    program = "\n".join([begin, *imports, end])
    subprocess.run([sys.executable, "-I", "-c", program], cwd=tmp_path, check=True)


def test_no_function_stands_in_two_files():
    """The functions that the wrappers share are in `replicas.py`, once."""
    bodies: dict[str, str] = {}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                body = ast.unparse(node.body)
                assert body not in bodies, f"{node.name} of {path.name} is in {bodies[body]}, too"
                bodies[body] = path.name
