"""A failure injector: kills a run at drawn times until it has finished.

Failures of a large job have no memory. Whatever happened before, the time until the next failure is drawn
from an exponential distribution of mean M. Here M is seconds instead of hours, and the run is a process that
is killed by SIGKILL and started again. So we can measure its goodput, and compare it with the formula:

    run = run_with_failures(partial(train, steps=400, every=20), folder, mtbf=2.0, seed=0)
    costs = measured(run, Journal(f"{folder}/journal").lines())      # training.py
    costs.goodput, goodput(20 * costs.step, costs.save, costs.restart, mtbf=2.0)

A failure while the run starts again also counts here, whereas the formula leaves it out (see `intervals.py`).
If there are few failures, the measured number scatters. With k of them it does so by about 1 / sqrt(k) of the
time lost.

Source: Schroeder and Gibson, A large-scale study of failures in high-performance computing systems, 2006.
Real times between failures scatter more than this (a Weibull distribution of shape 0.7 to 0.8).
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
    """began: on the machine's monotonic clock; seconds: to the end; kills: in seconds after it began."""

    began: float
    seconds: float
    kills: list[float]


def times_between_failures(mtbf: float, seed: int) -> Iterator[float]:
    """Seconds until the next failure, again and again, with mean `mtbf`."""
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
    """Run worker(folder, *arguments) in a process that is killed and started again until it returns.

    The times of the kills are drawn. No process is left. Raises RuntimeError if the worker raises, or if it
    does not finish in time.
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
