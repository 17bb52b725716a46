"""Notebook 12: how long a save stops the run, for a copy in memory or all the way to the disk."""

from __future__ import annotations

import os
import tempfile

import torch

from course_lib.gpu.clock import seconds
from course_lib.gpu.experiment import Experiment, Row
from course_lib.runtime.backend import device


def saves(nbytes: int, repeats: int) -> list[Row]:
    """A state on the GPU: copied into pinned memory, into pageable memory, and written to a file with fsync.

    An asynchronous save stops the run only for the copy, whereas any other save stops it for the file.
    """
    on_gpu = torch.zeros(nbytes, dtype=torch.uint8, device=device())
    pageable = torch.zeros(nbytes, dtype=torch.uint8)
    pinned = pageable.pin_memory() if device().type == "cuda" else pageable.clone()

    def to_a_file() -> None:
        pageable.copy_(on_gpu)
        with tempfile.TemporaryFile() as file:
            pageable.numpy().tofile(file)
            os.fsync(file.fileno())

    ways = {
        "a copy, pinned": lambda: pinned.copy_(on_gpu, non_blocking=True),
        "a copy, pageable": lambda: pageable.copy_(on_gpu),
        "a file, synced": to_a_file,
    }
    return [
        Row(
            f"{nbytes / 1e9:.1f} GB, {way}",
            seconds(save, repeats),
            "s",
            {"way": way, "bytes": nbytes},
        )
        for way, save in ways.items()
    ]


SAVES = Experiment(
    "saves", "For how long a save stops the run", 1, saves,
    {"nbytes": 2 << 30, "repeats": 3}, {"nbytes": 1 << 12, "repeats": 1},
)  # fmt: skip
