"""Notebooks 00 and 02: a call that returns before its work is done, and the cost of messages between GPUs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from course_lib.gpu.clock import seconds, wait
from course_lib.gpu.experiment import Experiment, Row
from course_lib.runtime.backend import device


def call_and_work(width: int) -> list[Row]:
    """When the call of a product returns, and when the product is ready."""
    a = torch.randn(width, width, device=device())
    for _ in range(3):  # the first calls load what they need
        product = a @ a
    wait()
    began = time.perf_counter()
    product = a @ a
    returned = time.perf_counter() - began
    wait()
    done = time.perf_counter() - began
    began = time.perf_counter()
    product = a @ a
    product[0, 0].item()  # gives the host a number, so it has to wait
    return [
        Row("the call returns after", returned, "s"),
        Row("the product is ready after", done, "s"),
        Row("a call, and .item() of its result", time.perf_counter() - began, "s"),
    ]


def ping_pong(sizes: list[int], repeats: int) -> list[Row]:
    """The time of one way for messages from rank 0 to rank 1 and back."""
    rank, rows = dist.get_rank(), []
    for nbytes in sizes:
        ball = torch.zeros(nbytes, dtype=torch.uint8, device=device())

        def there_and_back(ball: torch.Tensor = ball) -> None:
            for turn in (0, 1):
                if rank == turn:
                    dist.send(ball, dst=1 - turn)
                elif rank == 1 - turn:
                    dist.recv(ball, src=turn)

        one_way = seconds(there_and_back, repeats) / 2
        rows.append(Row(f"{nbytes:>11,} bytes, one way", one_way, "s", {"bytes": nbytes}))
    return rows


def all_reduces(
    sizes: list[int], repeats: int, yours: Callable[[torch.Tensor], Any] | None = None
) -> list[Row]:
    """NCCL's all-reduce by its size, and yours on the same tensors, if you pass it."""
    rows, n = [], dist.get_world_size()
    algorithms = {"all-reduce": dist.all_reduce} | ({"yours": yours} if yours else {})
    for name, algorithm in algorithms.items():
        for nbytes in sizes:
            x = torch.zeros(nbytes // 4, device=device())
            taken = seconds(lambda x=x, algorithm=algorithm: algorithm(x), repeats)
            of = {"bytes": nbytes, "name": name, "ranks": n}
            rows.append(Row(f"{name}, {nbytes:>11,} bytes", taken, "s", of))
    return rows


CALL_AND_WORK = Experiment(
    "call and work", "A call and its work", 1, call_and_work, {"width": 8192}, {"width": 64}
)
PING_PONG = Experiment(
    "ping-pong", "A message between two GPUs", 2, ping_pong,
    {"sizes": [4, 1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 28], "repeats": 20},
    {"sizes": [4, 1 << 12], "repeats": 2},
)  # fmt: skip
ALL_REDUCES = Experiment(
    "all-reduce", "All-reduce by its size", 2, all_reduces,
    {"sizes": [1 << k for k in range(12, 31, 3)], "repeats": 10},
    {"sizes": [1 << 12, 1 << 15], "repeats": 2},
)  # fmt: skip
