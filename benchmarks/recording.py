"""The costs of the ledger and the recorder."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist

from benchmarks.table import Row
from course_lib import launch
from course_lib.collectives import ring_all_reduce

SIZES = {"16 MB": (4 << 20, 12, 1.1), "1 KB": (256, 400, 2.2)}


def seconds(numel: int, repeats: int) -> list[float]:
    tensor, times = torch.ones(numel), []
    for _ in range(repeats + 3):
        dist.barrier()
        began = time.perf_counter()
        ring_all_reduce(tensor)
        times.append(time.perf_counter() - began)
        tensor.fill_(1)
    return times[3:]


def rows() -> Iterator[Row]:
    for name, (numel, repeats, reach) in SIZES.items():
        medians: dict[str, list[float]] = {"on": [], "off": []}
        for _ in range(7):  # interleaved, so that the machine's other work falls on both
            for setting in medians:
                os.environ["COURSE_LEDGER"] = setting
                medians[setting].append(
                    statistics.median(launch(seconds, numel, repeats, world_size=2)[0])
                )
        os.environ.pop("COURSE_LEDGER")
        on, off = statistics.median(medians["on"]), statistics.median(medians["off"])
        yield Row(
            f"the ledger's cost on `ring_all_reduce`, {name}, 2 ranks", "ledger and recorder off",
            on / off, reach, detail=f"{on * 1e3:.2f} ms, {off * 1e3:.2f} ms",
        )  # fmt: skip
