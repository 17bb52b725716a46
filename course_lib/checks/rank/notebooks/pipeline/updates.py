"""Recipe (see `harness`) that drives a stage which is updated after each backward, in one process.

Inputs of the run "a" are "a.x.0" and so on, and "a.g.0", the gradient of that microbatch's output, if it
is not a loss. The reply has the tensors "a.y.0" (an output), "a.dx.0" (the result of its backward),
"a.p.0.NAME" (the module's parameters after that backward); and values["a"] is a `StashReply`.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.checks.rank import frozen
from course_lib.checks.rank.agreed import Expects, as_agreed
from course_lib.checks.rank.counting import alive, more, pieces
from course_lib.checks.rank.notebooks.pipeline.stage_models import DEVIATION, Layers
from course_lib.checks.wire import Count, Instructions

_freeze = gc.freeze
_optimizers = {name: getattr(torch.optim, name) for name in ("SGD", "Adam")}


@dataclass
class StashReply:
    """The reply about a run.

    held: bytes of tensors after each action, beside those that were there before the class; misfits: {name:
    text} of a tensor that came in another shape or not at all, with zeros in its place.
    """

    held: list[Count] = field(default_factory=list)
    misfits: dict[str, str] = field(default_factory=dict)


class Score(nn.Module):
    """The mean of squares: the loss at the end of the last stage."""

    def forward(self, x: Tensor) -> Tensor:
        return x.square().mean()


def build(described: dict) -> nn.Module:
    """Two layers in float64: the "first" stage, which looks up tokens, a "middle" one, or the "last" one,
    whose output is the loss. The caller's random state is left as it was."""
    kind, width = described["kind"], described["width"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(described["seed"])
        layers: list[nn.Module] = [Layers(width, kind == "first", False), Layers(width, False, False)]
        module = nn.Sequential(*layers, *([Score()] if kind == "last" else [])).double()
        with torch.no_grad():
            for param in module.parameters():
                param.normal_(std=DEVIATION)
    return module


@dataclass(frozen=True)
class StashRunInstructions:
    """One run.

    name       the prefix of all names in the reply
    model      {"kind", "seed", "width"} of the stage, see `build`
    optimizer  [name in torch.optim, keyword arguments]
    actions    the stage's actions in order: a list of [kind, microbatch]
    memory     whether memory is looked at after each action
    expects    {name: [dtype, shape]} of the tensors in the reply
    """

    name: str
    model: dict[str, Any]
    optimizer: list[Any]
    actions: list[list[Any]]
    memory: bool
    expects: Expects


@dataclass(frozen=True)
class StashInstructions(Instructions):
    runs: list[StashRunInstructions]

    def parts(self) -> list[str]:
        return [run.name for run in self.runs]


def updates(
    objects: list, tensors: dict[str, Tensor], groups: list, instructions: StashInstructions
) -> tuple[dict[str, StashReply], dict[str, Any]]:
    """Every run of the instructions, one after the other."""
    values, outputs = {}, {}
    for described in instructions.runs:
        run = StashOnRank(described, tensors)
        run.go(objects[0])
        values[described.name] = run.values
        outputs |= {f"{described.name}.{name}": tensor for name, tensor in run.tensors().items()}
    return values, outputs


class StashOnRank:
    """One stage, driven through its actions."""

    def __init__(self, instructions: StashRunInstructions, tensors: dict[str, Tensor]):
        self.instructions, self.sent = instructions, tensors
        self.results: dict[str, Any] = {}
        self.values = StashReply()

    def go(self, kind_of_stage: Any) -> None:
        module = build(self.instructions.model)
        name, defaults = self.instructions.optimizer
        optimizer = _optimizers[name](module.parameters(), **defaults)
        if self.instructions.memory:
            _freeze()  # only tensors from here on count
        stage = kind_of_stage(module, optimizer)
        for kind, k in self.instructions.actions:
            if kind == "F":
                self.results[f"y.{k}"] = copied(stage.forward(k, self.incoming(k)))
            else:
                gradient = self.tensor(f"g.{k}")
                gradients = () if gradient is None else (frozen.clone(gradient),)
                self.results[f"dx.{k}"] = copied(stage.backward(k, *gradients))
                for called, param in module.named_parameters():
                    self.results[f"p.{k}.{called}"] = copied(param)
            if self.instructions.memory:
                self.values.held.append(more(alive(), pieces(self.known())))

    def incoming(self, k: int) -> Tensor:
        """The input of microbatch k as the stage before hands it over: a copy, and with a graph unless it
        consists of tokens."""
        x = frozen.clone(self.tensor(f"x.{k}"))
        if not frozen.is_floating_point(x):
            return x
        x.requires_grad = True
        return frozen.clone(x)

    def tensor(self, name: str) -> Any:
        return self.sent.get(f"{self.instructions.name}.{name}")

    def known(self) -> list[Tensor]:
        """The tensors that are kept here for the reply."""
        return [result for result in self.results.values() if isinstance(result, frozen.Tensor)]

    def tensors(self) -> dict[str, Tensor]:
        """The tensors of the reply, all of them in the shape that was agreed."""
        return as_agreed(self.results, self.instructions.expects, self.values.misfits, named=misfit)


def misfit(value: Any) -> str:
    return "None" if value is None else "another shape, dtype or type"


def copied(value: Any) -> Any:
    """A copy of a tensor as it is now; anything else as it is."""
    return frozen.clone(frozen.detach(value)) if isinstance(value, frozen.Tensor) else value
