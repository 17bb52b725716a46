"""How NCCL runs the operations of all ranks, from the order in which each rank begins its own.

gloo runs all operations side by side. NCCL does not, so a program that runs on gloo can hang there. This is a
model of NCCL as this course and `init_process_group(..., device_id=...)` set it up:

* A group has one communicator, its *lane*: collectives and messages are done one after the other, in the
  order in which the rank begins them. (PyTorch, ProcessGroupNCCL.cpp, `pointToPoint`: in eager initialization
  "unbatched P2P ops are treated as independent collective ops, and are thus serialized with all other ops on
  this ProcessGroup". Without a device_id each pair of ranks that sends outside of batches gets a lane of its
  own, so a swap still hangs, but a circle of three does not.)
* The messages of a batch are one operation and are done side by side (NCCL user guide, "Point-to-point
  communication": calls that need to progress concurrently must be merged into one group).
* A message is done when both ends have reached it, and a collective when the members whose data it needs have
  reached it. (NCCL can take in a small message before its receive has begun, but does not promise to. And a
  send reported as done proves nothing. On an H100 with NCCL 2.30, in a swap of 16 bytes in which each rank's
  send came before its receive, both sends were done and both receives waited for ever.)
* `wait()` makes the rank's CUDA stream wait, not its program. An operation that is begun after it, in any
  group, starts when the awaited operation is done. A synchronous call begins its operation and waits for it.
* There are no tags, so the k-th send to a rank in a group meets that rank's k-th receive.

Lanes of different groups run side by side. (NCCL asks for one order over communicators as well, in case a GPU
cannot run two kernels at the same time; see "Using multiple NCCL communicators concurrently". This rule is
not modelled.)
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from course_lib.ledger.matching import POINT_TO_POINT
from course_lib.ledger.operation import Operation
from course_lib.ledger.rounds import events

ROOTED = ("broadcast", "reduce", "gather", "scatter")
Lane = Hashable  # of a rank: the name and the members of the group


@dataclass(eq=False)
class Exchange:
    """A message or a collective, as the parts of the ranks that have issued theirs."""

    parts: dict[int, Part] = field(default_factory=dict)


@dataclass(eq=False)
class Part:
    """One rank's part of an exchange. needs: ranks that must reach their parts before it is done."""

    operation: Operation
    exchange: Exchange
    step: Step
    needs: set[int]


@dataclass(eq=False)
class Step:
    """The operations a rank begins at the same time: a single one, or the messages of a batch.

    issued: the rank's stream has reached it; begun: so has its lane; ended: every part is also done.
    """

    rank: int
    lane: Lane
    parts: list[Part] = field(default_factory=list)
    open: int = 0  # parts that need another rank
    issued: bool = False
    begun: bool = False
    ended: bool = False

    @property
    def waiting(self) -> Part:
        """The first part that is not done."""
        return next(part for part in self.parts if part.needs)


@dataclass(frozen=True)
class Held:
    """A rank in a circle. It is at `first`, which waits for another rank, and does `then` only after it.

    in_lane: True if an operation of the rank waits in a lane behind `first`; False if the rank waits for
    `first` itself before it issues `then`. An operation it has not issued yet has the index -1.
    """

    first: Operation
    then: Operation
    in_lane: bool


