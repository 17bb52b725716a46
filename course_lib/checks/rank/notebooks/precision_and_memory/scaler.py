"""Recipe (see `harness`) that drives a `LossScaler`: scripts of steps, each with a scaler of its own.

The tensor "name.STEP.PARAM" is the parameter's gradient of the loss in that step; one that is missing has
none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.checks.rank import frozen
from course_lib.checks.rank.backward import type_of
from course_lib.checks.rank.harness import describe, plain
from course_lib.checks.wire import Instructions, Place

_ones = torch.ones
_SGD = torch.optim.SGD
MOMENTUM = 0.5
LARGEST = 1e300  # sent for a number that is not finite


@dataclass
class StepReply:
    """The reply about a step.

    scale: of a loss of 1, before it; unscaled: the gradients after `unscale_`, or after both of two calls,
    if the caller unscales; refused: of two calls, whether the second raised RuntimeError; returned: by
    `step`; params: after it.
    """

    scale: float
    unscaled: list[list[float]] = field(default_factory=list)
    refused: bool = True
    returned: Any = None
    params: list[list[float]] = field(default_factory=list)


@dataclass
class ScalerReply:
    """The reply about a script. misfit: the type of a scaled loss that is not a tensor without dimensions;
    losses: those of 1, after `scale_loss`; last: the scale after the last step."""

    error: Place | None = None
    misfit: str = ""
    losses: list[float] = field(default_factory=list)
    last: float = 0.0
    steps: list[StepReply] = field(default_factory=list)


@dataclass(frozen=True)
class ScriptInstructions:
    """One script.

    name      of the script
    options   arguments of the scaler
    group     index of the group that is passed as group=; None: none is
    params    how many parameters there are, the tensors "name.p0" and so on
    first     how many of them are in the optimizer's first group
    steps     what the caller does between backward and step: "" nothing, "clip" unscales and halves the
              gradients, "twice" unscales twice
    """

    name: str
    options: dict[str, Any]
    group: int | None
    params: int
    first: int
    steps: list[str]


@dataclass(frozen=True)
class ScalerInstructions(Instructions):
    scripts: list[ScriptInstructions]

    def parts(self) -> list[str]:
        return [script.name for script in self.scripts]


class Misfit(Exception):
    """A scaled loss that is not a tensor."""


class Script:
    """One scaler, with an optimizer over the script's parameters."""

    def __init__(self, made: Any, described: ScriptInstructions, tensors: dict[str, Tensor], groups: list):
        self.name, self.plan, self.tensors = described.name, described.steps, tensors
        options = dict(described.options)
        if described.group is not None:
            options["group"] = groups[described.group]
        count, first = described.params, described.first
        self.params = [nn.Parameter(frozen.clone(tensors[f"{self.name}.p{k}"])) for k in range(count)]
        parts = [{"params": self.params[:first]}, {"params": self.params[first:]}]
        self.optimizer = _SGD([part for part in parts if part["params"]], lr=1.0, momentum=MOMENTUM)
        self.reply = ScalerReply()
        self.options, self.made = options, made

    def go(self) -> None:
        scaler = self.made(**self.options)
        for number, caller in enumerate(self.plan):
            self.reply.steps.append(self.step(scaler, number, caller))
        self.reply.last = self.scale_of(scaler)

    def scale_of(self, scaler: Any) -> float:
        loss = _ones(())
        scaled = frozen.clone(self.scaled(scaler, loss))
        self.reply.losses.append(finite(float(loss)))
        return finite(float(scaled))

    def scaled(self, scaler: Any, loss: Tensor) -> Tensor:
        result = scaler.scale_loss(loss)
        if not isinstance(result, frozen.Tensor) or result.dim():
            self.reply.misfit = type_of(result)
            raise Misfit
        return result

    def step(self, scaler: Any, number: int, caller: str) -> StepReply:
        reply = StepReply(self.scale_of(scaler))
        self.optimizer.zero_grad()
        loss = frozen.zeros(())
        for k, param in enumerate(self.params):
            slope = self.tensors.get(f"{self.name}.{number}.{k}")
            if slope is not None:
                loss = loss + (param * slope).sum()
        scaled = self.scaled(scaler, loss)
        if loss.requires_grad:
            scaled.backward()
        if caller:
            scaler.unscale_(self.optimizer)
        if caller == "twice":
            try:
                scaler.unscale_(self.optimizer)
                reply.refused = False
            except RuntimeError:
                reply.refused = True
        if caller:
            reply.unscaled = [listed(param.grad) for param in self.params]
        if caller == "clip":
            with frozen.no_grad():
                for param in self.params:
                    if param.grad is not None:
                        param.grad.mul_(0.5)
        reply.returned = plain(scaler.step(self.optimizer))
        scaler.update()
        reply.params = [listed(param) for param in self.params]
        return reply


def listed(tensor: Tensor | None) -> list[float]:
    return [] if tensor is None else [finite(float(value)) for value in frozen.detach(tensor).flatten()]


def finite(value: float) -> float:
    return value if math.isfinite(value) else LARGEST


def scripts(
    objects: list, tensors: dict[str, torch.Tensor], groups: list, instructions: ScalerInstructions
) -> tuple[dict[str, ScalerReply], dict[str, Any]]:
    """Every script of the instructions, one after the other."""
    values: dict[str, ScalerReply] = {}
    for described in instructions.scripts:
        script = Script(objects[0], described, tensors, groups)
        try:
            script.go()
        except Misfit:
            pass  # the reply says so
        except Exception as error:
            stub = isinstance(error, NotImplementedError) and not values and not str(error)
            if stub or dist.get_world_size() > 1:  # the others would wait for this rank
                raise
            script.reply.error = describe(error)
        values[described.name] = script.reply
    return values, {}
