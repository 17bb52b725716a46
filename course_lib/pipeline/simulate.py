"""When does each action run, which ranks wait, and what bounds the time? `timing.py` has the clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from .actions import Schedule, chain_length, flat
from .timing import Clock, Durations, Timed, Where, events
from .validate import ScheduleError, validate, violation


@dataclass(frozen=True)
class Times:
    """When each action of a schedule began and ended, for each rank in its order; the first began at 0."""

    schedule: Schedule
    starts: list[list[float]]
    ends: list[list[float]]

    @cached_property
    def total(self) -> float:
        """Seconds from the start until the very last action ends."""
        return max(ends[-1] for ends in self.ends if ends)

    @cached_property
    def busy(self) -> list[float]:
        """Seconds in which each rank computes."""
        return [
            sum(end - start for start, end in zip(starts, ends, strict=True))
            for starts, ends in self._times
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
        """The bubble divided by the computing time: (p-1)/m for 1F1B."""
        return sum(self.bubble) / sum(self.busy)

    @property
    def bubble_rate(self) -> float:
        """(cost - busy) / cost, where the cost is the longest span (Qi et al. 2024, section 5.3)."""
        cost, rank = max((span, rank) for rank, span in enumerate(self.spans))
        return (cost - self.busy[rank]) / cost

    @property
    def events(self) -> list[Timed]:
        """All actions, by their start."""
        return events(self.schedule, self.starts, self.ends)

    @property
    def _times(self) -> list[tuple[list[float], list[float]]]:
        return list(zip(self.starts, self.ends, strict=True))


@dataclass(frozen=True)
class Simulation(Times):
    """The result of `simulate`: the times, and for each action the action it waited for.

    causes: for each action the one whose end, or whose message's arrival, let it start; None at time 0.
    """

    causes: list[list[Where | None]]

    @property
    def critical_path(self) -> list[Timed]:
        """The chain of actions that bounds the total, first to last; to be faster, shorten one of these."""
        where: Where | None = max(
            ((rank, len(row) - 1) for rank, row in enumerate(self.schedule) if row),
            key=lambda last: self.ends[last[0]][last[1]],
        )
        path = []
        while where is not None:
            rank, index = where
            start, end = self.starts[rank][index], self.ends[rank][index]
            path.append(Timed(rank, self.schedule[rank][index], start, end))
            where = self.causes[rank][index]
        return path[::-1]


def simulate(
    schedule: Schedule,
    durations: Durations | Mapping[int, Durations] | None = None,
    copies: int = 1,
    checked: bool = False,
) -> Simulation:
    """Run a schedule against the clock. This takes a few microseconds per action.

    durations: the same for all stages, or by stage if they differ. Then `communication` belongs to the stage
        that sends the message, and `overlapped` to the stage of the pair's forward. By default, each of F, I
        and W takes 1 and B takes 2.
    copies: the number of copies of the model, as for `violation`.
    checked: the caller has validated the schedule; the numbers of a wrong schedule would mean nothing.
    Raises ScheduleError with the first violation.
    """
    if not checked:
        validate(schedule, copies=copies)
    stages = 1 + max(action.stage for row in schedule for action in flat(row))
    clock = Clock(schedule, _by_stage(durations, stages), chain_length(stages, copies))
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
