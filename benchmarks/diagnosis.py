"""How long a deadlock takes to be named, and the next call to work."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist

from benchmarks.table import Row
from course_lib import Deadlock, launch


def circle() -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    dist.recv(torch.empty(4), (rank - 1) % n)
    dist.send(torch.empty(4), (rank + 1) % n)


def rows() -> Iterator[Row]:
    launch(dist.get_rank, world_size=3)
    named, after = [], []
    for _ in range(5):
        began = time.perf_counter()
        try:
            launch(circle, world_size=3)
            raise RuntimeError("the deadlock was not found")
        except Deadlock:
            named.append(time.perf_counter() - began)
        began = time.perf_counter()
        launch(dist.get_rank, world_size=3)
        after.append(time.perf_counter() - began)
    yield Row(
        "three-rank circular wait until `Deadlock`", "PyTorch's time-out: 1,800 s by default",
        statistics.median(named), 5, "s",
    )  # fmt: skip
    yield Row("the next `launch` after it", "", statistics.median(after), 1, "s")
