"""The work of a PipeDreamStage, in one process, and that of usual mistakes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor
from torch.func import functional_call

from course_lib.checks import kit
from course_lib.checks.rank.notebooks.pipeline import updates

SGD = ("SGD", {"lr": 0.1, "momentum": 0.9})
Tensors = dict[str, Tensor]
Order = Sequence[tuple[str, int]]


@dataclass(frozen=True)
class StashRun:
    """A stage, its actions and its inputs. kind: "first", "middle" or "last", see `updates.build`."""

    name: str
    kind: str
    seed: int
    actions: Order
    xs: Sequence[Tensor]
    gs: Sequence[Tensor]
    width: int = 6
    optimizer: tuple[str, dict] = SGD
    memory: bool = False
    known: dict[type[Trained], Tensors] = field(default_factory=dict)

    @property
    def described(self) -> dict:
        return {"kind": self.kind, "seed": self.seed, "width": self.width}

    @cached_property
    def wanted(self) -> Tensors:
        return Trained(self).tensors

    def trained(self, kind: type[Trained]) -> Tensors:
        """The tensors that a mistake gives; computed once."""
        if kind not in self.known:
            self.known[kind] = kind(self).tensors
        return self.known[kind]

    @property
    def nbytes(self) -> int:
        """Of the stage's parameters."""
        return sum(param.nbytes for param in updates.build(self.described).parameters())

    @property
    def side(self) -> kit.RankSide:
        inputs = {f"{self.name}.x.{k}": x for k, x in enumerate(self.xs)}
        inputs |= {f"{self.name}.g.{k}": g for k, g in enumerate(self.gs)}
        outputs = {name: kit.Spec.of(tensor) for name, tensor in self.wanted.items()}
        instructions = updates.StashRunInstructions(
            name=self.name, model=self.described, optimizer=list(self.optimizer),
            actions=[list(action) for action in self.actions], memory=self.memory,
            expects={name: spec.agreed() for name, spec in outputs.items()},
        )  # fmt: skip
        named = {f"{self.name}.{name}": spec for name, spec in outputs.items()}
        return kit.RankSide(inputs, updates.StashInstructions([instructions]), named)


class Trained:
    """The stage in one process; mistakes override its methods.

    tensors: "y.0" (an output), "dx.0" (the gradient of its input), "p.0.NAME" (the weights after that
    backward), in the order in which they come about.
    """

    def __init__(self, run: StashRun):
        self.run, self.tensors = run, {}
        self.module = updates.build(run.described)
        self.optimizer = getattr(torch.optim, run.optimizer[0])(self.module.parameters(), **run.optimizer[1])
        self.first = self.newest()
        self.versions: dict[int, Tensors] = {}
        for kind, k in run.actions:
            self.forward(k) if kind == "F" else self.backward(k)

    def newest(self) -> Tensors:
        return {name: p.detach().clone() for name, p in self.module.named_parameters()}

    def forward(self, k: int) -> None:
        self.versions[k] = self.for_forward(k)
        self.tensors[f"y.{k}"] = self.outputs(k, self.versions[k])[0].detach()

    def outputs(self, k: int, weights: Tensors) -> tuple[Tensor, Tensor, Tensors]:
        """Output, input and weights, with a graph."""
        leaves = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
        x = self.run.xs[k].clone()
        if x.is_floating_point():
            x.requires_grad_()
        return functional_call(self.module, leaves, (x,)), x, leaves

    def backward(self, k: int) -> None:
        y, x, leaves = self.outputs(k, self.for_backward(k))
        gradient = self.run.gs[k] if self.run.gs else None
        torch.autograd.backward((y,), (gradient,))
        if x.grad is not None:
            self.tensors[f"dx.{k}"] = x.grad
        for name, param in self.module.named_parameters():
            grad = leaves[name].grad
            assert grad is not None
            param.grad = grad if param.grad is None else param.grad + grad
        self.step(k)
        self.tensors |= {f"p.{k}.{name}": weight for name, weight in self.newest().items()}

    # ---- what mistakes change

    def for_forward(self, k: int) -> Tensors:
        return self.newest()

    def for_backward(self, k: int) -> Tensors:
        return self.versions[k]

    def step(self, k: int) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()


class NoVersions(Trained):
    """The gradient is that of the newest weights."""

    def for_backward(self, k: int) -> Tensors:
        return self.newest()


class OnlyFirst(Trained):
    """The weights that were there at first are used for ever."""

    def for_forward(self, k: int) -> Tensors:
        return self.first


class FromOld(Trained):
    """The step begins at the weights that the forward saw."""

    def step(self, k: int) -> None:
        with torch.no_grad():
            for name, param in self.module.named_parameters():
                param.copy_(self.versions[k][name])
        super().step(k)


class Accumulating(Trained):
    """Gradients are never cleared."""

    def step(self, k: int) -> None:
        self.optimizer.step()


class NoStep(Trained):
    """No step, until all is over."""

    def step(self, k: int) -> None:
        if k == self.run.actions[-1][1]:
            super().step(k)


class Never(Trained):
    """No step that has a gradient."""

    def step(self, k: int) -> None:
        self.optimizer.zero_grad()


class Late(Trained):
    """The step comes before the gradient is handed over: each takes that of the backward before."""

    before: Sequence[Tensor | None] = ()

    def step(self, k: int) -> None:
        parameters = list(self.module.parameters())
        came = [param.grad for param in parameters]
        for index, param in enumerate(parameters):
            param.grad = self.before[index] if self.before else None
        self.before = came
        super().step(k)


class OnlyLatest(Trained):
    """One version, of the latest forward: the gradients of the versions that it replaced are lost."""

    def forward(self, k: int) -> None:
        super().forward(k)
        self.latest = k

    def step(self, k: int) -> None:
        if k != self.latest:
            self.optimizer.zero_grad()
        super().step(k)


class NewOptimizer(Trained):
    """A new optimizer for each step."""

    def step(self, k: int) -> None:
        self.optimizer = type(self.optimizer)(self.module.parameters(), **self.run.optimizer[1])
        super().step(k)


class Twice(Trained):
    """Two steps with one gradient."""

    def step(self, k: int) -> None:
        self.optimizer.step()
        super().step(k)


SLIPS: dict[str, type[Trained]] = {
    "The gradient is the gradient of the newest weights, which this microbatch's forward has not seen. "
    "Keep the version it saw, and go backward through this version.": NoVersions,
    "Every forward sees the weights that were there at first. A new microbatch sees the newest.": OnlyFirst,
    "The step was taken from the weights that this microbatch's forward saw, and the updates since then are "
    "lost. Step the newest, with the old version's gradient.": FromOld,
    "The gradients of earlier backwards are still there. Clear them after a step (zero_grad).": Accumulating,
    "The weights changed only at the end, as with a flush, but PipeDream steps after each backward.": NoStep,
    "The weights never change. After a backward the module's parameters get the version's gradients "
    "(param.grad), and then the optimizer steps. A version needs requires_grad_() to have any.": Never,
    "Each step took the gradient of the backward before it. First hand the gradients over, then step.": Late,
    "Only the version of the latest forward hands over its gradients. Keep a version for each microbatch in "
    "flight, and hand over the gradients of the version that this microbatch's forward used.": OnlyLatest,
    "The optimizer's momentum begins again with each step, but the optimizer you were given keeps it.": (
        NewOptimizer
    ),
    "Each gradient was stepped twice.": Twice,
}
# The mistakes of which every gradient is that of the weights that the forward saw, stepped into the newest.
WITH_THE_POINT = (Accumulating, Late, NewOptimizer, Twice)
