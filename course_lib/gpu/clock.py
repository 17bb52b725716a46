"""The clock of the experiments."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from course_lib.runtime.backend import device


def seconds(
    function: Callable[[], object],
    repeats: int = 5,
    together: bool = True,
    before: Callable[[], object] | None = None,
) -> float:
    """Seconds of the fastest of some runs, after one run that warms up.

    The clock is read when the GPU has done its work. together: the ranks begin each run at the same time, and
    the slowest rank's time counts. before: called ahead of each run, outside its time, such as `zero_grad`.
    """
    several = together and dist.get_world_size() > 1
    fastest = float("inf")
    for repeat in range(repeats + 1):
        if before:
            before()
        if several:
            dist.barrier()
        began = now()
        function()
        taken = torch.tensor(now() - began, device=device())
        if several:
            dist.all_reduce(taken, dist.ReduceOp.MAX)
        if repeat:
            fastest = min(fastest, taken.item())
    return fastest


def now() -> float:
    """Seconds, read when the GPU has done the work of all its streams."""
    wait()
    return time.perf_counter()


def wait() -> None:
    """Wait until the GPU has done the work of all its streams."""
    if device().type == "cuda":
        torch.cuda.synchronize()


def half() -> torch.dtype:
    """The 16-bit format of this device's tensor cores, which is bf16, or fp16 on a T4 or a V100."""
    old = device().type == "cuda" and torch.cuda.get_device_capability() < (8, 0)
    return torch.float16 if old else torch.bfloat16


def peak_bytes() -> int | None:
    """The most bytes of tensors at one time since `forget_peak()`; None on the CPU, which does not count."""
    return torch.cuda.max_memory_allocated() if device().type == "cuda" else None


def allocated_bytes() -> int | None:
    """The bytes of tensors at this moment."""
    return torch.cuda.memory_allocated() if device().type == "cuda" else None


def reserved_bytes() -> int | None:
    """The most bytes PyTorch's allocator had taken from the GPU in that time."""
    return torch.cuda.max_memory_reserved() if device().type == "cuda" else None


def forget_peak() -> None:
    """Count from here on, after freeing tensors to which no name refers any more."""
    gc.collect()
    if device().type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
