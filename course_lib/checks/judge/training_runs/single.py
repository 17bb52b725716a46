"""The same training in one process, in float64: the standard for the ranks' results."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import nn

from course_lib.checks.rank import toys
from course_lib.checks.rank.training import TrainingInstructions

Tensors = dict[str, torch.Tensor]
Kind = TypeVar("Kind", bound=TrainingInstructions)
Gradient = Callable[[int, list[list[Tensors]]], Tensors]


@dataclass
class Training:
    """The parts of a run. steps[rank][step] is that rank's list of microbatches (see `toys.batch`).

    more: other fields of the recipe's instructions.
    """

    model: dict
    optimizer: tuple[str, dict]
    steps: Sequence[Sequence[Sequence[dict]]]
    tell: tuple[str, ...] = ("start", "grads", "params")
    more: dict = field(default_factory=dict)
    # the results of `train`, by its other arguments, and of `first_gradients`, by the rank
    known: dict[tuple[Gradient, int] | int, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def world_size(self) -> int:
        return len(self.steps)

    @property
    def dtype(self) -> torch.dtype:
        return getattr(torch, self.model.get("dtype", "float64"))

    def model_seed(self, rank: int) -> int:
        """Rank 0's model is the one that counts. No rank can derive another's seed from its own."""
        if rank == 0:
            return self.model["seed"]
        digest = hashlib.sha256(f"{self.model['seed']}/{rank}".encode()).digest()
        return int.from_bytes(digest[:6], "big")

    def instructions(self, rank: int, kind: type[Kind] = TrainingInstructions, **own: Any) -> Kind:
        """A rank's part. kind: the recipe's type; own: fields beside `more`."""
        fields = {
            "model": {**self.model, "seed": self.model_seed(rank)},
            "optimizer": list(self.optimizer),
            "steps": [list(step) for step in self.steps[rank]],
            "tell": list(self.tell),
        }
        return kind(**{**fields, **self.more, **own})

    def built(self, rank: int = 0) -> toys.Toy:
        model = {**self.model, "seed": self.model_seed(rank)}
        return toys.build(model).to(torch.float64)


def mean(step: int, all_gradients: list[list[Tensors]]) -> Tensors:
    """The mean of the ranks' gradients, each summed over its microbatches, as data parallelism must give it.

    all_gradients[rank][microbatch] holds gradients by name; a name that is missing counts as zeros.
    """
    names = {name: gradient for rank in all_gradients for micro in rank for name, gradient in micro.items()}
    zeros = {name: torch.zeros_like(gradient) for name, gradient in names.items()}
    for rank in all_gradients:
        for micro in rank:
            for name, gradient in micro.items():
                zeros[name] += gradient
    return {name: total / len(all_gradients) for name, total in zeros.items()}


def train(training: Training, gradient: Gradient = mean, start: int = 0) -> Tensors:
    """The tensors that every rank should hand back, in float64, by the names of `rank.training`.

    gradient: from the ranks' gradients to the one that the optimizer gets; another one than `mean` shows
    the result of a mistake. start: the rank whose model is trained. Computed once for each of these, since
    several lines of a case compare with it: the tensors are shared, and only to be read.
    """
    if (gradient, start) not in training.known:
        training.known[gradient, start] = trained(training, gradient, start)
    return training.known[gradient, start]


def first_gradients(training: Training, start: int) -> list[list[Tensors]]:
    """The ranks' gradients in the first step, which no mistake of that step changes: computed once."""
    if start not in training.known:
        training.known[start] = rank_gradients(training, training.built(start), 0)
    return training.known[start]


def rank_gradients(training: Training, model: toys.Toy, step: int) -> list[list[Tensors]]:
    """rank_gradients[rank][microbatch] holds gradients by name."""
    return [
        [gradients(model, described, len(rank[step])) for described in rank[step]] for rank in training.steps
    ]


def trained(training: Training, gradient: Gradient, start: int, steps: int | None = None) -> Tensors:
    """The result of `train`, computed anew and not kept. steps: how many are needed; all when left out."""
    model = training.built(start)
    named = dict(model.named_parameters())
    parameters = [p for p in named.values() if p.requires_grad]
    kind, defaults = training.optimizer
    optimizer = getattr(torch.optim, kind)(parameters, **defaults)
    tensors: Tensors = {f"start.{name}": p.detach().clone() for name, p in named.items()}
    for step in range(len(training.steps[0]) if steps is None else steps):
        all_gradients = rank_gradients(training, model, step) if step else first_gradients(training, start)
        result = gradient(step, all_gradients)
        for name, p in named.items():
            if p.requires_grad:
                p.grad = result.get(name)
                shown = p.grad if p.grad is not None else torch.zeros_like(p)
                tensors[f"grad.{step}.{name}"] = shown.detach().clone()
        optimizer.step()
        tensors |= {f"param.{step}.{name}": p.detach().clone() for name, p in named.items()}
    return tensors | {f"end.{name}": p.detach().clone() for name, p in named.items()}


def gradients(model: toys.Toy, described: dict, microbatches: int) -> Tensors:
    """Of one microbatch, by name; parameters that took no part are missing.

    Inputs are drawn as the ranks draw them, and parameters are rounded only at the start, so that a run in
    float32 differs by its own rounding alone.
    """
    x, y = toys.batch(described, torch.float64)
    model.zero_grad(set_to_none=True)
    (nn.functional.mse_loss(model(x), y) / microbatches).backward()
    named = dict(model.named_parameters())
    grads = {name: p.grad.clone() for name, p in named.items() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return grads
