"""When does each action run? A schedule, durations for its actions, and a clock.

A rank does its actions in order, each as soon as the rank is free and the action's input has come. A message
takes `communication` seconds from one rank to another, during which both compute, and none within a rank.
There is no other cost: no launch, no contention for a link, no waiting of a sender for its receiver.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

from .actions import KINDS, Action, Pair, Schedule, chain_length, flat
from .validate import ScheduleError, validate, violation

Where: TypeAlias = tuple[int, int]  # a rank, and the place in its list


@dataclass(frozen=True)
class Durations:
    """Seconds of one microbatch on one stage; integers and fractions stay exact.

    forward, input, weight: of F, I and W. backward: of B, input + weight if not given.
    overlapped: of a pair, forward + backward if not given: as long as without overlap.
    communication: from one rank to another.
    """

    forward: float = 1
    input: float = 1
    weight: float = 1
    backward: float | None = None
    overlapped: float | None = None
    communication: float = 0

    def split(self, chunks: int) -> Durations:
        """The durations of one stage if a rank's layers make this many; messages take as long as before."""
        whole = (self.forward, self.input, self.weight, self.backward, self.overlapped)
        parts = [None if seconds is None else seconds / chunks for seconds in whole]
        return Durations(*parts, communication=self.communication)  # type: ignore[arg-type]

    def of(self, action: Action | Pair) -> float:
        """How long an action takes."""
        backward = self.input + self.weight if self.backward is None else self.backward
        if isinstance(action, Pair):
            return self.forward + backward if self.overlapped is None else self.overlapped
        return {"F": self.forward, "B": backward, "I": self.input, "W": self.weight}[action.kind]


class Timed(NamedTuple):
    """An action that ran, with its rank and its times."""

    rank: int
    action: Action | Pair
    start: float
    end: float


@dataclass(frozen=True)
class Times:
    """When each action of a schedule began and ended, for each rank in its order; the first began at 0."""

    schedule: Schedule
    starts: list[list[float]]
    ends: list[list[float]]

    @cached_property
    def total(self) -> float:
        """Seconds from the start until the last action of all ends."""
        return max(ends[-1] for ends in self.ends if ends)

    @cached_property
    def busy(self) -> list[float]:
        """Seconds that each rank computes."""
        return [
            sum(end - start for start, end in zip(*times, strict=True)) for times in self._times
        ]

    @property
    def bubble(self) -> list[float]:
        """Seconds of the total in which each rank does nothing."""
        return [self.total - busy for busy in self.busy]

    @property
    def spans(self) -> list[float]:
        """Seconds from each rank's own first action to its last.

        The longest is the cost of a step if steps follow one another without a barrier between them, so that
        a rank that begins later also ends later (Qi et al. 2024, section 4).
        """
        return [ends[-1] - starts[0] if ends else 0 for starts, ends in self._times]

    @property
    def of_total(self) -> float:
        """The bubble as a fraction of all ranks' time: (p-1)/(m+p-1) for 1F1B."""
        return sum(self.bubble) / (len(self.schedule) * self.total)

    @property
    def of_ideal(self) -> float:
        """The bubble over the time that the computing alone takes: (p-1)/m for 1F1B."""
        return sum(self.bubble) / sum(self.busy)

    @property
    def bubble_rate(self) -> float:
        """(cost - busy) / cost, the cost being the longest span: Qi et al. 2024, section 5.3."""
        cost, rank = max((span, rank) for rank, span in enumerate(self.spans))
        return (cost - self.busy[rank]) / cost

    @property
    def events(self) -> list[Timed]:
        """All actions, by their start."""
        events = [
            Timed(rank, action, start, end)
            for rank, row in enumerate(self.schedule)
            for action, start, end in zip(row, *self._times[rank], strict=True)
        ]
        return sorted(events, key=lambda event: (event.start, event.rank))

    @property
    def _times(self) -> list[tuple[list[float], list[float]]]:
        return list(zip(self.starts, self.ends, strict=True))


@dataclass(frozen=True)
class Simulation(Times):
    """The result of `simulate`: the times, and for each action the one that it waited for.

    causes: for each action the one whose end, or whose message's arrival, let it start; None at time 0.
    """

    causes: list[list[Where | None]]

    @property
    def critical_path(self) -> list[Timed]:
        """The chain of actions that bounds the total, first to last: to be faster, shorten one of these."""
        where: Where | None = max(
            ((rank, len(row) - 1) for rank, row in enumerate(self.schedule) if row),
            key=lambda last: self.ends[last[0]][last[1]],
        )
        path = []
        while where is not None:
            rank, index = where
            times = self.starts[rank][index], self.ends[rank][index]
            path.append(Timed(rank, self.schedule[rank][index], *times))
            where = self.causes[rank][index]
        return path[::-1]


