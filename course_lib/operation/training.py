"""The run of the labs: a small network that trains on any number of ranks, saves, dies, and continues.

    newest, else the start  ->  step  ->  step  ->  commit  ->  step  ->  ...

The rows of a step are drawn from its number and dealt out to the ranks, so the ranks read the same batch
however many they are. Rank 0 saves while the others wait, so a rank that dies between two saves leaves the
last save whole.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from statistics import mean
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .failures import FailedRun
from .folder import Folder
from .journal import Journal, Line
from .protocol import commit, newest
from .remember import capture, restore
from .run import Training, from_bytes, to_bytes

ROWS = 24  # of a step: 1, 2, 3 and 4 ranks divide them


def train(
    folder: str,
    steps: int,
    every: int,
    *,
    dies: tuple[int, int] | None = None,
    step_seconds: float = 0.0,
    save_seconds: float = 0.0,
    start_seconds: float = 0.0,
    commit: Callable[..., object] = commit,
    newest: Callable[..., Any] = newest,
    capture: Callable[[Any], dict] = capture,
    restore: Callable[[Any, dict], object] = restore,
) -> None:
    """Train up to step `steps`, with a save every `every` steps; on each rank, or in a process without ranks.

    Journal: "from N of R ranks", "step N", "saved N", and at the end "end LOSS", from rank 0.
    dies: (rank, step): this rank kills itself in this step, once. step_seconds, save_seconds and
    start_seconds make each of these last longer, by sleeping. The four functions can be your own.
    """
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    rank, n = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    time.sleep(start_seconds)
    journal, disk, run = Journal(f"{folder}/journal"), Folder(f"{folder}/checkpoints"), _run()
    loss = float("nan")
    if (loaded := newest(disk)) is not None:
        saved = from_bytes(loaded[1]["run"])
        restore(run, saved["state"])
        loss = saved["loss"]  # after the last save there is no step left that would compute it
    journal.note(f"from {run.step} of {n} ranks")
    while run.step < steps:
        time.sleep(step_seconds)
        if dies == (rank, run.step):
            journal.die_once(f"rank {rank} dies in step {run.step}")
        loss = _step(run, rank, n)
        if rank == 0:
            journal.note(f"step {run.step - 1}")
        if run.step % every == 0 or run.step == steps:
            if rank == 0:
                time.sleep(save_seconds)
                saved = to_bytes({"state": capture(run), "loss": loss})
                commit(disk, run.step, {"run": saved})
                journal.note(f"saved {run.step}")
            if n > 1:
                dist.barrier()
    if rank == 0:
        journal.note(f"end {loss!r}")
    if dist.is_initialized():
        dist.destroy_process_group()


@dataclass(frozen=True)
class Costs:
    """For a run that was killed again and again: seconds of a step, a save and a restart, and its goodput."""

    step: float
    save: float
    restart: float
    goodput: float


def measured(run: FailedRun, lines: Sequence[Line]) -> Costs:
    """From the journal of `train` without ranks: means, and the share of `run.seconds` that was kept work.

    restart: from a kill to the beginning of the next step. The work is the time of all steps, each counted
    once. We take means instead of medians, because on a busy machine a few steps are long, and only means add
    up to `run.seconds`.
    """
    steps, saves = list[float](), list[float]()
    for before, line in pairwise(lines):
        if before.pid == line.pid and before.text.startswith("step"):
            kind = {"step": steps, "saved": saves}.get(line.text.split()[0])
            if kind is not None:
                kind.append(line.time - before.time)
    step, save = mean(steps), mean(saves)
    first = [line.time for before, line in pairwise(lines) if before.text.startswith("from")]
    kills = [run.began + seconds for seconds in run.kills]
    next_steps = [min((time for time in first if time > kill), default=inf) for kill in kills]
    restarts = [next_step - kill - step for kill, next_step in zip(kills, next_steps, strict=True)]
    count = len({line.text for line in lines if line.text.startswith("step")})
    return Costs(step, save, mean(restarts) if restarts else 0.0, count * step / run.seconds)


def _run() -> Training:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    # Nothing here draws from the generator. It exists because a student's `capture` may expect one.
    return Training(model, optimizer, scheduler, generator=torch.Generator())


def _step(run: Training, rank: int, n: int) -> float:
    """One step on this rank's rows; the loss of all of them."""
    generator = torch.Generator().manual_seed(run.step)
    rows = torch.randn(ROWS, 8, generator=generator, dtype=torch.float64)
    mine = rows.chunk(n)[rank]
    wanted = mine.sin().sum(1, keepdim=True)
    # This divides by the rows of all ranks, so the sum over the ranks is the loss of the batch.
    loss = (run.model(mine) - wanted).square().sum() / ROWS
    run.optimizer.zero_grad()
    loss.backward()
    numbers = [param.grad for param in run.model.parameters()] + [loss.detach()]
    for number in numbers if n > 1 else []:
        dist.all_reduce(number)
    run.optimizer.step()
    run.scheduler.step()
    run.step += 1
    return loss.item()
