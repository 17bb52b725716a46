"""Emulated wires make an operation as slow as the link it would take on a cluster.

The ranks of a launch share one machine, so a message to a GPU of another node costs as little as one to a
neighbour. With `launch(..., wires=cluster)` an operation lasts `alpha + bytes x beta`, by the link its
members would use. The data still travels as fast as it can, so results, order and deadlocks stay the same.
Only the answer is late. The rank *sleeps* until then, which leaves the machine's cores to the other ranks.

    alpha + bytes x beta   seconds; alpha once per operation, bytes of the busiest member (see `booking`)
    begins                 when the last member has begun it whose part it needs, and when the rank's link has
                           carried what the rank began on it before
    ends                   in `Work.wait`, in a blocking call, in `is_completed` or in a handle's future;
                           `wait(timeout=)` raises gloo's RuntimeError if it would end later

A rank that computes between the beginning and the wait pays only the rest, so communication can be hidden, as
on a GPU. The members learn from the board (`rows`) when each of them was ready, by the clock of the machine
they share.

The model simplifies four things. Links are full duplex and belong to one GPU each, so two ranks of a node do
not share a network card. A collective takes only the outgoing half of a link. Messages from any source begin
when they are received. Making a group costs nothing.

Source of the model: Hockney, "The communication challenge for MPP", Parallel Computing 20 (1994); the same in
`course_lib.facts.costs`.
"""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from course_lib.ledger import rows
from course_lib.ledger.booking import logical_bytes

TICK = 0.2  # seconds after which a sleeping rank shows that it lives: the watcher looks for still ranks
NEEDS_ALL = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier", "send", "recv")
NEEDS_ROOT = ("broadcast", "scatter")  # on the other ranks; the root needs nothing but itself
FREE_OF_CHARGE = ("new_group",)


class TimedOut(RuntimeError):
    """A `wait(timeout=)` ended before its operation was over on the wires, but the data has arrived."""


class Link(Protocol):
    """A kind of link. alpha: seconds per operation; beta: seconds per byte."""

    @property
    def alpha(self) -> float: ...
    @property
    def beta(self) -> float: ...


class Topology(Protocol):
    """A cluster, as far as its wires matter, on which rank r runs on GPU r."""

    @property
    def gpus(self) -> int: ...

    def link(self, ranks: Sequence[int], /) -> Link:
        """The slowest link that an operation of these ranks has to use."""
        ...


def check_wires(wires: object, world_size: int) -> None:
    """TypeError if `wires` is not a cluster, ValueError if it has too few GPUs or impossible links."""
    gpus, link = getattr(wires, "gpus", None), getattr(wires, "link", None)
    if not isinstance(gpus, int) or not callable(link):
        raise TypeError(
            f"wires is a cluster with `gpus` and `link(ranks)`, such as course_lib.planning.Cluster(...); "
            f"{wires!r} is a {type(wires).__name__}."
        )
    if gpus < world_size:
        raise ValueError(
            f"wires= has {gpus} GPUs, but {world_size} ranks need one each: rank r runs on GPU r. Make the "
            f"cluster larger, or launch {gpus} ranks."
        )
    for a in range(world_size):
        for b in range(a + 1, world_size):
            check_link(link((a, b)), a, b)


def check_link(link: object, a: int, b: int) -> None:
    for name, unit in (("alpha", "seconds an operation"), ("beta", "seconds a byte")):
        value = getattr(link, name, None)
        if not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
            raise ValueError(
                f"the link between GPUs {a} and {b} has {name} = {value!r}: {name} is a number of {unit}, "
                "0 or more."
            )


def busiest_bytes(op: str, group: tuple[int, ...], nbytes: float, root: int) -> float:
    """Bytes that the busiest link of a member carries in one direction, in an operation of `nbytes`.

    They are the bytes of `booking.logical_bytes` for the rank that sends most. The root of a gather receives
    as many as the root of a scatter sends. An all-reduce of M bytes carries M on two ranks, and 1.75 M on 8.
    """
    if op in ("send", "recv"):
        return nbytes
    as_sent = "scatter" if op == "gather" else op
    return max(logical_bytes(as_sent, group, rank, nbytes, root) for rank in group)


@dataclass
class Flight:
    """An operation that a rank has begun. key: its place on the board; ready: when this rank's link was free.

    needs: the other members whose parts it needs; root: a global rank, or -1.
    """

    op: str
    group: tuple[int, ...]
    root: int
    key: int
    link: Link
    nbytes: int
    ready: float
    needs: tuple[int, ...]
    due: float | None = None

    def seconds(self, nbytes: float) -> float:
        carried = busiest_bytes(self.op, self.group, nbytes, self.root)
        return self.link.alpha + carried * self.link.beta