def simulate(
    schedule: Schedule,
    durations: Durations | Mapping[int, Durations] | None = None,
    copies: int = 1,
    checked: bool = False,
) -> Simulation:
    """Run a schedule against the clock. Cost: a few microseconds an action.

    durations: the same for all stages, or by stage if they differ: then `communication` is that of the
        message's sender, and `overlapped` that of the pair's forward. By default each of F, I and W takes 1
        and B takes 2.
    copies: the number of copies of the model, as for `violation`.
    checked: the caller has validated the schedule; the numbers of a wrong schedule would mean nothing.
    Raises ScheduleError with the first violation.
    """
    if not checked:
        validate(schedule, copies=copies)
    stages = 1 + max(action.stage for row in schedule for action in flat(row))
    clock = _Clock(schedule, _by_stage(durations, stages), chain_length(stages, copies))
    if not clock.run():
        raise ScheduleError(violation(schedule, copies=copies))
    return Simulation(schedule, clock.starts, clock.ends, clock.causes)


def _by_stage(
    durations: Durations | Mapping[int, Durations] | None, stages: int
) -> list[Durations]:
    if durations is None or isinstance(durations, Durations):
        return [durations or Durations()] * stages
    missing = [stage for stage in range(stages) if stage not in durations]
    if missing:
        raise ValueError(
            f"durations by stage are given for {sorted(durations)}, and the schedule has {stages} stages: "
            f"stage {missing[0]} is missing"
        )
    return [durations[stage] for stage in range(stages)]


class _Clock:
    """Each rank goes on until it needs an output that is not there yet; the rank that makes it wakes it."""

    def __init__(self, schedule: Schedule, durations: list[Durations], length: int):
        self.schedule, self.length, self.durations = schedule, length, durations
        self.delays = [stage.communication for stage in durations]
        self.seconds = [
            {kind: stage.of(Action(0, kind, 0)) for kind in KINDS} for stage in durations
        ]
        self.starts: list[list[float]] = [[] for _ in schedule]
        self.ends: list[list[float]] = [[] for _ in schedule]
        self.causes: list[list[Where | None]] = [[] for _ in schedule]
        # end and place of each forward and backward (B or I), by stage, kind and microbatch
        self.done: dict[tuple[int, str, int], tuple[float, int, int]] = {}
        self.waiting: dict[tuple[int, str, int], int] = {}

    def run(self) -> bool:
        """Whether every rank came to the end of its list."""
        self.ready = list(range(len(self.schedule)))
        while self.ready:
            self._go_on(self.ready.pop())
        return not self.waiting

    def _go_on(self, rank: int) -> None:
        """Do the actions of a rank's list until one has to wait."""
        row, starts, ends = self.schedule[rank], self.starts[rank], self.ends[rank]
        free = ends[-1] if ends else 0
        for index in range(len(ends), len(row)):
            action = row[index]
            pair = isinstance(action, Pair)
            both = action if pair else (action,)
            start, cause = free, (rank, index - 1) if index else None
            for stage, kind, microbatch in both:
                needed = self._needed(stage, kind, microbatch)
                if needed is None:
                    continue
                if needed not in self.done:
                    self.waiting[needed] = rank
                    return
                came, src, place = self.done[needed]
                if src != rank:
                    came += self.delays[needed[0]]
                if came > start:
                    start, cause = came, (src, place)
            free = start + (
                self._overlapped(action) if pair else self.seconds[action[0]][action[1]]
            )
            starts.append(start)
            ends.append(free)
            self.causes[rank].append(cause)
            for stage, kind, microbatch in both:
                if kind != "W":
                    output = (stage, "F" if kind == "F" else "B", microbatch)
                    self.done[output] = free, rank, index
                    if output in self.waiting:
                        self.ready.append(self.waiting.pop(output))

    def _overlapped(self, pair: Pair) -> float:
        """The seconds of a pair, whose actions may be of stages with different durations."""
        seconds = self.durations[pair.forward.stage].overlapped
        if seconds is not None:
            return seconds
        return sum(self.seconds[half.stage][half.kind] for half in pair)

    def _needed(self, stage: int, kind: str, microbatch: int) -> tuple[int, str, int] | None:
        """The same as `actions.source`, without the cost of an Action."""
        if kind == "F":
            return (stage - 1, "F", microbatch) if stage % self.length else None
        if kind == "W" or (stage + 1) % self.length == 0:
            return None
        return stage + 1, "B", microbatch
