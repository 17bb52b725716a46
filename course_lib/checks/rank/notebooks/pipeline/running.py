"""Recipe (see `harness`) that runs schedules with a student's function, and reports the results.

instructions: runs, a list of

    name       the prefix of all names in the reply
    model      description (see `models`) of the stages
    index      this rank's stage
    actions    for each rank the list of its actions, each [stage, kind, microbatch]
    batch      how many microbatches; their tensors are "name.x.0", "name.t.0" and so on
    earlier    whether parameters have gradients before: "name.earlier.linear.weight" and so on
    pages      where the process is measured from outside, as "NAME.pages.base" before the call and as
               "NAME.pages.end" after it: about the shape of a microbatch, else []. Nothing is told of
               inputs then
    group      which of the case's groups is passed as group=
    expects    {name: [dtype, shape]} of the tensors in the reply

A rank without "runs" takes no part. The reply for the run "a" has the tensors "a.losses" (on the last stage,
one for each microbatch) and "a.grad.linear.weight" and so on; and values["a"] is a `Told`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from course_lib.checks.rank import watching
from course_lib.checks.rank.harness import plain
from course_lib.checks.rank.notebooks.pipeline import stages as models
from course_lib.checks.rank.notebooks.pipeline.watching import Event, Watched
from course_lib.checks.rank.watching import begun_and_waited, measured
from course_lib.checks.wire import Count
from course_lib.pipeline.actions import Action
from course_lib.pipeline.stage import Stage
from course_lib.runtime.backend import device
from course_lib.runtime.moments import BASE, START

END = "end"
_Tensor, _Stage, _Action, _Watched = torch.Tensor, Stage, Action, Watched
_clone, _detach, _zeros, _stack = torch.clone, torch.Tensor.detach, torch.zeros, torch.stack
_as_tensor = torch.as_tensor


@dataclass
class Told:
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


def warm_up(given: dict) -> None:
    """Before the student's objects are read: the memory that they take from then on counts, see `Moments`.

    Each size is computed once, as libraries take buffers at the first product that is as large.
    """
    wide = [described for described in given.get("runs", ()) if described["pages"]]
    if not wide:
        return
    watching.give_back_at_once()
    for described in wide:
        models.once(described["model"], described["index"], described["pages"], device())
    measured(START)


def schedules(
    objects: list, tensors: dict[str, torch.Tensor], groups: list, given: dict
) -> tuple[dict[str, Told], dict[str, Any]]:
    """Every run of the instructions, one after the other."""
    values, found = {}, {}
    for described in given.get("runs", ()):
        run = Run(described, tensors, groups)
        run.go(objects[0])
        values[described["name"]] = run.values
        found |= {f"{described['name']}.{name}": one for name, one in run.told().items()}
    return values, found


class Run:
    """One schedule, with this rank's stage."""

    def __init__(self, given: dict, tensors: dict[str, torch.Tensor], groups: list):
        self.given = given
        self.batch = [
            (tensors[f"{given['name']}.x.{k}"], tensors[f"{given['name']}.t.{k}"])
            for k in range(given["batch"])
        ]
        inner = models.build(given["model"], given["index"]).to(device())
        self.params = dict(inner.named_parameters())
        for name, param in self.params.items() if given["earlier"] else ():
            param.grad = _clone(tensors[f"{given['name']}.earlier.{name}"])
        self.module = _Watched(inner, [x for x, _ in self.batch], tells=not given["pages"])
        self.group = {"group": groups[given["group"]]} if "group" in given else {}
        self.values = Told()

    @property
    def stage(self) -> Stage:
        model = self.given["model"]
        loss, count = models.LOSSES[model["kind"]]
        shape = partial(models.boundary, model["kind"], model["width"])
        return _Stage(self.given["index"], model["stages"], self.module, shape, loss, count)

    def go(self, function: Any) -> None:
        rows = [[_Action(*one) for one in row] for row in self.given["actions"]]
        batch, before = list(self.batch), begun_and_waited()[0]
        self.measure(BASE)
        self.returned = function(self.stage, rows, batch, **self.group)
        self.measure(END)
        self.values.begun = before, begun_and_waited()[0]
        self.values.events, self.values.inputs = self.module.events, self.module.inputs

    def measure(self, moment: str) -> None:
        if self.given["pages"]:
            measured(f"{self.given['name']}.pages.{moment}")

    def told(self) -> dict[str, torch.Tensor]:
        """The tensors of the reply, all of them in the shape that was agreed."""
        found: dict[str, Any] = {f"grad.{name}": p.grad for name, p in self.params.items()}
        found["losses"] = self.losses()
        sent = {}
        for name, (kind, shape) in self.given["expects"].items():
            dtype, one = getattr(torch, kind), found.get(name)
            if not isinstance(one, _Tensor) or (one.dtype, list(one.shape)) != (dtype, shape):
                self.values.misfits[name] = "None" if one is None else type_of(one)
                one = _zeros(shape, dtype=dtype)
            sent[name] = _clone(_detach(one))
        return sent

    def losses(self) -> torch.Tensor | None:
        """The parts of the loss, where there is a number for each microbatch; numbers may be tensors."""
        if not isinstance(self.returned, dict):
            self.values.other = type(self.returned).__name__
            return None
        self.values.returned = plain(list(self.returned))
        parts = [self.returned.get(k) for k in range(len(self.batch))]
        try:
            return _stack([_as_tensor(one, dtype=torch.float64).reshape(()) for one in parts])
        except (TypeError, ValueError, RuntimeError):  # a misfit describes what came
            return None


def type_of(one: Any) -> str:
    if isinstance(one, _Tensor):
        return f"{str(one.dtype)[6:]}{list(one.shape)}"
    return type(one).__name__