@dataclass
class Line:
    """One direction of a rank's link: the spans of time for which it is taken."""

    spans: list[tuple[float, float]] = field(default_factory=list)

    def place(self, begin: float, seconds: float) -> float:
        """Take the first gap of so many seconds, not before `begin`; returns its end."""
        for taken, until in self.spans:
            if begin + seconds <= taken:
                break
            begin = max(begin, until)
        self.spans = sorted([*self.spans, (begin, begin + seconds)])[-256:]
        return begin + seconds


class Wires:
    """The links of one rank: its operations on them, and the time at which each of these is over."""

    def __init__(
        self, topology: Topology, rank: int, board: rows.Board,
        now: Callable[[], float] = time.monotonic,
    ):  # fmt: skip
        self.topology, self.rank, self.board, self.now = topology, rank, board, now
        self.flights: dict[int, Flight] = {}  # by row
        self.links: dict[tuple[int, ...], Link] = {}
        self.free: dict[Link, float] = defaultdict(float)  # when the outgoing half is free again
        self.incoming: dict[Link, Line] = defaultdict(Line)

    def begin(
        self, row: int, op: str, group: tuple[int, ...], peer: int, nbytes: int, key: int
    ) -> float:  # fmt: skip
        """The rank begins an operation. Returns when its part is ready, for the board; 0: immediately."""
        if op in FREE_OF_CHARGE or len(group) < 2:
            return 0.0
        message = op in ("send", "recv")
        link = self.link(tuple(sorted((self.rank, peer))) if message and peer >= 0 else group)
        now = self.now()
        ready = now if op == "recv" else max(now, self.free[link])
        flight = Flight(op, group, peer, key, link, nbytes, ready, self.needs(op, group, peer))
        if op != "recv":
            self.free[link] = ready + flight.seconds(nbytes)
        self.flights[row] = flight
        return ready

    def needs(self, op: str, group: tuple[int, ...], peer: int) -> tuple[int, ...]:
        if op in ("send", "recv"):
            return (peer,) if peer >= 0 else ()
        if op in NEEDS_ALL or (op not in NEEDS_ROOT and peer == self.rank):
            return tuple(member for member in group if member != self.rank)
        return (peer,) if op in NEEDS_ROOT and peer != self.rank else ()

    def link(self, ranks: tuple[int, ...]) -> Link:
        if ranks not in self.links:
            self.links[ranks] = self.topology.link(ranks)
        return self.links[ranks]

    def due(self, row: int) -> float:
        """When the operation is over, on the monotonic clock. Call it once the data has arrived.

        Until then, some members might not have said when they were ready.
        """
        flight = self.flights.get(row)
        if flight is None:
            return 0.0
        if flight.due is None:
            flight.due = self.arrival(flight)
        return flight.due

    def arrival(self, flight: Flight) -> float:
        posted = [self.board.ready(member, flight.key) for member in flight.needs]
        known = [entry for entry in posted if entry is not None]
        begin = max([flight.ready, *(ready for ready, _ in known)])
        seconds = flight.seconds(max([flight.nbytes, *(nbytes for _, nbytes in known)]))
        if flight.op == "recv":
            if flight.root < 0:
                begin = self.now()
            return self.incoming[flight.link].place(begin, seconds)
        self.free[flight.link] = max(self.free[flight.link], begin + seconds)
        return begin + seconds

    def land(self, row: int) -> float:
        """Returns `due` and forgets the operation, so that a second wait costs nothing."""
        due = self.due(row)
        self.flights.pop(row, None)
        return due

    def later(self, row: int, future: torch.futures.Future) -> torch.futures.Future:
        """A future with the same value, set by a thread that sleeps."""
        delayed = torch.futures.Future()

        def finish(done: torch.futures.Future) -> None:
            try:
                delayed.set_result(done.value())
            except Exception as error:
                delayed.set_exception(error)

        def come(done: torch.futures.Future) -> None:
            timer = threading.Timer(max(0.0, self.land(row) - self.now()), finish, [done])
            timer.daemon = True
            timer.start()

        future.add_done_callback(come)
        return delayed

    def sleep_until(self, moment: float, alive: Callable[[], None]) -> None:
        """Sleep, and call `alive` from time to time, since a rank that sleeps is not in a deadlock."""
        while (left := moment - self.now()) > 0:
            time.sleep(min(left, TICK))
            alive()
