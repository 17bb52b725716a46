"""All axes in one step: the cost of a placement on emulated wires, and our step against PyTorch's own parts.

For the first, a GPT trains on pp 2, dp 2, tp 2, on two emulated nodes of four GPUs, once with tp inside of a
node and once across. The ratio of the two steps is held against a model: the seconds of the links, alpha +
bytes x beta for each operation, along the schedule as `simulate` lays it out, and the rest of the first step,
which is the machine's. The wires are slow, so that the sleeping counts and the machine does not.

For the second, both sides train the same untied GPT in float32 on the same mesh: `mesh_stages` and
`hybrid_step` here, `init_device_mesh`, `parallelize_module`, `fully_shard` and `Schedule1F1B` there. Their
losses are compared over some steps of SGD before anything is timed; then the steps run in turns, the ledger
off on both sides.
"""

from __future__ import annotations

import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    parallelize_module,
)

from benchmarks.table import Row
from course_lib import facts, launch
from course_lib.mesh import Mesh, hybrid_step, mesh_stages
from course_lib.models import GPT, GPTConfig, next_token_loss
from course_lib.pipeline import gpt_stages, one_f_one_b, simulate
from course_lib.pipeline.simulate import Durations
from course_lib.planning import Cluster, Wire

CONFIG = GPTConfig(256, 64, layers=4, heads=4, width=64)
UNTIED = replace(CONFIG, width=128, tied=False)
INSIDE, OUTSIDE = {"pp": 2, "dp": 2, "tp": 2}, {"tp": 2, "pp": 2, "dp": 2}
MICROBATCHES, ROWS = 4, 1  # of a pipeline, and rows of each
WIRES = Cluster(8, 4, facts.gpu("A100"), Wire("inside", 2.5e7, 8e-3), Wire("across", 2.5e6, 40e-3))
STEPS = 4  # of a launch, of which the fastest counts
ROUNDS, REPEATS = 2, 7  # launches, and steps of each side within one
PLACEMENT_REACH, REACH = 1.15, 1.3
Step = Callable[[], float]


# ---- a placement on emulated wires


def placed_steps(sizes: dict[str, int]) -> list[float]:
    """Seconds of the steps of this rank; the first, in which gloo connects, is left out."""
    torch.set_num_threads(1)
    mesh, schedule = Mesh(sizes), one_f_one_b(2, MICROBATCHES)
    torch.manual_seed(0)
    stages = mesh_stages(GPT(CONFIG), mesh, schedule)
    tokens = torch.randint(CONFIG.vocab_size, (ROWS, CONFIG.context))
    taken = []
    for _ in range(STEPS + 1):
        dist.barrier()
        began = time.perf_counter()
        hybrid_step(stages, schedule, [(tokens, tokens)] * MICROBATCHES, mesh)
        taken.append(time.perf_counter() - began)
    return taken[1:]


def fastest(sizes: dict[str, int]) -> float:
    """Seconds of the fastest step on the wires, as its slowest rank sees it."""
    ranks = launch(placed_steps, sizes, world_size=8, backend="gloo", wires=WIRES, timeout=120)
    return min(max(step) for step in zip(*ranks, strict=True))


def wire_seconds(sizes: Mapping[str, int]) -> float:
    """Seconds that a step spends on the wires, along its longest chain: the model.

    A stage's microbatch makes four all-reduces of M bytes for each of its two layers, and one more at its
    end; the last stage has two small ones for the loss besides, and counts here for both.
    """
    layout = Links(sizes)
    stream = ROWS * CONFIG.context * CONFIG.width * 4
    tokens = ROWS * CONFIG.context
    of_stream = layout.seconds("tp", stream)
    loss = layout.seconds("tp", 4 * tokens) + layout.seconds("tp", 8 * tokens)
    layers = CONFIG.layers // 2
    forward, backward = 2 * layers * of_stream + loss, (2 * layers + 1) * of_stream
    durations = Durations(forward, backward=backward, communication=layout.seconds("pp", stream))
    pipeline = float(simulate(one_f_one_b(2, MICROBATCHES), durations).total)
    table = layout.seconds(
        "pp", CONFIG.vocab_size // 2 * CONFIG.width * 4
    )  # the tied table's terms
    sums = layout.seconds("dp", facts.rank_parameters(CONFIG, sizes, 0) * 4)
    return pipeline + table + sums + WIRES.wire("across").seconds(8)  # the loss, over pp and dp


class Links:
    """The seconds of an operation of two ranks along each axis."""

    def __init__(self, sizes: Mapping[str, int]):
        self.links = {
            axis: WIRES.wire(
                "inside" if facts.wire(sizes, axis, WIRES.per_node) == "NVLink" else "across"
            )
            for axis in sizes
        }

    def seconds(self, axis: str, nbytes: float) -> float:
        """Of an all-reduce or a message: between two ranks both carry all bytes once in each direction."""
        return self.links[axis].seconds(nbytes)


def placement() -> Row:
    """The slowdown of a wrong placement, measured and modelled.

    The model takes the seconds of computing from the measured step with tp inside a node: without wires
    eight ranks share the cores, and with wires most of them sleep.
    """
    inside, outside = fastest(INSIDE), fastest(OUTSIDE)
    measured = outside / inside
    computing = inside - wire_seconds(INSIDE)
    predicted = (computing + wire_seconds(OUTSIDE)) / inside
    return Row(
        "slowdown of a step by tp across nodes, emulated wires, 2 x 2 x 2",
        "the model's",
        max(measured / predicted, predicted / measured),
        PLACEMENT_REACH,
        detail=f"{measured:.2f} times, predicted {predicted:.2f}; {1e3 * inside:.0f} ms, "
        f"{1e3 * outside:.0f} ms, of which the machine takes {1e3 * computing:.0f} ms",
    )


