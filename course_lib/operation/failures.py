"""A failure injector: a run that is killed at drawn times until it has come to its end.

Failures of a large job have no memory: whatever happened before, the next comes after a time that is drawn
from an exponential distribution of mean M. Here M is seconds in place of hours, and the run is a process
that is killed by SIGKILL and started again. So its goodput can be measured, and held against the formula:

    run = run_with_failures(partial(train, steps=400, every=20), folder, mtbf=2.0, seed=0)
    costs = measured(run, Journal(f"{folder}/journal").lines())      # training.py
    costs.goodput, goodput(20 * costs.step, costs.save, costs.restart, mtbf=2.0)

A failure while the run starts again counts, too; the formula leaves it out (see `intervals.py`). With few
failures the measured number scatters: with k of them by about 1 / sqrt(k) of the time lost.

Source: Schroeder and Gibson, A large-scale study of failures in high-performance computing systems, 2006:
real times between failures scatter more than this (a Weibull distribution of shape 0.7 to 0.8).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from .starter import Deadline, fork, run_below


@dataclass(frozen=True)
class FailedRun:
    """began: on the machine's monotonic clock; seconds: to the end; kills: in seconds since it began."""

    began: float
    seconds: float
    kills: list[float]


def times_between_failures(mtbf: float, seed: int) -> Iterator[float]:
    """Seconds until the next failure, again and again, of mean `mtbf`."""
    draw = Random(seed)
    while True:
        yield draw.expovariate(1 / mtbf)


def run_with_failures(
    worker: Callable[..., object],
    folder: str | Path,
    *arguments: Any,
    mtbf: float,
    seed: int,
    timeout: float = 90.0,
) -> FailedRun:
    """worker(folder, *arguments) in a process that is killed at drawn times and started again, until it
    returns.

    No process is left. Raises RuntimeError if the worker raises, or if it does not get to its end in time.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    path = str(Path(folder).absolute())
    return run_below(partial(_inject, partial(worker, path, *arguments), mtbf, seed), timeout)


def _inject(worker: Callable[[], object], mtbf: float, seed: int, deadline: Deadline) -> FailedRun:
    began, kills = time.monotonic(), []
    for seconds in times_between_failures(mtbf, seed):
        child, failure = fork(worker), time.monotonic() + seconds
        ended = status = 0
        while not ended and time.monotonic() < failure:
            deadline.pause(max(0.0, min(0.005, failure - time.monotonic())))
            ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        kills.append(time.monotonic() - began)
    if code := os.waitstatus_to_exitcode(status):
        raise RuntimeError(f"the worker ended with code {code}")
    return FailedRun(began, time.monotonic() - began, kills)
