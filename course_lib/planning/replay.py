"""A recorded run is repeated on a modelled cluster: the same operations, on other wires.

    replay(ledger, cluster)       every rank of the ledger on a GPU of the cluster
    scaled(ledger, sizes, ...)    one rank for each stage, with the groups and the bytes of a larger mesh
    pipeline_seconds(...)         a stage's seconds on the clock of a schedule, for 64 stages and more

A rank goes through its record in order. Between two operations it computes as long as in the record, times
`compute`. An operation lasts alpha + bytes x beta on its group's link, which is how long `ledger.wires` lets
it sleep. This counts alpha once, and the bytes of its busiest member. It begins when the last member has
arrived and this rank's link is free, and the rank stops where its program waited. Receives take the link's
other direction. Because the record separates waiting from computing, hidden communication stays hidden as far
as the new times allow.

Ranks of tp, dp and cp do the same, so by symmetry one rank of each stage stands for all of them. It finds its
groups complete as soon as it arrives. So 1,024 GPUs cost only as much as the stages.

Simplified in the same way as the wires: each GPU has a card, there is no contention between groups, and no
straggler. Cost: 10 us per operation. Source of alpha and beta: Hockney, 1994 (see wires.py).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

from course_lib.facts.transformer import Shape
from course_lib.ledger.operation import Operation
from course_lib.ledger.record import Record
from course_lib.ledger.wires import Line, Topology, busiest_bytes
from course_lib.pipeline.generators import interleaved_one_f_one_b, one_f_one_b
from course_lib.pipeline.simulate import Durations, simulate
from course_lib.planning.layout import Layout
from course_lib.planning.roofline import Work, head_seconds, layer_seconds
from course_lib.planning.step_time import (
    ALL_REDUCES,
    all_reduce_seconds,
    context_seconds,
    message_seconds,
    step_parts,
)
from course_lib.planning.topology import Cluster

FREE = ("new_group",)
LEAVES_AT_ONCE = ("broadcast", "scatter")  # for the root; a gather or reduce for all others


class Moment(NamedTuple):
    """A moment of a program: an operation begins, or is waited for, after so many seconds of compute."""

    operation: Operation
    waits: bool
    compute: float


@dataclass
class Part:
    """One rank's part of an operation, on the new clock."""

    ready: float
    due: float | None = None


@dataclass
class Replay:
    """The times of a repeated run. ends: when each rank's operations were over, by their index."""

    total: float
    ends: list[dict[int, float]]
    record: Record

    def spans(self, op: str = "barrier") -> list[float]:
        """Seconds from each call of a collective to the next, on the rank that takes longest."""
        calls = [
            [ends[operation.index] for operation in self.record.operations(rank, op)]
            for rank, ends in enumerate(self.ends)
        ]
        return [
            max(later - earlier for earlier, later in each)
            for each in zip(*(pairwise(times) for times in calls), strict=True)
        ]


def replay(record: Record, cluster: Topology, compute: float = 1.0) -> Replay:
    """Repeat a run on the wires of `cluster`, where computing takes `compute` times as long.

    record: from a run without wires, such as `launch(...).ledger`; rank r gets GPU r. ValueError if the
    cluster has too few GPUs, or if the recorded run did not end.
    """
    if cluster.gpus < record.world_size:
        raise ValueError(
            f"{record.world_size} ranks need a GPU each, and the cluster has {cluster.gpus}"
        )
    if record.unmatched():
        lonely = record.unmatched()[0]
        raise ValueError(
            f"rank {lonely.rank}'s {lonely.op} has no partner: take the ledger of a run that ended"
        )
    return Rerun(record, cluster, compute).run()


def moments(operations: Iterable[Operation], compute: float) -> list[Moment]:
    """A rank's program: beginnings and waits by their time, with the seconds of compute before each."""
    events: list[tuple[float, float, Operation, bool]] = []
    for operation in operations:
        events.append((operation.issued, operation.issued, operation, False))
        if operation.waited:
            end = operation.issued + operation.blocked
            if operation.waited_at is not None:
                end = operation.waited_at
            events.append((max(operation.issued, end - operation.blocked), end, operation, True))
    program, before = [], None
    for start, end, operation, waits in sorted(events, key=lambda event: (event[0], event[3])):
        gap = 0.0 if before is None else max(0.0, start - before)
        program.append(Moment(operation, waits, gap * compute))
        before = end if before is None else max(before, end)
    return program


