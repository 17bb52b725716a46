"""Moments: on the host's clock, on a GPU's stream, and on the clocks of several machines made one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import torch
import torch.distributed as dist

from .shared import Group

Reading: TypeAlias = tuple[float, float]  # a rank's clock just before a barrier, and just after it

BARRIERS = 8  # readings of a clock: each may only narrow what another one leaves open


class Clock(Protocol):
    """Something that marks moments, and afterwards says when they were."""

    def mark(self) -> Any: ...

    def seconds(self, mark: Any) -> float:
        """Of a mark, on this machine's `time.perf_counter`."""
        ...


class HostClock:
    """A moment is when the program gets there; processes of one machine share this clock."""

    def mark(self) -> float:
        return time.perf_counter()

    def seconds(self, mark: float) -> float:
        return mark


class StreamClock:
    """A moment is when the GPU's current stream gets there.

    Marks are CUDA events, which change nothing in what is measured. To synchronize at each mark would: the
    program could no longer run ahead of the GPU, and a receive that was posted for later would be waited
    for, by a rank that has yet to do what its peer waits for.
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
    """The clock of what runs on this device."""
    return StreamClock(device) if device.type == "cuda" else HostClock()


def readings(group: Group = None) -> list[Reading]:
    """This rank's clock around a few barriers, for `ahead`. All ranks of the group must call."""
    found = []
    for _ in range(BARRIERS):
        before = time.perf_counter()
        dist.barrier(group)
        found.append((before, time.perf_counter()))
    return found


def ahead(mine: Sequence[Reading], reference: Sequence[Reading]) -> float:
    """By how many seconds a clock is ahead of the reference.

    Nobody leaves a barrier before all have entered it, so that of each barrier there was a moment between
    the two readings of both: the clocks cannot be further apart than that. Every barrier gives bounds; the
    answer is the middle of what they leave, or 0 where they leave that: processes of one machine share a
    clock, and what does not tell two clocks apart must not move what they say.
    """
    pairs = list(zip(mine, reference, strict=True))
    least = max(before - after for (before, _), (_, after) in pairs)
    most = min(after - before for (_, after), (before, _) in pairs)
    return 0.0 if least <= 0 <= most else (least + most) / 2
