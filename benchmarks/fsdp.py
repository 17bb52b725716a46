"""A training step of fully sharded data parallelism: the time that prefetching saves, and the bytes.

In slow motion, on two ranks: a block's forward and backward are pauses, and the wire carries so much that a
gather takes as long as a forward. Neither needs a core, so that these ratios hold on a busy machine, too. The
times are held against `course_lib.fsdp.simulate`, which knows the same durations and nothing of the module.

As it is, `PrefetchedModule` steps in turns with `fully_shard` on the same units (see `benchmarks.zero`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.table import Row
from benchmarks.zero import LAYERS, WIDTH, WORLDS, Transformer, contestant, medians
from course_lib import facts, launch
from course_lib.fsdp import (
    PrefetchedModule,
    Times,
    all_gather_cast,
    fsdp_schedule,
    hybrid_groups,
    hybrid_reduce,
    reduce_scatter_mean,
    simulate,
)

BLOCKS, FEATURES = 8, 128  # of the model in slow motion
ELEMENTS = 2 * FEATURES * (FEATURES + 1)  # of one of its blocks
RANKS = 2
PACE = 0.040  # seconds of a block's forward, of a gather and of a reduction; a backward takes two
BANDWIDTH = 4 * ELEMENTS * (RANKS - 1) / RANKS / PACE  # bytes a second
STEPS = 4  # of which the fastest counts
AHEAD = {"one ahead": (1, 1), "nothing ahead": (0, 0)}
PAIRS = {"PrefetchedModule": ("fully_shard", 0.85)}
ROW = 1 << 16  # elements of the row whose bytes are compared
HYBRID, SHARD = 4, 2  # ranks, and those of an island
# PyTorch 2.13 renames both, and knows the old names no more
COLLECTIVES = (
    "all_gather_single",
    "reduce_scatter_single",
    "_allgather_base",
    "_reduce_scatter_base",
)


# ---- slow motion


class Paced(nn.Module):
    """Two layers and a residual; forward pauses for PACE seconds, backward twice as long."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.up(x))
        time.sleep(PACE)
        hidden.register_hook(lambda _: time.sleep(2 * PACE))
        return x + self.down(hidden)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Paced() for _ in range(BLOCKS)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


class Arrival:
    """The handle of a message that arrives at a given time, not sooner."""

    def __init__(self, work: dist.Work, at: float):
        self.work, self.at = work, at

    def wait(self, *timeout: Any) -> None:
        self.work.wait()
        time.sleep(max(0.0, self.at - time.perf_counter()))


def slow_wire() -> None:
    """From now on this rank's gathers and reductions go over one wire of BANDWIDTH, one after the other."""
    free = 0.0

    def on_the_wire(real: Callable[..., dist.Work]) -> Callable[..., Arrival]:
        def collective(
            group: Any, output: torch.Tensor, input: torch.Tensor, *options: Any
        ) -> Arrival:
            nonlocal free
            sent = (1 - 1 / group.size()) * max(output.nbytes, input.nbytes)
            free = max(free, time.perf_counter()) + sent / BANDWIDTH
            return Arrival(real(group, output, input, *options), free)

        return collective

    groups = type(dist.group.WORLD)
    for name in COLLECTIVES:
        if hasattr(groups, name):
            setattr(groups, name, on_the_wire(getattr(groups, name)))


def slow_steps() -> dict[str, list[float]]:
    """Seconds of forward and backward, in turns."""
    models = {
        name: PrefetchedModule(Network(), forward_prefetch=forward, backward_prefetch=backward)
        for name, (forward, backward) in AHEAD.items()
    }
    x = torch.randn(2, FEATURES)
    slow_wire()
    taken: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(STEPS):
        for name, model in models.items():
            model.zero_grad()
            dist.barrier()
            began = time.perf_counter()
            model(x).backward()
            taken[name].append(time.perf_counter() - began)
    return taken


