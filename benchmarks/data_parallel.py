"""A training step of BucketedDataParallel against DistributedDataParallel's, in one run.

Both start from the same weights, see the same data and step alike, in turns; their gradients are compared
before anything is timed. Both have buckets of 25 MB. The ledger is off on both sides.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.table import Row
from course_lib import launch
from course_lib.data_parallel import BucketedDataParallel

WIDTH, LAYERS = 256, 6
BATCH, LENGTH = 2, 64
ROUNDS, REPEATS = 3, 10  # launches, and steps of each within one
WORLDS = (2, 4)
REACH = 1.05
Step = Callable[[], None]


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


def contestants() -> dict[str, tuple[nn.Module, Step]]:
    """Name: the wrapped model and its step; the weights of rank 0, data of each rank's own."""
    data = torch.randn(BATCH, LENGTH, WIDTH)
    weights = Transformer().state_dict()

    def made(wrap: Callable[[nn.Module], nn.Module]) -> tuple[nn.Module, Step]:
        model = Transformer()
        model.load_state_dict(weights)
        wrapped = wrap(model)
        optimizer = torch.optim.SGD(wrapped.parameters(), lr=1e-3)

        def step() -> None:
            optimizer.zero_grad()
            wrapped(data).backward()
            if isinstance(wrapped, BucketedDataParallel):
                wrapped.finish_gradient_synchronization()
            optimizer.step()

        return wrapped, step

    return {
        "ours": made(BucketedDataParallel),
        "theirs": made(nn.parallel.DistributedDataParallel),
    }


def race() -> tuple[dict[str, list[float]], float]:
    """Seconds of the steps of both, in turns that are the same on all ranks, and the gradients' error.

    The error is relative to the largest gradient, after two steps: it is rounding, or something is wrong.
    """
    both = contestants()
    for _ in range(2):
        for _, step in both.values():
            step()
    ours, theirs = (list(model.parameters()) for model, _ in both.values())
    pairs = [(a.grad, b.grad) for a, b in zip(ours, theirs, strict=True)]
    error = max(float((a - b).abs().max()) for a, b in pairs if a is not None and b is not None)
    largest = max(float(b.abs().max()) for _, b in pairs if b is not None)
    taken: dict[str, list[float]] = {name: [] for name in both}
    order = list(both)
    shuffle = random.Random(0).shuffle
    for _ in range(REPEATS):
        shuffle(order)
        for name in order:
            dist.barrier()
            began = time.perf_counter()
            both[name][1]()
            taken[name].append(time.perf_counter() - began)
    return taken, error / largest


def medians(world_size: int) -> dict[str, float]:
    """Seconds of a step of each; it takes as long as on its slowest rank."""
    taken: dict[str, list[float]] = {}
    kept = os.environ.get("COURSE_LEDGER")
    os.environ["COURSE_LEDGER"] = "off"
    try:
        for number in range(ROUNDS):
            runs = launch(race, world_size=world_size, backend="gloo", timeout=300, seed=number)
            if max(error for _, error in runs) > 1e-4:
                raise RuntimeError(
                    f"the gradients differ from DDP's by {runs[0][1]:.1g} of the largest one: "
                    "no time is worth comparing"
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


def rows() -> Iterator[Row]:
    for world_size in WORLDS:
        took = medians(world_size)
        yield Row(
            f"step of `BucketedDataParallel`, 4.7 million parameters, {world_size} ranks, gloo",
            "`DistributedDataParallel`",
            took["ours"] / took["theirs"],
            REACH,
            detail=f"{took['ours'] * 1e3:.0f} ms, {took['theirs'] * 1e3:.0f} ms",
        )