@dataclass
class Rerun:
    """The clock of every rank; `partners` are the parts of other ranks that an operation needs."""

    record: Record
    cluster: Topology
    compute: float
    present: tuple[int, ...] | None = None  # ranks of the record that take part; None: all
    parts: dict[tuple[int, int], Part] = field(default_factory=dict)

    def __post_init__(self) -> None:
        n = self.record.world_size
        self.ranks = tuple(range(n)) if self.present is None else self.present
        self.now = dict.fromkeys(self.ranks, 0.0)
        self.free: dict[tuple[int, object], float] = defaultdict(float)
        self.incoming: dict[tuple[int, object], Line] = defaultdict(Line)
        self.partners = partners(self.record)
        self.ends: list[dict[int, float]] = [{} for _ in range(n)]

    def run(self) -> Replay:
        programs = {
            rank: moments(self.record.operations(rank), self.compute) for rank in self.ranks
        }
        place, left = dict.fromkeys(self.ranks, 0), set(self.ranks)
        while left:
            moved = False
            for rank in sorted(left):
                begun = place[rank]
                while place[rank] < len(programs[rank]) and self.step(
                    rank, programs[rank][place[rank]]
                ):
                    place[rank] += 1
                moved |= place[rank] > begun
                if place[rank] == len(programs[rank]):
                    left.discard(rank)
            if left and not moved:
                raise ValueError(
                    f"ranks {sorted(left)} wait for operations that the record does not have: take the "
                    "ledger of a run that ended"
                )
        return Replay(max(self.now.values(), default=0.0), self.ends, self.record)

    def step(self, rank: int, moment: Moment) -> bool:
        """Do the next moment of a rank's program, if the ranks it waits for have arrived."""
        operation = moment.operation
        if not moment.waits:
            self.now[rank] += moment.compute
            self.begin(rank, operation)
            return True
        if operation.op in FREE or len(operation.group) < 2:
            self.now[rank] += moment.compute
            return True
        due = self.due(operation)
        if due is None:
            return False
        self.now[rank] = max(self.now[rank] + moment.compute, due)
        self.ends[rank][operation.index] = due
        return True

    def begin(self, rank: int, operation: Operation) -> None:
        if operation.op in FREE or len(operation.group) < 2:
            return
        link = self.link(operation)
        ready = self.now[rank]
        if operation.op != "recv":
            ready = max(ready, self.free[rank, link])
            self.free[rank, link] = ready + self.seconds(operation, operation.nbytes)
        self.parts[rank, operation.index] = Part(ready)

    def due(self, operation: Operation) -> float | None:
        """When the operation is over for its rank; None if a part it needs is missing."""
        rank, part = operation.rank, self.parts[operation.rank, operation.index]
        if part.due is not None:
            return part.due
        others = [o for o in self.partners[rank, operation.index] if o.rank in self.now]
        if operation.op == "send":  # it ends without its receiver, which can come later
            others = [o for o in others if self.come(o, self.now[rank])]
        if any((other.rank, other.index) not in self.parts for other in others):
            return None
        known = [self.parts[other.rank, other.index].ready for other in others]
        nbytes = max([operation.nbytes, *(other.nbytes for other in others)])
        begin, link = max([part.ready, *known]), self.link(operation)
        seconds = self.seconds(operation, nbytes)
        if operation.op == "recv":
            part.due = self.incoming[rank, link].place(begin, seconds)
        else:
            part.due = begin + seconds
            self.free[rank, link] = max(self.free[rank, link], part.due)
        return part.due

    def come(self, operation: Operation, moment: float) -> bool:
        """Whether a rank has begun its part by this time."""
        part = self.parts.get((operation.rank, operation.index))
        return part is not None and part.ready <= moment

    def link(self, operation: Operation) -> object:
        message = operation.op in ("send", "recv") and operation.peer is not None
        ends = (operation.rank, operation.peer) if message else operation.group
        return self.cluster.link(tuple(sorted(ends)))  # type: ignore[type-var]

    def seconds(self, operation: Operation, nbytes: float) -> float:
        link = self.link(operation)
        root = -1 if operation.peer is None else operation.peer
        carried = busiest_bytes(operation.op, operation.group, nbytes, root)
        return link.alpha + carried * link.beta  # type: ignore[attr-defined]


def partners(record: Record) -> dict[tuple[int, int], list[Operation]]:
    """For each operation, by rank and index, the parts of other ranks it needs."""
    needed: dict[tuple[int, int], list[Operation]] = defaultdict(list)
    for message in record.messages():
        needed[message.send.rank, message.send.index] = [message.recv]
        needed[message.recv.rank, message.recv.index] = [message.send]
    for collective in record.collectives():
        for rank, call in collective.calls.items():
            others = [other for member, other in collective.calls.items() if member != rank]
            root = call.peer
            if collective.op in LEAVES_AT_ONCE:
                others = [other for other in others if rank != root and other.rank == root]
            elif root is not None and rank != root:
                others = []
            needed[rank, call.index] = others
    return needed


