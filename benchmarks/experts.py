"""A training step with experts on many ranks against DDP with all experts on each, in one run.

Both have the same GPT with the same mixtures, the same rows and AdamW. Loss and gradients are compared before
anything is timed. States are the bytes of a rank's parameters, gradients and AdamW's moments; bytes are those
that the busiest rank sends in a step, by the ledger.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.table import Row
from course_lib import launch
from course_lib.experts import MoE, expert_gpt
from course_lib.models import GPT, GPTConfig, next_token_loss

CONFIG = GPTConfig(context=64, layers=2, heads=4, width=64)
EXPERTS, K, RANKS = 8, 2, 4
ROWS = 8  # in all
HIDDEN = {128: 1.5, 512: 1.0}  # numbers inside an expert: times DDP's step, to reach
STATES, BYTES = 0.4, 0.4  # of DDP's, to reach at 512
ROUNDS, REPEATS = 3, 8
Step = Callable[[], Tensor]


def contestant(
    shared: bool, hidden: int
) -> tuple[nn.Module, list[nn.Parameter], Callable[[], None]]:
    """The model, its parameters, and what is left to do after backward."""
    torch.manual_seed(0)
    group: Any = dist.group.WORLD
    model = expert_gpt(GPT(CONFIG), EXPERTS, K, group if shared else None, hidden=hidden)
    if not shared:
        wrapped = DistributedDataParallel(model)
        return wrapped, list(wrapped.parameters()), lambda: None
    apart = {
        id(param)
        for layer in model.modules()
        if isinstance(layer, MoE)
        for param in (layer.w1, layer.w3, layer.w2)
    }
    dense = [param for param in model.parameters() if id(param) not in apart]

    def sum_dense() -> None:
        flat = torch.cat([p.grad.flatten() for p in dense if p.grad is not None])
        dist.all_reduce(flat)
        for param, total in zip(dense, flat.split([p.numel() for p in dense]), strict=True):
            param.grad = total.view_as(param)

    return model, list(model.parameters()), sum_dense


def step_of(shared: bool, hidden: int) -> tuple[Step, list[nn.Parameter]]:
    model, params, finish = contestant(shared, hidden)
    optimizer = torch.optim.AdamW(params, lr=1e-3)
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(256, (ROWS, CONFIG.context + 1), generator=generator)
    rows = tokens.chunk(RANKS)[dist.get_rank()]

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = next_token_loss(model(rows[:, :-1]), rows[:, 1:])
        (loss / RANKS if shared else loss).backward()  # DDP divides by the ranks itself
        finish()
        optimizer.step()
        return loss.detach()

    return step, params


def race(hidden: int) -> tuple[dict[bool, list[float]], float]:
    """Seconds of the steps of both, in turns; the largest difference of the losses of three steps."""
    steps = {shared: step_of(shared, hidden)[0] for shared in (True, False)}
    error = max(abs(float(steps[True]() - steps[False]())) for _ in range(3))
    taken: dict[bool, list[float]] = {shared: [] for shared in steps}
    order = list(steps)
    shuffle = random.Random(0).shuffle
    for _ in range(REPEATS):
        shuffle(order)
        for shared in order:
            dist.barrier()
            began = time.perf_counter()
            steps[shared]()
            taken[shared].append(time.perf_counter() - began)
    return taken, error


def medians(hidden: int) -> dict[bool, float]:
    """Seconds of a step of each, on its slowest rank."""
    taken: dict[bool, list[float]] = {True: [], False: []}
    for number in range(ROUNDS):
        runs = launch(race, hidden, world_size=RANKS, backend="gloo", timeout=300, seed=number)
        if runs[0][1] > 1e-4:
            raise RuntimeError(f"the losses differ by {runs[0][1]:.1g}: no time is worth comparing")
        for shared in taken:
            slowest = map(max, zip(*(times[shared] for times, _ in runs), strict=True))
            taken[shared].extend(slowest)
    return {shared: statistics.median(times) for shared, times in taken.items()}


def one_step(shared: bool, hidden: int) -> int:
    """A step between barriers; returns the bytes of parameters, gradients and moments."""
    step, params = step_of(shared, hidden)
    dist.barrier()
    step()
    dist.barrier()
    return 4 * sum(param.nbytes for param in params)


def sent(shared: bool, hidden: int) -> tuple[int, float]:
    """(state bytes of a rank, bytes of the busiest rank's step)."""
    run = launch(one_step, shared, hidden, world_size=RANKS, backend="gloo", timeout=120)
    bytes_of = []
    for rank in range(RANKS):
        operations = run.ledger.operations(rank)
        at = [i for i, operation in enumerate(operations) if operation.op == "barrier"][-2:]
        bytes_of.append(sum(op.bytes_sent for op in operations[at[0] : at[1]]))
    return max(run), max(bytes_of)


def rows() -> Iterator[Row]:
    for hidden, reach in HIDDEN.items():
        seconds = medians(hidden)
        yield Row(
            f"step of a GPT with {EXPERTS} experts dealt out to {RANKS} ranks, hidden {hidden}, gloo",
            "`DistributedDataParallel` with all experts on each",
            seconds[True] / seconds[False],
            reach,
            detail=f"{1000 * seconds[True]:.0f} ms, {1000 * seconds[False]:.0f} ms",
        )
    ours, theirs = sent(True, 512), sent(False, 512)
    for what, here, there, reach in (
        ("bytes of states of a rank", ours[0], theirs[0], STATES),
        ("bytes that the busiest rank sends in a step", ours[1], theirs[1], BYTES),
    ):
        yield Row(
            f"the same, hidden 512: {what}",
            "`DistributedDataParallel`",
            here / there,
            reach,
            detail=f"{here / 1e6:.2f} MB, {there / 1e6:.2f} MB",
        )