# ---- our step and PyTorch's


def batch(dp_rank: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1 + dp_rank)
    shape = (2, MICROBATCHES, ROWS, UNTIED.context)
    inputs, targets = torch.randint(UNTIED.vocab_size, shape, generator=generator)
    return list(zip(inputs, targets, strict=True))


def ours() -> tuple[Step, list[torch.nn.Parameter]]:
    mesh, schedule = Mesh(INSIDE), one_f_one_b(2, MICROBATCHES)
    torch.manual_seed(0)
    stages = mesh_stages(GPT(UNTIED), mesh, schedule)
    microbatches = batch(mesh.coordinate["dp"])
    params = [param for stage in stages for param in stage.module.parameters()]
    return lambda: hybrid_step(stages, schedule, microbatches, mesh), params


def plan(names: Any) -> dict[str, Any]:
    """A plan of the same cuts, for the blocks, the embedding and the head that a stage has."""
    whole, plan = (Replicate(), None), {}
    for name in names:
        part = name.rpartition(".")[2]
        if part == "attention":
            plan[name] = PrepareModuleInput(input_layouts=whole, desired_input_layouts=whole)
        elif part in ("query", "key", "value", "up"):
            plan[name] = ColwiseParallel()
        elif part in ("out", "down"):
            plan[name] = RowwiseParallel()
        elif part == "token_embedding":
            plan[name] = RowwiseParallel(input_layouts=Replicate())
        elif part == "head":
            plan[name] = ColwiseParallel(output_layouts=Replicate())
    return plan


def theirs() -> tuple[Step, list[torch.nn.Parameter]]:
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
    place = mesh.get_local_rank("pp")
    torch.manual_seed(0)
    (stage,) = gpt_stages(GPT(UNTIED), one_f_one_b(2, MICROBATCHES), place, mesh["pp"].get_group())
    module: Any = stage.module
    parallelize_module(module, mesh["tp"], plan([name for name, _ in module.named_modules()]))
    for block in module.blocks.values():
        fully_shard(block, mesh=mesh["dp"], reshard_after_forward=False)
    fully_shard(module, mesh=mesh["dp"], reshard_after_forward=False)
    made = PipelineStage(module, place, 2, torch.device("cpu"), group=mesh["pp"].get_group())
    inputs, targets = (
        torch.cat(part) for part in zip(*batch(mesh.get_local_rank("dp")), strict=True)
    )
    count = targets.numel()

    def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
        return next_token_loss(logits, targets, "sum") / count

    schedule: Any = Schedule1F1B(made, MICROBATCHES, loss_fn=loss_of, scale_grads=False)

    def step() -> float:
        losses: list[Tensor] = []
        if place == 0:
            schedule.step(inputs)
        else:
            schedule.step(target=targets, losses=losses)
        total = torch.stack([*losses, torch.zeros(())]).sum().detach()
        dist.all_reduce(total)  # of all ranks: tp's two have the same
        return float(total) / mesh["dp"].size() / mesh["tp"].size()

    return step, list(module.parameters())


def race() -> tuple[list[list[float]], list[float], list[float]]:
    """Losses of both sides over three steps; seconds of their steps, in an order that all ranks share."""
    torch.set_num_threads(1)
    losses, sides = [], [ours(), theirs()]
    for step, params in sides:
        optimizer = torch.optim.SGD(params, lr=0.1)
        losses.append([])
        for _ in range(3):
            losses[-1].append(step())
            optimizer.step()
            optimizer.zero_grad()
    taken: list[list[float]] = [[], []]
    order, shuffle = [0, 1], random.Random(0).shuffle
    for _ in range(REPEATS):
        shuffle(order)
        for side in order:
            step, params = sides[side]
            for param in params:
                param.grad = None
            dist.barrier()
            began = time.perf_counter()
            step()
            taken[side].append(time.perf_counter() - began)
    return losses, taken[0], taken[1]


@contextmanager
def without_ledger() -> Iterator[None]:
    """Ranks that are launched meanwhile record nothing."""
    kept = os.environ.get("COURSE_LEDGER")
    os.environ["COURSE_LEDGER"] = "off"
    try:
        yield
    finally:
        if kept is None:
            del os.environ["COURSE_LEDGER"]
        else:
            os.environ["COURSE_LEDGER"] = kept


def against_pytorch() -> list[Row]:
    """Each round gives the ratio of the two medians, of steps as their slowest rank sees them."""
    ratios, times, worst = [], [], 0.0
    for _ in range(ROUNDS):
        with without_ledger():
            ranks = list(launch(race, world_size=8, backend="gloo", timeout=300))
        for losses, _, _ in ranks:
            worst = max(worst, *(abs(a - b) / b for a, b in zip(*losses, strict=True)))
        ours_, theirs_ = (
            statistics.median(
                max(step) for step in zip(*(rank[side] for rank in ranks), strict=True)
            )
            for side in (1, 2)
        )
        ratios.append(ours_ / theirs_)
        times.append((ours_, theirs_))
    ratio = statistics.median_low(ratios)
    mine, other = times[ratios.index(ratio)]
    return [
        Row(
            "`hybrid_step` on pp 2, dp 2, tp 2, a GPT of width 128, 4 microbatches, gloo",
            "`parallelize_module`, `fully_shard` and `Schedule1F1B`",
            ratio,
            REACH,
            detail=f"{1e3 * mine:.0f} ms, {1e3 * other:.0f} ms",
        ),
        Row(
            "losses of both over three steps, float32, units of 1e-6",
            "each other",
            worst / 1e-6,
            1.0,
            detail=f"{worst:.0e}",
        ),
    ]


def rows() -> Iterator[Row]:
    yield placement()
    yield from against_pytorch()
