"""A training step of ZeRO against PyTorch's own, in one run.

    Zero1Optimizer with the ring of `course_lib.collectives`   ZeroRedundancyOptimizer under DDP
    Zero3Module, likewise                                      fully_shard on the same units

Each pair starts from the same weights, sees the same data and steps alike, in turns; its parameters are
compared before anything is timed. AdamW on both sides, the ledger off on both sides. With it the bytes that
a step sends are compared with the closed form in a run of its own, and the resident bytes with ZeRO's.
"""

from __future__ import annotations

import gc
import os
import random
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer

from benchmarks.table import Row
from course_lib import facts, launch
from course_lib.collectives import all_gather, reduce_scatter
from course_lib.fsdp import PrefetchedModule
from course_lib.zero import Zero1Optimizer, Zero2Optimizer, Zero3Module

WIDTH, LAYERS = 256, 6
BATCH, LENGTH = 1, 8  # little, so that a step consists of the differences between the two
ROUNDS, REPEATS = 3, 10  # launches, and steps of each within one
WORLDS = (2, 4)
ADAM: dict[str, Any] = {"lr": 1e-3, "fused": True}  # else its own work hides the rest
RING: dict[str, Any] = {"reduce_scatter": reduce_scatter, "all_gather": all_gather}
Step = Callable[[], None]
PAIRS = {  # ours: (theirs, reach)
    "Zero1Optimizer": ("ZeroRedundancyOptimizer", 0.8),
    "Zero3Module": ("fully_shard", 1.0),
}


class Transformer(nn.Module):
    """Six blocks of width 256, 4.7 million parameters; data in, loss out."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, dropout=0.0, batch_first=True)
            for _ in range(LAYERS)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


def contestant(name: str, model: Transformer) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model as `name` wraps it, and its optimizer."""
    if name == "Zero1Optimizer":
        return model, Zero1Optimizer(model.parameters(), torch.optim.AdamW, **RING, **ADAM)
    if name == "Zero2Optimizer":
        return model, Zero2Optimizer(model.parameters(), torch.optim.AdamW, **RING, **ADAM)
    if name == "Zero3Module":
        wrapped = Zero3Module(model, **RING)
        return wrapped, torch.optim.AdamW(wrapped.parameters(), **ADAM)
    if name == "ZeroRedundancyOptimizer":
        wrapped = nn.parallel.DistributedDataParallel(model)
        return wrapped, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, **ADAM)
    if name == "PrefetchedModule":
        wrapped = PrefetchedModule(model)
        return wrapped, torch.optim.AdamW(wrapped.parameters(), **ADAM)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return model, torch.optim.AdamW(model.parameters(), **ADAM)


def whole(model: nn.Module) -> torch.Tensor:
    """All parameters of a wrapped model, in a row."""
    if isinstance(model, Zero3Module | PrefetchedModule):
        tensors = list(model.full_state_dict().values())
    else:
        tensors = [getattr(p, "full_tensor", lambda p=p: p)() for p in model.parameters()]
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def race(pairs: dict[str, tuple[str, float]]) -> tuple[dict[str, list[float]], float]:
    """Seconds of the steps of all, in an order that changes but is the same on all ranks; the largest error.

    The error is that of the parameters after two steps: rounding, or something is wrong.
    """
    warnings.simplefilter("ignore", FutureWarning)
    torch.manual_seed(0)
    weights = Transformer().state_dict()
    data = torch.randn(
        BATCH, LENGTH, WIDTH, generator=torch.Generator().manual_seed(dist.get_rank())
    )
    models: dict[str, nn.Module] = {}
    steps: dict[str, Step] = {}
    for name in [contender for ours, (theirs, _) in pairs.items() for contender in (ours, theirs)]:
        model = Transformer()
        model.load_state_dict(weights)
        models[name], optimizer = contestant(name, model)

        def step(
            model: nn.Module = models[name], optimizer: torch.optim.Optimizer = optimizer
        ) -> None:
            optimizer.zero_grad()
            model(data).backward()
            optimizer.step()

        steps[name] = step
        step()
        step()
    error = max(
        float((whole(models[ours]) - whole(models[theirs])).abs().max())
        for ours, (theirs, _) in pairs.items()
    )
    taken: dict[str, list[float]] = {name: [] for name in steps}
    order = list(steps)
    shuffle = random.Random(0).shuffle
    for _ in range(REPEATS):
        shuffle(order)
        for name in order:
            dist.barrier()
            began = time.perf_counter()
            steps[name]()
            taken[name].append(time.perf_counter() - began)
    return taken, error


