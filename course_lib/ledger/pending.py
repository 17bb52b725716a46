"""Operations that run on a GPU's stream while the host has gone on, or waits somewhere else.

With NCCL, `wait()` only tells the stream to wait. The host hangs later, in `.item()` or
`torch.cuda.synchronize()`, far from the operation that never ends. So each wait leaves an event on the
stream behind it. A thread asks whether the events have passed, and books when they did. To explain a hang,
look for the oldest operation for which a stream waits and that is not booked. The thread itself can be held
up as well, because a kernel that is loaded at its first use waits for the stream while the driver is locked.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.distributed import Work

EVERY = 0.02  # seconds between two looks


class Mark(Protocol):
    """A place on a stream, behind an operation."""

    def passed(self) -> bool: ...

    def moment(self) -> float:
        """When the stream passed it, by `time.monotonic`. Call it only afterwards."""
        ...


class EventMark:
    """A CUDA event on the current stream. It holds no tensor, and its time is exact to the microsecond."""

    def __init__(self, clock: DeviceClock):
        self.clock, self.event = clock, torch.cuda.Event(enable_timing=True)
        self.event.record(torch.cuda.current_stream())

    def passed(self) -> bool:
        return self.event.query()

    def moment(self) -> float:
        return self.clock.began + self.clock.base.elapsed_time(self.event) / 1e3


class WorkMark:
    """The operation's own handle, for an operation that no stream of ours waits for (DDP's futures)."""

    def __init__(self, work: Work):
        self.work = work

    def passed(self) -> bool:
        return self.work.is_completed()

    def moment(self) -> float:
        return time.monotonic()


class DeviceClock:
    """The time of the host, `time.monotonic`, at which the GPU passed one event, on a stream of its own."""

    def __init__(self) -> None:
        self.base = torch.cuda.Event(enable_timing=True)
        self.base.record(torch.cuda.Stream())
        self.base.synchronize()
        self.began = time.monotonic()


@dataclass
class Open:
    row: int
    mark: Mark  # behind the operation
    before: Mark | None  # the place of the stream when it began to wait


class Pending:
    """The operations of one rank for which the host has waited, but which the stream has not finished."""

    def __init__(self, completed: Callable[[int, float, float], None]):
        """completed: gets an operation's row, the moment of its end, and seconds of waiting on the stream."""
        self.completed = completed
        self.open: deque[Open] = deque()
        self.lock = threading.Lock()
        self.thread: threading.Thread | None = None
        self.clock: DeviceClock | None = None

    def mark(self, work: Work | None = None) -> Mark:
        """The point the current stream has reached; with `work`, the end of that operation."""
        if work is not None:
            return WorkMark(work)
        if self.clock is None:
            self.clock = DeviceClock()
        return EventMark(self.clock)

    def add(self, row: int, before: Mark | None, work: Work | None = None) -> None:
        """The current stream waits for this operation now, and did not yet wait at `before`.

        With `work`, no stream of this program waits, but other code can ask for the handle's future.
        """
        self.open.append(Open(row, self.mark(work), before))
        if self.thread is None:  # started here, since a process with threads must not be forked
            self.thread = threading.Thread(
                target=self.look, args=(current_gpu(),), name="course-pending", daemon=True
            )
            self.thread.start()

    def look(self, gpu: int | None) -> None:
        if gpu is not None:
            torch.cuda.set_device(gpu)  # a thread begins on GPU 0, and would take memory there
        while True:
            self.drain()
            time.sleep(EVERY)

    def drain(self) -> None:
        """Book every operation that has ended by now. Called once more at the end of a task."""
        with self.lock:
            while self.open and self.ended(self.open[0]):
                self.open.popleft()

    def ended(self, entry: Open) -> bool:
        try:
            if not entry.mark.passed():
                return False
            moment = entry.mark.moment()
            blocked = moment - entry.before.moment() if entry.before else 0.0
        except RuntimeError:  # the GPU failed: the host's next call raises the reason
            moment, blocked = time.monotonic(), 0.0
        self.completed(entry.row, moment, max(0.0, blocked))
        return True

    def clear(self) -> None:
        """Forget a task's operations, because the rows of the next task have the same numbers."""
        with self.lock:
            self.open.clear()


def current_gpu() -> int | None:
    return torch.cuda.current_device() if torch.cuda.is_initialized() else None
