"""Notebook 12's tools: a restart after SIGKILL, every power failure of a save, saves behind, a late rank.

Nothing is timed before its result was found right: a run that was killed ends at the undisturbed run's loss,
and each power failure leaves a checkpoint that was saved.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor

from benchmarks.table import Row
from course_lib import launch
from course_lib.mesh import Mesh, held_boxes, mesh_stages, parameters
from course_lib.models import GPT, GPTConfig
from course_lib.operation import (
    AsyncCheckpoint,
    Folder,
    arrivals_of,
    best_interval,
    commit,
    faults,
    find_straggler,
    fork,
    goodput,
    newest,
    run_agents,
    save_shards,
    simulated_goodput,
    tidy,
    train,
)
from course_lib.pipeline import one_f_one_b

RUNS = 3
LATE_RUNS = 10
SAVES = 9
KILLS = 60
STEP = 0.02  # seconds of a step of the run that loses a rank
LATE_STEP = 0.1  # seconds of a step in which one rank is late
BUSY = 20  # processes that want a core each while ranks are compared
CONFIG = GPTConfig(context=64, layers=8, heads=4, width=256)  # 6.4 million parameters


def restart() -> tuple[float, float]:
    """Seconds of a run that loses rank 3 in step 7, and of an undisturbed one; both end at the same loss."""
    seconds, ends = [], []
    for dies in ((3, 7), None):
        with tempfile.TemporaryDirectory() as folder:
            run = run_agents(partial(train, dies=dies, step_seconds=STEP), folder, 15, 5)
        seconds.append(run.seconds)
        ends.append([line.text for line in run.lines if line.text.startswith("end")])
    if ends[0] != ends[1]:
        raise RuntimeError(f"the run that was killed ends at {ends[0]}, the other at {ends[1]}")
    return seconds[0], seconds[1]


def crash_check() -> float:
    """Seconds for every power failure of three saves of three parts, each with another save after it."""
    saves = [(step, {f"rank {k}": bytes([step]) * 64 for k in range(3)}) for step in (1, 2, 3)]
    began = time.perf_counter()
    failures = list(faults(commit, newest, saves))
    seconds = time.perf_counter() - began
    if failures:
        raise RuntimeError(str(failures[0]))
    return seconds


def lost(kills: int, seed: int) -> tuple[int, int]:
    """Checkpoints that were lost and kills inside a save, by SIGKILLs while saves follow each other."""
    draw, gone, inside = Random(seed), 0, 0
    with tempfile.TemporaryDirectory() as path:
        folder = Folder(Path(path) / "checkpoints")

        def parts_of(step: int) -> dict[str, bytes]:
            return {f"rank {k}": bytes([step % 256]) * 300_000 for k in range(3)}

        def save_from(step: int) -> None:
            while True:
                step += 1
                commit(folder, step, parts_of(step))
                tidy(folder)

        commit(folder, 0, parts_of(0))
        last = 0
        for _ in range(kills):
            child = fork(partial(save_from, last))
            time.sleep(draw.random() * 0.04)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            step, parts = newest(folder) or (-1, {})
            gone += step < last or parts != parts_of(step)
            last = max(last, step)
            names = [name for name in folder.names() if not name.startswith("step-")]
            inside += any(int(name.partition(".")[0]) > last for name in names)
    return gone, inside


def behind() -> tuple[float, float]:
    """Median seconds of `AsyncCheckpoint.save`, and of the write of the same 26 MB with fsync."""
    tensors = {f"layer {k}": torch.randn(800_000) for k in range(8)}
    with tempfile.TemporaryDirectory() as path:

        def write(step: int, copies: dict[str, Tensor]) -> None:
            with (Path(path) / "state").open("wb") as file:
                torch.save(copies, file)
                file.flush()
                os.fsync(file.fileno())

        save, copies = AsyncCheckpoint(write), []
        writes = [timed(lambda: write(0, tensors)) for _ in range(SAVES + 1)][1:]
        for step in range(SAVES + 1):
            copies.append(timed(lambda step=step: save.save(step, tensors)))
            save.wait()
    return median(copies[1:]), median(writes)


def timed(function: Callable[[], object]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


@contextmanager
def busy_machine() -> Iterator[None]:
    """So many processes count while the block runs; each ends with this process, too."""
    count = "import os, sys\nwhile os.getppid() == int(sys.argv[1]): pass"
    command = [sys.executable, "-c", count, str(os.getpid())]
    processes = [subprocess.Popen(command) for _ in range(BUSY)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def late_steps(delay: float) -> None:
    tensor = torch.ones(1)
    for _ in range(39):
        time.sleep(LATE_STEP + delay * (dist.get_rank() == 2))
        dist.all_reduce(tensor)


def wrongs(share: float) -> int:
    """Of LATE_RUNS runs, those in which rank 2 of 4, slower by this share, is not named; at 0, any rank.

    A rank counts as named if it is late by 5 % of a step: on few cores equal ranks take turns in an order
    that lasts for a while, so that the test alone names one of them, with a median of microseconds.
    """
    wrong = 0
    for _ in range(LATE_RUNS):
        run = launch(late_steps, share * LATE_STEP, world_size=4, backend="gloo", timeout=300)
        late = find_straggler(arrivals_of(run.ledger))
        named = late[0] if late and late[1] >= 0.05 * LATE_STEP else None
        wrong += named != (2 if share else None)
    return wrong


def saves(path: str) -> dict[str, list[float]]:
    """Seconds of saves of the same pieces on pp 2 x tp 2, in turns, by the library and by `dcp.save`."""
    mesh = Mesh({"pp": 2, "dp": 1, "tp": 2})
    torch.manual_seed(0)
    stages = mesh_stages(GPT(CONFIG), mesh, one_f_one_b(2, 2))
    held = held_boxes(stages, torch.optim.AdamW([param for _, param in parameters(stages)]))
    state: dict[str, Any] = {f"{name} {box}": part.detach() for name, (part, box) in held.items()}
    ways = {
        "ours": lambda step: save_shards(Folder(f"{path}/ours"), step, held),
        "theirs": lambda step: dcp.save(state, checkpoint_id=f"{path}/theirs-{step}"),
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for step in range(RUNS + 1):
        for way, save in ways.items():
            dist.barrier()
            began = time.perf_counter()
            save(step)
            dist.barrier()
            seconds[way].append(time.perf_counter() - began)
    return seconds


def race() -> tuple[float, float, int]:
    """Median seconds of both, after one that warms up, and the bytes of a checkpoint."""
    with tempfile.TemporaryDirectory() as path:
        seconds = launch(saves, path, world_size=4, backend="gloo", timeout=300)[0]
        files = [file for file in Path(path, "theirs-0").iterdir() if file.is_file()]
        nbytes = sum(file.stat().st_size for file in files)
    return median(seconds["ours"][1:]), median(seconds["theirs"][1:]), nbytes


def rows() -> Iterator[Row]:
    killed, quiet = (
        median(column) for column in zip(*[restart() for _ in range(RUNS)], strict=True)
    )
    yield Row(
        "SIGKILL on a rank of 2 x 2: seconds until the run of 15 steps has ended all the same",
        "", killed, 6.0, "s", f"an undisturbed run {quiet:.1f} s",
    )  # fmt: skip
    yield Row(
        "every power failure of three saves of three parts", "",
        median(crash_check() for _ in range(RUNS)), 0.5, "s",
    )  # fmt: skip
    gone, inside = lost(KILLS, 0)
    yield Row(
        f"checkpoints lost by {KILLS} SIGKILLs while 0.9 MB are saved again and again", "",
        gone, 0, "count", f"{inside} kills fell inside a save",
    )  # fmt: skip
    copy, write = behind()
    yield Row(
        "`AsyncCheckpoint.save` of 26 MB", "the write, with fsync",
        copy / write, 0.4, detail=f"{1000 * copy:.0f} ms, {1000 * write:.0f} ms",
    )  # fmt: skip
    ours, theirs, nbytes = race()
    yield Row(
        f"a model with AdamW's state, {nbytes / 1e6:.0f} MB, saved on pp 2, tp 2",
        "`torch.distributed.checkpoint.save`, the same pieces",
        ours / theirs, 1.5, detail=f"{1000 * ours:.0f} ms, {1000 * theirs:.0f} ms",
    )  # fmt: skip
    for share in (0.0, 0.1, 0.25, 0.5):
        what = f"rank 2 of 4 is {100 * share:.0f} % slower" if share else "4 equal ranks"
        wrong = "another rank or none is named" if share else "one is named"
        runs = f"in {LATE_RUNS} runs"
        yield Row(f"{what}: {wrong}", runs, wrongs(share), 0, "count")
        with busy_machine():
            beside = wrongs(share)
        yield Row(f"{what}, beside {BUSY} busy processes: {wrong}", runs, beside, 0, "count")
    save, restarts, mtbf = 60.0, 600.0, 3 * 3600.0
    tau = best_interval(save, mtbf)
    formula = goodput(tau, save, restarts, mtbf)
    drawn = simulated_goodput(tau, save, restarts, mtbf, failures=20_000)
    yield Row(
        "goodput's formula, off by", "20,000 drawn failures",
        abs(formula - drawn) / drawn, 0.02, "points", f"{formula:.4f}, {drawn:.4f}",
    )  # fmt: skip