def medians(world_size: int, pairs: dict[str, tuple[str, float]] = PAIRS) -> dict[str, float]:
    """Seconds of a step of each; it takes as long as on its slowest rank."""
    taken: dict[str, list[float]] = {}
    kept = os.environ.get("COURSE_LEDGER")
    os.environ["COURSE_LEDGER"] = "off"
    try:
        for number in range(ROUNDS):
            runs = launch(
                race, pairs, world_size=world_size, backend="gloo", timeout=300, seed=number
            )
            if runs[0][1] > ADAM["lr"] / 10:
                raise RuntimeError(
                    f"the parameters differ from PyTorch's by {runs[0][1]:.1g} after two steps of "
                    f"{ADAM['lr']}: no time is worth comparing"
                )
            for name in runs[0][0]:
                slowest = map(max, zip(*(times[name] for times, _ in runs), strict=True))
                taken.setdefault(name, []).extend(slowest)
    finally:
        if kept is None:
            os.environ.pop("COURSE_LEDGER")
        else:
            os.environ["COURSE_LEDGER"] = kept
    return {name: statistics.median(times) for name, times in taken.items()}


# ---- bytes and memory


def storages() -> dict[int, int]:
    """Bytes of every tensor's memory that Python or a parameter's .grad can reach, each once."""
    storages = {}
    for item in gc.get_objects():
        if issubclass(type(item), torch.Tensor):
            for tensor in (item, item.grad if item.is_leaf else None):
                if tensor is not None:
                    storage = tensor.untyped_storage()
                    storages[storage._cdata] = storage.nbytes()
    return storages


def two_steps(name: str) -> int:
    """Take two steps, the second between barriers; returns the bytes resident after it."""
    before = storages()
    model, optimizer = contestant(name, Transformer())
    for _ in range(2):
        dist.barrier()
        optimizer.zero_grad()
        model(torch.ones(1, 2, WIDTH)).backward()
        optimizer.step()
        dist.barrier()
    return sum(nbytes for key, nbytes in storages().items() if key not in before)


def exact(name: str, stage: int, world_size: int) -> Iterator[Row]:
    """Bytes sent and bytes resident, in the worst rank, against the closed forms."""
    residents = launch(two_steps, name, world_size=world_size, backend="gloo", timeout=120)
    unit = sum(p.numel() for p in Transformer().blocks[0].parameters())
    params = unit * LAYERS
    sizes = [unit] * LAYERS if stage == 3 else [params]
    sent = facts.zero_bytes(sizes, world_size, 4, stage)
    worst = 0.0
    for rank in range(world_size):
        operations = residents.ledger.operations(rank)
        last = [i for i, operation in enumerate(operations) if operation.op == "barrier"][-2:]
        second = operations[last[0] : last[1]]
        off = abs(sum(operation.bytes_sent for operation in second) - sent) / sent
        worst = max(worst, off)
    memory = facts.zero_memory(params, world_size, stage, precision=facts.FLOAT32)
    resident = max(abs(nbytes - memory) / memory for nbytes in residents)
    where = f"{world_size} ranks, float32 AdamW"
    yield Row(
        f"`{name}` bytes sent in a step, {where}", "closed form", 1 + worst, 1.0,
        detail=f"{sent:,} bytes a rank",
    )  # fmt: skip
    yield Row(
        f"`{name}` bytes resident after a step, {where}", "ZeRO's formula", 1 + resident, 1.02,
        detail=f"{residents[0]:,}, {memory:,.0f} bytes a rank",
    )  # fmt: skip


def rows() -> Iterator[Row]:
    for world_size in WORLDS:
        took = medians(world_size)
        for ours, (theirs, reach) in PAIRS.items():
            yield Row(
                f"`{ours}` step on the ring, 4.7 M parameters, {world_size} ranks, gloo",
                f"`{theirs}`" + (" and DDP" if theirs == "ZeroRedundancyOptimizer" else ""),
                took[ours] / took[theirs],
                reach,
                detail=f"{took[ours] * 1e3:.0f} ms, {took[theirs] * 1e3:.0f} ms",
            )
    for stage, name in enumerate(("Zero1Optimizer", "Zero2Optimizer", "Zero3Module"), 1):
        yield from exact(name, stage, WORLDS[-1])