# ---- one rank for each stage


class Mesh(NamedTuple):
    """Wires of a larger mesh under the ranks of a small one: which axis, and how many times the bytes."""

    recorded: Layout
    target: Layout
    cluster: Cluster
    nbytes: Mapping[str, float]


def scaled(
    record: Record,
    recorded: Layout,
    target: Layout,
    cluster: Cluster,
    nbytes: Mapping[str, float],
    compute: float,
) -> float:
    """Seconds of the run on a larger mesh with as many stages, of which one rank each stands for its like.

    recorded, target: the meshes, which have the same pp. nbytes: factors by axis ("tp", "pp", "dp": for the
    replicas, "cp"). compute: a factor for the seconds between operations. The record's microbatches and
    layers stay. ValueError for another number of stages.
    """
    if recorded.pp != target.pp:
        raise ValueError(
            f"the record has {recorded.pp} stages and the layout {target.pp}: a stage stands for a stage"
        )
    first = tuple(k * recorded.stride("pp") for k in range(recorded.pp))
    mesh = Mesh(recorded, target, cluster, nbytes)
    return OnMesh(record, cluster, compute, present=first, mesh=mesh).run().total


@dataclass
class OnMesh(Rerun):
    """A rerun whose groups have the size, the position and the bytes of another mesh."""

    mesh: Mesh | None = None

    def link(self, operation: Operation) -> object:
        return self.cluster.link(self.of(self.axis(operation)))

    def seconds(self, operation: Operation, nbytes: float) -> float:
        assert self.mesh is not None
        axis = self.axis(operation)
        link, group = self.link(operation), tuple(self.of(axis))
        root = -1 if operation.peer is None else group[0]
        carried = busiest_bytes(operation.op, group, nbytes * self.mesh.nbytes.get(axis, 1), root)
        return link.alpha + carried * link.beta  # type: ignore[attr-defined]

    def axis(self, operation: Operation) -> str:
        """The axis of an operation's group; "dp" for the flattened group of the replicas."""
        assert self.mesh is not None
        layout, rank, group = self.mesh.recorded, operation.rank, list(operation.group)
        for axis in ("pp", "tp", "cp", "dp"):
            if group == layout.ranks(axis, rank):
                return axis
        return "dp" if group == layout.replica_ranks(rank) else "all"

    def of(self, axis: str) -> list[int]:
        assert self.mesh is not None
        target = self.mesh.target
        if axis == "all":
            return list(range(target.gpus))
        return target.replica_ranks() if axis == "dp" else target.ranks(axis)


# ---- many stages


def pipeline_seconds(
    shape: Shape, layout: Layout, batch: int, cluster: Cluster, work: Work, seq: int | None = None
) -> float:
    """The seconds of a step whose pipeline is simulated, action by action, without a formula for its bubble.

    One rank stands for each stage. A message is paid with each of v chunks, so interleaving hides less than
    (p - 1) / v says. 64 stages x 512 microbatches are 65,536 actions, which take a few seconds.
    """
    seq = shape.context if seq is None else seq
    tokens = layout.microbatch * seq / layout.cp
    m, p, v = layout.microbatches(batch), layout.pp, layout.chunks
    timed = layer_seconds(shape, tokens, seq, layout.tp, layout.sequence, cluster.gpu, work)
    stream = 2 * tokens * shape.width
    one_sum = all_reduce_seconds(cluster, layout.ranks("tp"), stream)
    cp = context_seconds(shape, layout, seq, cluster)
    layers = shape.layers / (p * v)
    forward = layers * (timed.forward + 2 * one_sum + cp / 3)
    again = timed.total(layout.recompute) - timed.forward - timed.backward
    backward = layers * (
        timed.backward + again + (ALL_REDUCES[layout.recompute] - 2) * one_sum + cp * 2 / 3
    )
    head = head_seconds(shape, tokens, layout.tp, cluster.gpu, work)
    message = message_seconds(cluster, layout, stream) if p > 1 else 0.0
    of_stage = Durations(forward, backward=backward, communication=message)
    last = replace(of_stage, forward=forward + head / 3, backward=backward + head * 2 / 3)
    durations = {**dict.fromkeys(range(p * v), of_stage), p * v - 1: last}
    make: Callable[[], list] = (
        (lambda: one_f_one_b(p, m)) if v == 1 else (lambda: interleaved_one_f_one_b(p, m, v))
    )
    parts = step_parts(shape, layout, batch, cluster, work, seq)
    return simulate(make(), durations, checked=True).total + parts.dp + parts.optimizer