def in_slow_motion() -> Iterator[Row]:
    runs = launch(slow_steps, world_size=RANKS, backend="gloo", timeout=300)
    took = {
        name: min(map(max, zip(*(times[name] for times in runs), strict=True))) for name in AHEAD
    }
    ahead, behind = took.values()
    where = f"slow motion, {BLOCKS} blocks, {RANKS} ranks"
    yield Row(
        f"step of `PrefetchedModule`, one block ahead, {where}", "nothing ahead", ahead / behind, 0.65,
        detail=f"{ahead * 1e3:,.0f} ms, {behind * 1e3:,.0f} ms",
    )  # fmt: skip
    times = Times(forward=PACE, backward=2 * PACE, gather=PACE, reduce=PACE)
    for name, prefetch in AHEAD.items():
        simulated = simulate(fsdp_schedule(BLOCKS, *prefetch), times).total
        yield Row(
            f"the same, {name}", "`course_lib.fsdp.simulate`", took[name] / simulated, 1.15,
            detail=f"{took[name] * 1e3:,.0f} ms, {simulated * 1e3:,.0f} ms",
        )  # fmt: skip


# ---- bytes


def two_steps() -> None:
    """The second between barriers."""
    model, optimizer = contestant("PrefetchedModule", Transformer())
    for _ in range(2):
        dist.barrier()
        optimizer.zero_grad()
        model(torch.ones(1, 2, WIDTH)).backward()
        optimizer.step()
    dist.barrier()


def three_ways() -> None:
    """The messages of a step for a row of weights, a barrier after each way."""
    shards, replicas = hybrid_groups(HYBRID, SHARD)
    inside, across = ([dist.new_group(ranks) for ranks in groups] for groups in (shards, replicas))
    island: Any = inside[dist.get_rank() // SHARD]
    equals: Any = across[dist.get_rank() % SHARD]
    for weights, group, n in (
        (torch.float32, None, HYBRID),
        (torch.bfloat16, None, HYBRID),
        (torch.float32, island, SHARD),
    ):
        dist.barrier()
        master = torch.ones(ROW // n)
        for _ in range(2):
            all_gather_cast(torch.empty(ROW, dtype=weights), master, group)
        gradients = torch.ones(ROW, dtype=weights)
        if group is None:
            reduce_scatter_mean(master, gradients, torch.float32)
        else:
            hybrid_reduce(master, gradients, island, equals)
    dist.barrier()


def between_barriers(run: Any, rank: int) -> list[int]:
    """The bytes that the rank sent between each barrier and the next."""
    sent: list[int] = []
    for operation in run.ledger.operations(rank):
        if operation.op == "barrier":
            sent.append(0)
        elif sent:
            sent[-1] += operation.bytes_sent
    return sent[:-1]


def bytes_sent() -> Iterator[Row]:
    n = WORLDS[-1]
    run = launch(two_steps, world_size=n, backend="gloo", timeout=120)
    block = sum(p.numel() for p in Transformer().blocks[0].parameters())
    # the last block is kept for backward, which is one gather less
    closed = (
        facts.fsdp_bytes(LAYERS * block, n, weights=4) - facts.fsdp_bytes(block, n, weights=4) / 3
    )
    second = [between_barriers(run, rank)[-1] for rank in range(n)]
    worst = max(abs(sent - closed) / closed for sent in second)
    yield Row(
        f"`PrefetchedModule` bytes sent in a step, {n} ranks, float32", "closed form", 1 + worst, 1.0,
        detail=f"{closed:,.0f} bytes a rank",
    )  # fmt: skip
    run = launch(three_ways, world_size=HYBRID, backend="gloo", timeout=120)
    ways = [between_barriers(run, rank) for rank in range(HYBRID)]
    whole, narrow, islands = (max(way) for way in zip(*ways, strict=True))
    yield Row(
        f"bytes of gathers in bfloat16 and a reduction in float32, {HYBRID} ranks", "all in float32",
        narrow / whole, 2 / 3, detail=f"{narrow:,}, {whole:,} bytes a rank",
    )  # fmt: skip
    yield Row(
        f"bytes of hybrid sharding, {HYBRID // SHARD} islands of {SHARD} ranks",
        f"sharding over {HYBRID}", islands / whole, 8 / 9,
        detail=f"{islands / 4 / ROW:.2f} P, {whole / 4 / ROW:.2f} P",
    )  # fmt: skip


def rows() -> Iterator[Row]:
    yield from in_slow_motion()
    for world_size in WORLDS:
        took = medians(world_size, PAIRS)
        for ours, (theirs, reach) in PAIRS.items():
            yield Row(
                f"`{ours}` step, 4.7 M parameters, {world_size} ranks, gloo", f"`{theirs}`",
                took[ours] / took[theirs], reach,
                detail=f"{took[ours] * 1e3:.0f} ms, {took[theirs] * 1e3:.0f} ms",
            )  # fmt: skip
    yield from bytes_sent()
