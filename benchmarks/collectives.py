"""The ring against gloo's own collectives, 16 MB of float32; small all-reduces of ranks that take turns.

The figure is taken with the ledger off on both sides, since the ledger's cost is a figure of its
own; the ratio with the ledger on stands beside it.
"""

from __future__ import annotations

import os
import random
import statistics
import time
import warnings
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist

from benchmarks.table import Row
from course_lib import launch
from course_lib.collectives import reduce_scatter, ring_all_reduce

NUMEL = 4 << 20
ROUNDS, REPEATS = 4, 15  # launches, and races within each
WORLDS = (2, 4)
TURNS, SMALL, SEVERAL = 9, 50, (2, 4, 8)  # times in turn, small all-reduces in each, ranks
PAIRS = {  # ours: (built-in, reach)
    "ring_all_reduce": ("dist.all_reduce", 1.3),
    "reduce_scatter": ("dist.reduce_scatter_tensor", 0.6),
}


def race() -> dict[str, list[float]]:
    """Seconds of each, taken in turns, in an order that changes but is the same on all ranks.

    So the machine's other work, and the contents that the last one left in the caches, fall on all of them.
    """
    warnings.simplefilter("ignore", FutureWarning)  # PyTorch 2.13 renames reduce_scatter_tensor
    tensor = torch.ones(NUMEL)
    shard = torch.empty(NUMEL // dist.get_world_size())
    runners: dict[str, Callable[[], object]] = {
        "ring_all_reduce": lambda: ring_all_reduce(tensor),
        "dist.all_reduce": lambda: dist.all_reduce(tensor),
        "reduce_scatter": lambda: reduce_scatter(shard, tensor),
        "dist.reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(shard, tensor),
    }
    taken: dict[str, list[float]] = {name: [] for name in runners}
    order = list(runners)
    shuffle = random.Random(0).shuffle
    for _ in range(REPEATS + 3):  # the first ones make connections and buffers
        shuffle(order)
        for name in order:
            tensor.fill_(1)
            dist.barrier()
            began = time.perf_counter()
            runners[name]()
            dist.barrier()
            taken[name].append(time.perf_counter() - began)
    return {name: seconds[3:] for name, seconds in taken.items()}


def medians(world_size: int) -> dict[str, dict[str, float]]:
    """Seconds of each by the ledger's setting; a race takes as long as its slowest rank."""
    taken: dict[str, dict[str, list[float]]] = {"off": {}, "on": {}}
    for _ in range(ROUNDS):
        for setting, times in taken.items():
            os.environ["COURSE_LEDGER"] = setting
            runs = launch(race, world_size=world_size, backend="gloo", timeout=300)
            for name in runs[0]:
                slowest = map(max, zip(*(rank[name] for rank in runs), strict=True))
                times.setdefault(name, []).extend(slowest)
    os.environ.pop("COURSE_LEDGER")
    return {
        setting: {name: statistics.median(times) for name, times in by_name.items()}
        for setting, by_name in taken.items()
    }


def interrupted() -> dict[str, float]:
    """Seconds of a small `dist.all_reduce`: the ranks take turns, or interrupt each other."""
    tensor, taken = torch.ones(1000), {"turns": [], "interrupted": []}
    for _ in range(TURNS):
        for way, times in taken.items():
            policy = os.SCHED_BATCH if way == "turns" else os.SCHED_OTHER
            for thread in os.listdir("/proc/self/task"):
                os.sched_setscheduler(int(thread), policy, os.sched_param(0))
            dist.barrier()
            began = time.perf_counter()
            for _ in range(SMALL):
                dist.all_reduce(tensor)
            times.append((time.perf_counter() - began) / SMALL)
    return {way: statistics.median(times) for way, times in taken.items()}


def rows() -> Iterator[Row]:
    for world_size in SEVERAL:
        took = launch(interrupted, world_size=world_size, backend="gloo", timeout=300)[0]
        yield Row(
            f"`dist.all_reduce`, 4 KB, {world_size} ranks that take turns, gloo",
            "ranks that interrupt each other",
            took["turns"] / took["interrupted"],
            0.5,
            detail=f"{took['turns'] * 1e3:.2f} ms, {took['interrupted'] * 1e3:.2f} ms",
        )
    for world_size in WORLDS:
        took = medians(world_size)
        for ours, (built_in, reach) in PAIRS.items():
            ratio = {setting: took[setting][ours] / took[setting][built_in] for setting in took}
            yield Row(
                f"`{ours}`, 16 MB float32, {world_size} ranks, gloo",
                f"`{built_in}`",
                ratio["off"],
                reach,
                detail=f"{took['off'][ours] * 1e3:.1f} ms, {took['off'][built_in] * 1e3:.1f} ms; "
                f"with the ledger {ratio['on']:.2f}",
            )
