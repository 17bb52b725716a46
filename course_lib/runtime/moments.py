"""At a named moment a rank waits until another process has measured its memory.

In the rank, `reach` reports the moment to the watching process, and waits. There, `Moments` has the rank
measured (see `held`) by the process next to it: its sandbox's init, or the watching process itself. No count
from inside the rank is believed, except on a GPU. Since the driver does not report to other processes, the
rank reports the bytes its allocator gave out.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from course_lib.runtime import wire
from course_lib.runtime.held import Held

if TYPE_CHECKING:
    from course_lib.runtime.pools import Pool

GO = b"."
START = "start"  # before a student's objects are read: no base counts for much more than this
BASE = (
    "base"  # the moment above which the others count; of "run.pages.forward" it is "run.pages.base"
)
ANONYMOUS = "anonymous"  # moments of this name are about memory without any file
HIGHEST = "highest"
REPLY = "reply"  # when the rank's answer came: not asked for by the rank
REPEATED = (HIGHEST, ANONYMOUS)  # others come once
LETTING_GO = 1.0  # seconds to wait for a thread that is late to let go of its tensors
OF_LIBRARIES = (
    6_000_000  # bytes of their files that come into memory at their first use, after the start
)
PAUSE = 0.005  # seconds between two measurements, in which other threads run
PAUSES = 20  # at least, however long a measurement takes
MOST = 10_000  # moments of a task
PAGES = ".pages."
LONGEST = 4096  # bytes of a rank's report


NOTHING = Held(0, 0)


class Progress(NamedTuple):
    """How far a rank is at a moment, from outside.

    rows: operations it had begun, according to its board; sent: bytes carried by the network of all ranks
    since the rank's START, None if their number is not known.
    """

    rows: int
    sent: int | None


# ---- in a rank


_dumps, _channel = json.dumps, list[socket.socket]()


def measured_over(sock: socket.socket) -> None:
    """From now on this process reports its moments there."""
    _channel[:] = [sock]


def reach(*names: str, on_gpu: int | None = None) -> None:
    """Wait here until this process was measured, under each of these names.

    on_gpu: bytes it holds on its GPU, if these bytes count.
    """
    (sock,) = _channel
    sock.send(_dumps([names, on_gpu]).encode())
    if sock.recv(len(GO)) != GO:
        raise ConnectionError("the process that measures no longer exists")


# ---- in the process that watches


@dataclass
class Waiting:
    """A rank that waits, and the least that was measured so far."""

    names: tuple[str, ...]
    since: float
    least: Held | None = None
    rise: int = 0
    times: int = 0
    again: float = math.inf  # when it is to be measured once more
    replied: bool = False  # the rank has answered, and waits for nothing


@dataclass
class Moments:
    """The memory of a task's ranks at their moments, and by how much it rose between them.

    known: the names of the moments of this task; None: any. A moment that does not come from the recipe would
    restart the count.
    enough: for each rank, bytes above its base that are enough, by the names of moments. If it holds more, it
    is measured again for a while, since gloo's threads let go of a message's tensors a moment after the wait
    for it is over, and on a busy machine that moment is long. Memory kept by a solution is still held
    then. Once this was in vain, it is not tried again under that name, and only for PAUSES under another.
    room: bytes that libraries and objects may take between START and a base. Memory that a student's code
    took by then can be given back later, so a base that counted it would hide as much.
    """

    pool: Pool
    enough: Sequence[Mapping[str, float]] = ()
    known: Collection[str] | None = None
    room: int = 0
    readings: list[dict[str, list[Held]]] = field(default_factory=list)
    rises: list[dict[str, list[int]]] = field(default_factory=list)
    progress: list[dict[str, list[Progress]]] = field(default_factory=list)
    sent: dict[int, int] = field(default_factory=dict)  # by the network, at each rank's START
    files: list[int] = field(default_factory=list)
    last: dict[int, Held] = field(default_factory=dict)  # the last measurement of each rank
    waiting: dict[int, Waiting] = field(default_factory=dict)
    in_vain: set[tuple[int, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.files = [self.held_for(rank) for rank in range(self.pool.world_size)]
        self.readings = [{} for _ in range(self.pool.world_size)]
        self.rises = [{} for _ in range(self.pool.world_size)]
        self.progress = [{} for _ in range(self.pool.world_size)]
        self.pool.children.measured.clear()

    def read(self, rank: int) -> None:
        """A rank is at a moment. EOFError if it has ended, WireError if `reach` did not send the message."""
        data = self.pool.moments[rank].recv(LONGEST)
        if not data:
            raise EOFError
        try:
            names, on_gpu = json.loads(data)
            as_agreed = isinstance(names, list) and all(isinstance(name, str) for name in names)
        except (ValueError, TypeError, RecursionError):
            as_agreed = False
        if not as_agreed or rank in self.waiting:
            raise wire.WireError("its report of its memory does not have the agreed form")
        if self.known is not None and not all(self.is_due(rank, name) for name in names):
            raise wire.WireError("it asked to be measured where the check does not measure")
        if sum(len(some) for some in self.readings[rank].values()) + len(names) > MOST:
            raise wire.WireError(f"it asked to be measured more than {MOST:,} times")
        waiting = self.waiting[rank] = Waiting(tuple(names), time.monotonic())
        if self.pool.backend == "nccl" and type(on_gpu) is int:
            waiting.least = Held(on_gpu, on_gpu)
            self.go_on(rank)
        else:
            self.pool.children.measure(rank)

    def replied(self, rank: int) -> None:
        """A rank has answered. Measure it once more, since its own code might have run since a moment.

        On a GPU nothing is measured from outside, so nothing happens here.
        """
        if self.known and rank not in self.waiting and self.pool.backend != "nccl":
            self.waiting[rank] = Waiting((REPLY,), time.monotonic(), replied=True)
            self.pool.children.measure(rank)

    def ended(self, rank: int) -> None:
        """A rank has ended, so it is no longer measured."""
        self.waiting.pop(rank, None)

    def is_due(self, rank: int, name: str) -> bool:
        again = name in self.readings[rank] and name not in REPEATED
        return self.known is not None and name in self.known and not again

    def step(self) -> None:
        """Take in the measurements since the last step."""
        now = time.monotonic()
        for rank, waiting in list(self.waiting.items()):
            measured = self.pool.children.measured.pop(rank, None)
            if measured is not None:
                for_it = self.held_for(rank) - self.files[rank]
                measured = measured._replace(whole=measured.whole + for_it)
                before, self.last[rank] = self.last.get(rank), measured
                if waiting.least is None and before is not None and before.fresh:
                    waiting.rise = max(0, measured.peak - self.at_most(rank, before).resident)
                waiting.least = (
                    measured if waiting.least is None else Held(*map(min, waiting.least, measured))
                )
                waiting.times += 1
                patience = 0.0 if any(of == rank for of, _ in self.in_vain) else LETTING_GO
                over = now - waiting.since > patience and waiting.times > PAUSES
                if self.is_enough(rank, waiting) or over:
                    if over:
                        self.in_vain |= {(rank, name) for name in waiting.names}
                    self.go_on(rank)
                else:
                    waiting.again = now + PAUSE
            elif waiting.replied and now - waiting.since > LETTING_GO:
                self.ended(rank)  # it did not come to a stop
            elif now >= waiting.again:
                waiting.again = math.inf
                self.pool.children.measure(rank)

    def held_for(self, rank: int) -> int:
        """Bytes of files in memory that this process made for the rank, which can let them grow."""
        own = (*self.pool.logs[rank], self.pool.stacks[rank])
        return sum(512 * os.fstat(fd).st_blocks for fd in own)

    def is_enough(self, rank: int, waiting: Waiting) -> bool:
        bounds = self.enough[rank] if self.enough else {}
        return all(
            (rank, name) in self.in_vain
            or self.above(rank, name, waiting.least) <= bounds.get(name, math.inf)
            for name in waiting.names
        )

    def above(self, rank: int, name: str, held: Held | None) -> int:
        """Bytes above the base, of the kind the name is about."""
        before, pages, _ = name.rpartition(PAGES)
        (base,) = self.readings[rank].get(f"{before}{pages}{BASE}", [NOTHING])[:1]
        kind = "anonymous" if name == ANONYMOUS else "whole"
        return getattr(held, kind) - getattr(self.at_most(rank, base), kind)

    def at_most(self, rank: int, base: Held) -> Held:
        """The part of a base that counts, which is at most START and the room above it."""
        if self.pool.backend == "nccl" or START not in self.readings[rank]:
            return base  # libraries take as much of a GPU as they like
        (start,) = self.readings[rank][START]
        return base._replace(
            whole=min(base.whole, start.whole + self.room),
            anonymous=min(base.anonymous, start.anonymous + self.room),
            resident=min(base.resident, start.resident + self.room + OF_LIBRARIES),
        )

    def go_on(self, rank: int) -> None:
        waiting, progress = self.waiting.pop(rank), self.look(rank)
        for name in waiting.names:
            self.readings[rank].setdefault(name, []).append(waiting.least or NOTHING)
            self.rises[rank].setdefault(name, []).append(waiting.rise)
            self.progress[rank].setdefault(name, []).append(progress)
        if not waiting.replied:
            with contextlib.suppress(OSError):  # it was ended meanwhile
                self.pool.moments[rank].send(GO)

    def look(self, rank: int) -> Progress:
        """The rank's progress now, in operations and in bytes sent on the network."""
        sent = self.pool.children.sent.get(rank)
        if sent is not None:
            sent -= self.sent.setdefault(rank, sent)
        return Progress(self.pool.board.read(rank).rows, sent)

    def above_base(self) -> list[dict[str, list[int]]]:
        """For each rank the bytes above its base, by the names of moments, in their order."""
        return [
            {
                name: [self.above(rank, name, held) for held in some]
                for name, some in of_rank.items()
            }
            for rank, of_rank in enumerate(self.readings)
        ]
