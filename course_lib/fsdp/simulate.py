"""When does each action of a step run, on one rank? The simulation has two lanes.

Every action takes a given time. The compute lane runs the forwards and backwards, and the wire runs the
gathers and reduces. Each lane follows the order of the list, and pauses only if it must:

    forward, backward   when the compute lane is free and the unit has arrived
    gather              when the wire is free and all computations before it in the list are over, because
                        a host that computes issues nothing, and on a GPU memory must be free first
    reduce              when the wire is free, all computations before it in the list are over, and so is
                        the last reduce, because its buffer is used again

With two wires, gathers and reduces do not wait for each other. There is no other cost, such as a launch,
contention or a slower rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from .validate import validate


@dataclass(frozen=True)
class Times:
    """How long the actions of a unit take. wires: 1, or 2 if gathers and reduces do not share a wire."""

    forward: float
    backward: float
    gather: float
    reduce: float
    wires: int = 1

    def __post_init__(self) -> None:
        if self.wires not in (1, 2):
            raise ValueError(f"wires is 1 or 2, not {self.wires!r}")
        for kind in ("forward", "backward", "gather", "reduce"):
            if getattr(self, kind) < 0:
                raise ValueError(f"{kind}={getattr(self, kind)}: no action takes less than no time")


class Event(NamedTuple):
    """An action that ran. lane: "compute" or "wire", or "wire 2" for a second wire."""

    kind: str
    unit: int
    lane: str
    start: float
    end: float


@dataclass(frozen=True)
class Simulation:
    """The result of `simulate`, with the events in the order of the list. The first began at 0."""

    events: Sequence[Event]
    whole: Sequence[tuple[float, int]]  # from this time on, this many units are whole or arriving

    @cached_property
    def total(self) -> float:
        """The time at which the last action ends."""
        return max((event.end for event in self.events), default=0.0)

    @cached_property
    def computing(self) -> float:
        """How long the compute lane works."""
        return sum(event.end - event.start for event in self.events if event.lane == "compute")

    @property
    def exposed(self) -> float:
        """The share of the step in which the rank computes nothing."""
        return 1 - self.computing / self.total if self.total else 0.0

    @property
    def most_whole(self) -> int:
        """The largest number of units that are whole, or on their way, at the same time."""
        return max((units for _, units in self.whole), default=0)


def simulate(
    schedule: Iterable[tuple[str, int]], times: Times, units: int | None = None
) -> Simulation:
    """Run a schedule against the clock. units: by default, as many as the schedule names.

    Raises ScheduleError with the first violation, because a list that is not a step has no meaningful times.
    """
    schedule = list(schedule)
    validate(schedule, 1 + max((u for _, u in schedule), default=-1) if units is None else units)
    computed = 0.0  # the end of the last computation so far
    wires = {"gather": 0.0, "reduce": 0.0}  # when each kind's wire is free
    arrived: dict[int, float] = {}
    events, whole = [], [(0.0, 0)]
    for kind, unit in schedule:
        if kind in ("forward", "backward"):
            start = max(computed, arrived[unit])
            computed = end = start + getattr(times, kind)
            events.append(Event(kind, unit, "compute", start, end))
        elif kind == "free":
            whole.append((computed, whole[-1][1] - 1))
        else:  # the host reaches this line only when all computations before it are over
            start = max(computed, wires[kind])
            end = start + getattr(times, kind)
            for each in wires if times.wires == 1 else [kind]:
                wires[each] = end
            lane = "wire 2" if times.wires == 2 and kind == "reduce" else "wire"
            events.append(Event(kind, unit, lane, start, end))
            if kind == "gather":
                arrived[unit] = end
                whole.append((computed, whole[-1][1] + 1))  # its memory is taken now
    return Simulation(events, whole)
