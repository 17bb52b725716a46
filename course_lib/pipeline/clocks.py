"""Times of moments, on the host's clock, on a GPU's stream, and on the aligned clocks of several machines."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import torch
import torch.distributed as dist

from .shared import Group

Reading: TypeAlias = tuple[float, float]  # a rank's clock just before a barrier, and just after it

BARRIERS = 8  # readings of a clock, each of which can only narrow the bounds


class Clock(Protocol):
    """A clock marks moments, and says afterwards when they were."""

    def mark(self) -> Any: ...

    def seconds(self, mark: Any) -> float:
        """The time of a mark, on this machine's `time.perf_counter`."""
        ...


class HostClock:
    """A mark's time is when the program reaches it; processes of one machine share this clock."""

    def mark(self) -> float:
        return time.perf_counter()

    def seconds(self, mark: float) -> float:
        return mark


class StreamClock:
    """A mark's time is when the GPU's current stream reaches it.

    Marks are CUDA events, which do not change the measured run. To synchronize at each mark would change it,
    because the program could no longer run ahead of the GPU. Moreover, a rank would wait for a receive it had
    posted for later, although its peer still waits for this rank.
    """

    def __init__(self, device: torch.device):
        self.device = device
        torch.cuda.synchronize(device)
        self.base = self.mark()
        self.began = time.perf_counter()

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event

    def seconds(self, mark: torch.cuda.Event) -> float:
        mark.synchronize()
        return self.began + self.base.elapsed_time(mark) / 1e3


def clock_of(device: torch.device) -> Clock:
    """The clock for computations on this device."""
    return StreamClock(device) if device.type == "cuda" else HostClock()


def readings(group: Group = None) -> list[Reading]:
    """This rank's clock around a few barriers, for `ahead`. All ranks of the group must call it."""
    moments = []
    for _ in range(BARRIERS):
        before = time.perf_counter()
        dist.barrier(group)
        moments.append((before, time.perf_counter()))
    return moments


def ahead(mine: Sequence[Reading], reference: Sequence[Reading]) -> float:
    """By how many seconds a clock is ahead of the reference.

    No rank leaves a barrier before all have entered it. So for each barrier there was a moment between the
    two readings on either clock, and the clocks cannot be further apart than these readings. Every barrier
    gives bounds. The answer is the middle of the interval left by them, or 0 if the interval contains 0,
    because processes of one machine share a clock, and readings that cannot tell two clocks apart must not
    shift the times.
    """
    pairs = list(zip(mine, reference, strict=True))
    least = max(before - after for (before, _), (_, after) in pairs)
    most = min(after - before for (_, after), (before, _) in pairs)
    return 0.0 if least <= 0 <= most else (least + most) / 2