class Order:
    """How far the ranks get if each lane does one step after the other.

    operations: of each rank, in the order in which it issued them.
    done: whether an operation is known to be over. taken_in: whether to believe `done` for a send whose
    receive is not over. blocked: by rank, the index of the operation in which it waits now. going_on: ranks
    that may issue more operations after all of these.
    """

    def __init__(
        self,
        operations: Sequence[Sequence[Operation]],
        done: Callable[[Operation], bool] = lambda operation: False,
        blocked: Mapping[int, int] | None = None,
        going_on: Collection[int] = (),
        taken_in: bool = True,
    ):
        self.going_on = going_on
        self.blocked = blocked or {}
        self.steps: list[dict[int, Step]] = []  # of each rank, by the index of an operation
        self.streams: list[deque[tuple[Step, bool]]] = []  # steps to issue, and (True) to wait for
        self.lanes: dict[tuple[int, Lane], deque[Step]] = defaultdict(deque)
        self.exchanges: dict[Hashable, Exchange] = defaultdict(Exchange)
        self.missing: dict[tuple[int, Lane], list[Part]] = defaultdict(list)  # never issued
        self.to_look_at: deque[tuple[int, Lane | None]] = deque()  # lanes; None: the stream
        for rank, issued in enumerate(operations):
            self.steps.append(dict(self.steps_of(rank, issued)))
            self.streams.append(self.stream_of(rank, issued))
            self.to_look_at.append((rank, None))
        self.to_look_at.extend(self.lanes)
        for part in [p for exchange in self.exchanges.values() for p in exchange.parts.values()]:
            for rank in part.needs - part.exchange.parts.keys():
                self.missing[rank, part.step.lane].append(part)
        for rank, issued in enumerate(operations):
            for step in dict.fromkeys(
                self.steps[rank][operation.index] for operation in issued if done(operation)
            ):
                if taken_in or all(received(part, done) for part in step.parts):
                    self.over(step)
        while self.to_look_at:
            rank, lane = self.to_look_at.popleft()
            self.follow_stream(rank) if lane is None else self.follow_lane(rank, lane)

    # ---- from operations to steps

    def steps_of(self, rank: int, issued: Sequence[Operation]) -> Iterator[tuple[int, Step]]:
        turns: Counter[Hashable] = Counter()
        step: Step | None = None
        for operation in issued:
            lane = (operation.group_name, operation.group)
            if operation.op == "new_group":  # the host makes it, whatever the stream waits for
                lane = "new_group"
            if step is None or not operation.joined or step.lane != lane:
                step = Step(rank, lane, issued=operation.op == "new_group")
                self.lanes[rank, lane].append(step)
            channel = lane if operation.op not in POINT_TO_POINT else (lane, *ends(operation))
            turns[channel] += 1
            exchange = self.exchanges[channel, turns[channel]]
            part = Part(operation, exchange, step, needs(operation))
            exchange.parts[rank] = part
            step.parts.append(part)
            step.open += bool(part.needs)
            yield operation.index, step

    def stream_of(self, rank: int, issued: Sequence[Operation]) -> deque[tuple[Step, bool]]:
        stream = deque[tuple[Step, bool]]()
        for event in events(issued):
            stream.append((self.steps[rank][event.operation.index], event.is_completion))
        if rank in self.blocked:
            stream.append((self.steps[rank][self.blocked[rank]], True))
        return stream

    # ---- how far they get

    def follow_stream(self, rank: int) -> None:
        stream = self.streams[rank]
        while stream:
            step, waits = stream[0]
            if waits and not step.ended:
                return
            stream.popleft()
            step.issued = True
            self.to_look_at.append((rank, step.lane))
        if rank in self.going_on:
            lanes = [lane for other, lane in self.missing if other == rank]
            self.to_look_at.extend((rank, lane) for lane in lanes)

    def follow_lane(self, rank: int, lane: Lane) -> None:
        queue = self.lanes[rank, lane]
        while queue and queue[0].issued:
            step = queue[0]
            if not step.begun:
                self.begin(step)
            if step.open:
                return
            step.ended = True
            queue.popleft()
            self.to_look_at.append((rank, None))
        if not queue and not self.streams[rank] and rank in self.going_on:
            for part in self.missing.pop((rank, lane), ()):  # it may still be issued
                self.came(part, rank)

    def begin(self, step: Step) -> None:
        step.begun = True
        for part in step.parts:
            for other in part.exchange.parts.values():
                self.came(other, step.rank)

    def came(self, part: Part, rank: int) -> None:
        """`rank` has come to the exchange of which this is a part."""
        if rank in part.needs:
            part.needs.remove(rank)
            part.step.open -= not part.needs
            if not part.step.open:
                self.to_look_at.append((part.step.rank, part.step.lane))

    def over(self, step: Step) -> None:
        """The step is known to have ended, and with it all steps before it in the lane."""
        while not step.ended:
            first = self.lanes[step.rank, step.lane].popleft()
            self.begin(first)
            first.issued = first.ended = True
            for part in first.parts:
                part.needs.clear()

    # ---- the operations that hold them up

    def held_by(self, step: Step) -> tuple[Step, bool]:
        """The step of this rank that must end before `step` can; `step` itself, once it has begun.

        The second value says whether it holds up the steps behind it in its lane.
        """
        in_lane = False
        while not step.begun:
            first = self.lanes[step.rank, step.lane][0]
            in_lane |= first.issued
            step = first if first.issued else self.streams[step.rank][0][0]
        return step, in_lane

    def waits_for(self, rank: int, index: int) -> set[int]:
        """Ranks for which this rank waits in the operation with this index; empty: it can end."""
        step = self.steps[rank][index]
        return set() if step.ended else set.union(*(p.needs for p in self.held_by(step)[0].parts))

    def circle(self, in_lanes: bool = True) -> list[Held]:
        """Ranks that wait for each other in a circle; [] if there are none.

        in_lanes: leave out circles in which no rank waits in a lane.
        """
        known = set[Step]()
        for queue in list(self.lanes.values()):
            circle = self.circle_from(self.held_by(queue[0])[0], known) if queue else []
            if circle and (not in_lanes or any(held.in_lane for held in circle)):
                return circle
        return []

    def circle_from(self, step: Step, known: set[Step]) -> list[Held]:
        """known: steps from which only circles can be reached that were found before."""
        path: dict[Step, Held | None] = {}  # each with why the step before it waits for its rank
        held = None
        while step not in path:
            if step in known:
                return []
            known.add(step)
            path[step] = held
            step, held = self.next_of(step)
            if held is None:
                return []
        path[step] = held
        steps = list(path)
        inside = [path[inner] for inner in steps[steps.index(step) :]]
        return sorted(
            (held_step for held_step in inside if held_step), key=lambda held: held.first.rank
        )

    def next_of(self, step: Step) -> tuple[Step, Held | None]:
        """The step the awaited rank is at, and why; None if that rank can still arrive."""
        part = step.waiting
        rank = min(part.needs)
        other = part.exchange.parts.get(rank)
        if other is not None:
            (at, in_lane), then = self.held_by(other.step), other.operation
        elif rank in self.blocked:
            at, in_lane = self.held_by(self.steps[rank][self.blocked[rank]])
            then = counterpart(part, rank)
        else:
            return step, None
        return at, Held(at.waiting.operation, then, in_lane)


def ends(operation: Operation) -> tuple[int, int]:
    """The sender and the receiver of a message; -1: any sender."""
    peer = -1 if operation.peer is None else operation.peer
    return (operation.rank, peer) if operation.op == "send" else (peer, operation.rank)


def received(part: Part, done: Callable[[Operation], bool]) -> bool:
    """Whether the message of this send has arrived; True for every other part."""
    if part.operation.op != "send":
        return True
    other = part.exchange.parts.get(-1 if part.operation.peer is None else part.operation.peer)
    return other is not None and done(other.operation)


def counterpart(part: Part, rank: int) -> Operation:
    """The operation for which this part waits, and which `rank` has not issued."""
    mine = part.operation
    op = {"send": "recv", "recv": "send"}.get(mine.op, mine.op)
    peer = mine.rank if op in POINT_TO_POINT else mine.peer
    return replace(mine, rank=rank, index=-1, op=op, peer=peer, line="")


def needs(operation: Operation) -> set[int]:
    """The other ranks that must have come to an exchange before this rank's part of it is done."""
    one_other = operation.op in POINT_TO_POINT or operation.op in ROOTED
    if one_other and operation.peer not in (None, operation.rank):
        return {operation.peer}
    return set(operation.group) - {operation.rank}
