"""Recipe (see `harness`) that runs schedules with a student's function, and reports the results.

The reply for the run "a" has the tensors "a.losses" (on the last stage,
one for each microbatch) and "a.grad.linear.weight" and so on; and values["a"] is a `ScheduleReply`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from course_lib.checks.rank import frozen, watching
from course_lib.checks.rank.agreed import Expects, as_agreed
from course_lib.checks.rank.harness import plain
from course_lib.checks.rank.notebooks.pipeline import stage_models
from course_lib.checks.rank.notebooks.pipeline.watching import Event, Watched
from course_lib.checks.rank.watching import begun_and_waited, measured
from course_lib.checks.wire import Count, Instructions
from course_lib.pipeline.actions import Action
from course_lib.pipeline.stage import Stage
from course_lib.runtime.backend import device
from course_lib.runtime.moments import BASE, START

END = "end"
_Stage, _Action, _Watched = Stage, Action, Watched
_as_tensor = torch.as_tensor


@dataclass
class ScheduleReply:
    """The reply about a run.

    events, inputs: see `watching.Watched`; begun: operations begun before the call and after it; returned:
    the keys of the dict that the function returned, None for anything else, whose type is `other`; misfits:
    {name: text} of a tensor that came in another shape or not at all, with zeros in its place.
    """

    misfits: dict[str, str] = field(default_factory=dict)
    begun: tuple[Count, Count] = (0, 0)
    events: list[Event] = field(default_factory=list)
    inputs: list[list[float]] = field(default_factory=list)
    returned: list[Any] | None = None
    other: str = ""


@dataclass(frozen=True)
class ScheduleRunInstructions:
    """One run.

    name       the prefix of all names in the reply
    model      description (see `stage_models`) of the stages
    index      this rank's stage
    actions    for each rank the list of its actions, each [stage, kind, microbatch]
    batch      how many microbatches; their tensors are "name.x.0", "name.t.0" and so on
    earlier    whether parameters have gradients before: "name.earlier.linear.weight" and so on
    pages      where the process is measured from outside, as "NAME.pages.base" before the call and as
               "NAME.pages.end" after it: about the shape of a microbatch, else []. Nothing is told of
               inputs then
    expects    {name: [dtype, shape]} of the tensors in the reply
    group      which of the case's groups is passed as group=
    """

    name: str
    model: dict[str, Any]
    index: int
    actions: list[list[list[Any]]]
    batch: int
    earlier: bool
    pages: list[int]
    expects: Expects
    group: int | None = None


@dataclass(frozen=True)
class SchedulesInstructions(Instructions):
    runs: list[ScheduleRunInstructions]

    def parts(self) -> list[str]:
        return [run.name for run in self.runs]


def warm_up(instructions: SchedulesInstructions) -> None:
    """Before the student's objects are read: the memory that they take from then on counts, see `Moments`.

    Each size is computed once, as libraries take buffers at the first product that is as large.
    """
    wide = [described for described in instructions.runs if described.pages]
    if not wide:
        return
    watching.give_back_at_once()
    for described in wide:
        stage_models.once(described.model, described.index, described.pages, device())
    measured(START)


def schedules(
    objects: list, tensors: dict[str, torch.Tensor], groups: list, instructions: SchedulesInstructions
) -> tuple[dict[str, ScheduleReply], dict[str, Any]]:
    """Every run of the instructions, one after the other."""
    values, outputs = {}, {}
    for described in instructions.runs:
        run = ScheduleOnRank(described, tensors, groups)
        run.go(objects[0])
        values[described.name] = run.values
        outputs |= {f"{described.name}.{name}": tensor for name, tensor in run.tensors().items()}
    return values, outputs


class ScheduleOnRank:
    """One schedule, with this rank's stage."""

    def __init__(self, instructions: ScheduleRunInstructions, tensors: dict[str, torch.Tensor], groups: list):
        self.instructions = instructions
        self.batch = [
            (tensors[f"{instructions.name}.x.{k}"], tensors[f"{instructions.name}.t.{k}"])
            for k in range(instructions.batch)
        ]
        inner = stage_models.build(instructions.model, instructions.index).to(device())
        self.params = dict(inner.named_parameters())
        for name, param in self.params.items() if instructions.earlier else ():
            param.grad = frozen.clone(tensors[f"{instructions.name}.earlier.{name}"])
        self.module = _Watched(inner, [x for x, _ in self.batch], tells=not instructions.pages)
        group = instructions.group
        self.group = {} if group is None else {"group": groups[group]}
        self.values = ScheduleReply()

    @property
    def stage(self) -> Stage:
        model = self.instructions.model
        loss, count = stage_models.LOSSES[model["kind"]]
        shape = partial(stage_models.boundary, model["kind"], model["width"])
        return _Stage(self.instructions.index, model["stages"], self.module, shape, loss, count)

    def go(self, function: Any) -> None:
        rows = [[_Action(*action) for action in row] for row in self.instructions.actions]
        batch, before = list(self.batch), begun_and_waited()[0]
        self.measure(BASE)
        self.returned = function(self.stage, rows, batch, **self.group)
        self.measure(END)
        self.values.begun = before, begun_and_waited()[0]
        self.values.events, self.values.inputs = self.module.events, self.module.inputs

    def measure(self, moment: str) -> None:
        if self.instructions.pages:
            measured(f"{self.instructions.name}.pages.{moment}")

    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors of the reply, all of them in the shape that was agreed."""
        results: dict[str, Any] = {f"grad.{name}": p.grad for name, p in self.params.items()}
        results["losses"] = self.losses()
        return as_agreed(results, self.instructions.expects, self.values.misfits)

    def losses(self) -> torch.Tensor | None:
        """The parts of the loss, where there is a number for each microbatch; numbers may be tensors."""
        if not isinstance(self.returned, dict):
            self.values.other = type(self.returned).__name__
            return None
        self.values.returned = plain(list(self.returned))
        parts = [self.returned.get(k) for k in range(len(self.batch))]
        try:
            return frozen.stack([_as_tensor(part, dtype=torch.float64).reshape(()) for part in parts])
        except (TypeError, ValueError, RuntimeError):  # a misfit describes what came
            return None
