"""A clock that runs a schedule, and computes when each action starts and ends from how long each takes.

A rank does its actions in order, each as soon as the rank is free and the action's input has arrived. A
message takes `communication` seconds from one rank to another, during which both can compute, and no time
within a rank. There is no other cost, such as a launch, contention for a link, or a sender that waits for its
receiver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from .actions import KINDS, Action, Pair, Schedule

Where: TypeAlias = tuple[int, int]  # a rank, and the place in its list


@dataclass(frozen=True)
class Durations:
    """Seconds of one microbatch on one stage; integers and fractions stay exact.

    forward, input, weight: of F, I and W. backward: of B, input + weight if not given.
    overlapped: of a pair, forward + backward if not given, which is as long as without overlap.
    communication: from one rank to another.
    """

    forward: float = 1
    input: float = 1
    weight: float = 1
    backward: float | None = None
    overlapped: float | None = None
    communication: float = 0

    def split(self, chunks: int) -> Durations:
        """The durations of one stage if a rank holds `chunks` stages; messages take as long as before."""
        return Durations(
            forward=self.forward / chunks,
            input=self.input / chunks,
            weight=self.weight / chunks,
            backward=None if self.backward is None else self.backward / chunks,
            overlapped=None if self.overlapped is None else self.overlapped / chunks,
            communication=self.communication,
        )

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


def events(
    schedule: Schedule, starts: Sequence[Sequence[float]], ends: Sequence[Sequence[float]]
) -> list[Timed]:
    """All actions, by their start. starts, ends: for each rank in its order."""
    timed = [
        Timed(rank, action, start, end)
        for rank, row in enumerate(schedule)
        for action, start, end in zip(row, starts[rank], ends[rank], strict=True)
    ]
    return sorted(timed, key=lambda event: (event.start, event.rank))


class Clock:
    """Each rank goes on until it lacks an output; the rank that makes the output wakes it."""

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
        """Whether every rank reached the end of its list."""
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
        """The seconds of a pair, whose actions can belong to stages with different durations."""
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
