"""How fast are two ranks? A ping-pong, and the two numbers that every cost formula needs.

A message of n bytes takes about `alpha + n * beta` seconds: alpha is the latency, the time of a message
before its first byte arrives, and beta is the time of one byte, the inverse of the bandwidth
(Hockney 1994; Thakur, Rabenseifner and Gropp 2005, section 3). Both are measured here on the ranks
used by the course itself, including its record of every message, because the student's own
collectives will run on them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import torch
import torch.distributed as dist

from course_lib.runtime.backend import device
from course_lib.runtime.launch import launch

SIZES = (4, 1 << 10, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22)
ROUND_TRIPS = 24
WARM_UP = 8
NOISE = 0.01


@dataclass(frozen=True)
class Link:
    """alpha: seconds per message; beta: seconds per byte; table: (bytes, median seconds) measured."""

    alpha: float
    beta: float
    table: tuple[tuple[int, float], ...]
    backend: str

    @property
    def bandwidth(self) -> float:
        """Bytes per second, one way."""
        return 1 / self.beta

    def seconds(self, nbytes: float) -> float:
        """The prediction of the two numbers for one message of `nbytes`."""
        return self.alpha + self.beta * nbytes

    def __str__(self) -> str:
        return (
            f"{self.backend}: latency alpha {self.alpha * 1e6:,.0f} microseconds, "
            f"bandwidth 1/beta {self.bandwidth / 1e9:.2f} GB/s"
        )


def measure_link(backend: str | None = None, sizes: Sequence[int] = SIZES) -> Link:
    """Measure alpha and beta between two ranks of this machine; takes about a second.

    backend: as in `launch`. sizes: bytes of the messages. Raises what `launch` raises.
    """
    run = launch(ping_pong, tuple(sizes), world_size=2, backend=backend)
    alpha, beta = fit(run[0])
    return Link(alpha, beta, tuple(run[0]), run.backend)


def ping_pong(sizes: Sequence[int]) -> list[tuple[int, float]]:
    """On two ranks: (bytes, median seconds for one way) for each size, as rank 0 saw it."""
    rank = dist.get_rank()
    measured = []
    for nbytes in sizes:
        ball = torch.zeros(nbytes, dtype=torch.uint8, device=device())
        times = []
        for _ in range(WARM_UP + ROUND_TRIPS):
            began = time.perf_counter()
            if rank == 0:
                dist.send(ball, dst=1)
                dist.recv(ball, src=1)
            else:
                dist.recv(ball, src=0)
                dist.send(ball, dst=0)
            if ball.is_cuda:
                torch.cuda.synchronize()
            times.append((time.perf_counter() - began) / 2)
        measured.append((nbytes, median(times[WARM_UP:])))
    return measured


def fit(table: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """(alpha, beta) with the least sum of squared *relative* errors of alpha + beta * bytes.

    The errors are relative so that the small messages count as much as the large ones. A plain least-squares
    fit would let the noise of the largest message decide the latency. If noise makes alpha or beta negative,
    it becomes a hundredth of the time of the largest (beta) or smallest (alpha) message, and the other
    number is fitted to that.

    table: pairs of bytes and seconds, of at least two different sizes; ValueError otherwise.
    """
    if len({nbytes for nbytes, _ in table}) < 2:
        raise ValueError("alpha and beta need messages of at least two different sizes")
    weights = [1 / seconds**2 for _, seconds in table]
    w = sum(weights)
    wn = sum(weight * n for weight, (n, _) in zip(weights, table, strict=True))
    wt = sum(weight * t for weight, (_, t) in zip(weights, table, strict=True))
    wnn = sum(weight * n * n for weight, (n, _) in zip(weights, table, strict=True))
    wnt = sum(weight * n * t for weight, (n, t) in zip(weights, table, strict=True))
    beta = (w * wnt - wn * wt) / (w * wnn - wn * wn)
    alpha = (wt - beta * wn) / w
    if beta <= 0:  # the same time for all sizes, as far as the noise lets one see
        nbytes, seconds = max(table)
        beta = NOISE * seconds / nbytes
        alpha = (wt - beta * wn) / w
    if alpha <= 0:
        alpha = NOISE * min(table)[1]
        beta = (wnt - alpha * wn) / wnn
    return alpha, beta
