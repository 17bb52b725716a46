"""The measured run of a schedule, with the times of the passes of all ranks, by any executor.

    (stage,) = gpt_stages(model, schedule, dist.get_rank())
    measured = measure(lambda: run_schedule(stage, schedule, batch), stage, schedule)
    predicted = simulate(schedule, measured.durations)
    gantts({"measured": measured, "simulated": predicted}, seconds=True)

`stopwatch.py` explains how to measure an executor that does not know it is measured.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from .actions import Schedule, flat, source
from .clocks import Reading, ahead, readings
from .shared import Group
from .simulate import Durations, Times
from .stage import Stage
from .stopwatch import Pass, Stopwatch


@dataclass(frozen=True)
class Timeline(Times):
    """The result of `measure`: times in seconds from the first action's start, and figures made from them.

    schedule: the actions that ran, for each rank in their real order. It equals the intended schedule if the
        executor kept to it, with pairs taken apart.
    length: stages of one copy of the model.
    """

    length: int

    @property
    def durations(self) -> dict[int, Durations]:
        """The medians over the microbatches of each stage, and `delay` for every message, for `simulate`.

        An action that no microbatch did has the duration nan, so a schedule with this action takes nan
        seconds when it is simulated.
        """
        taken = defaultdict(list)
        for _, (action, start, end) in self._passes():
            taken[action.stage, action.kind].append(end - start)
        seconds = {key: statistics.median(each) for key, each in taken.items()}
        return {
            stage: Durations(
                forward=seconds.get((stage, "F"), math.nan),
                input=seconds.get((stage, "I"), math.nan),
                weight=seconds.get((stage, "W"), math.nan),
                backward=seconds.get((stage, "B")),
                communication=self.delay,
            )
            for stage in sorted({stage for stage, _ in seconds})
        }

    @property
    def delay(self) -> float:
        """The seconds of a message for a rank that has nothing else to do: its way and the executors' work.

        It is the median of the seconds from the end of an action to the start of an action on another rank
        that waited for its output; 0 if none waited.
        """
        ended = {
            action._replace(kind="B") if action.kind == "I" else action: (rank, end)
            for rank, (action, _, end) in self._passes()
        }
        waited, free = [], [0.0] * len(self.schedule)
        for rank, (action, start, end) in self._passes():
            needed = source(action, self.length)
            if needed is not None and needed in ended:
                src, came = ended[needed]
                if src != rank and came > free[rank]:
                    waited.append(max(0.0, start - came))
            free[rank] = end
        return statistics.median(waited) if waited else 0.0

    def _passes(self) -> Iterator[tuple[int, Pass]]:
        for rank, row in enumerate(self.schedule):
            times = zip(flat(row), self.starts[rank], self.ends[rank], strict=True)
            for action, start, end in times:
                yield rank, Pass(action, start, end)


def measure(
    step: Callable[[], object],
    stage: Stage | Sequence[Stage],
    actions: Schedule,
    group: Group = None,
    steps: int = 5,
) -> Timeline:
    """Time each pass of each microbatch while `step` does the schedule. All ranks of the group must call it.

    step: does the schedule once, such as `lambda: run_schedule(stage, actions, batch)`, by any executor that
        calls the stages' modules and, for the last one, `stage.loss`, which is replaced during the
        measurement.
    stage: the stage of this rank, or the list of its stages. actions: the schedule, which gives the order of
        the microbatches.
    steps: how often to measure, after one step to warm up. Gradients of all steps add up.
    Returns, on all ranks, the step of median length. It sends barriers, and the times of all ranks to all
    ranks.
    On a GPU, marks are events on its stream, and no rank waits for the GPU.
    Raises ValueError if a module runs more often than the schedule says, or never.
    """
    if steps < 1:
        raise ValueError(f"steps={steps}: measure at least one")
    stages = [stage] if isinstance(stage, Stage) else list(stage)
    step()
    passes = []
    for _ in range(steps):
        dist.barrier(group)
        with Stopwatch(stages, actions[dist.get_rank(group)]) as watch:
            step()
        passes.append(watch.passes())
    gathered: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, (readings(group), passes), group=group)
    aligned = [
        _aligned(passes_of_rank, clock, gathered[0][0]) for clock, passes_of_rank in gathered
    ]
    timelines = [together(rows, stages[0].length) for rows in zip(*aligned, strict=True)]
    return sorted(timelines, key=lambda timeline: timeline.total)[len(timelines) // 2]


def together(rows: Sequence[Sequence[Pass]], length: int) -> Timeline:
    """The timeline of all ranks' passes, given in order and on one clock."""
    if not any(rows):
        raise ValueError(
            "there is nothing to draw: no stage's module was run in a step. Give stages whose modules the "
            "executor calls, as modules and not by their `forward`"
        )
    began = min(row[0].start for row in rows if row)
    return Timeline(
        [[timed.action for timed in row] for row in rows],
        [[timed.start - began for timed in row] for row in rows],
        [[timed.end - began for timed in row] for row in rows],
        length,
    )


def _aligned(
    steps: Sequence[Sequence[Pass]], clock: Sequence[Reading], reference: Sequence[Reading]
) -> list[list[Pass]]:
    """A rank's passes of all steps, on the reference's clock."""
    early = ahead(clock, reference)
    return [
        [Pass(action, start - early, end - early) for action, start, end in each] for each in steps
    ]
