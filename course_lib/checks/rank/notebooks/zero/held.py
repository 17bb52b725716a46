"""A recipe (see `harness`) that measures how much a rank holds of a unit between its uses. Decides nothing.

Its parameters and gradients have some MB, so that a copy of them shows among the pages of the process,
wherever a class keeps it. They are drawn here, from seeds, and nothing else holds on to them: the harness
would hold an input.

At the moments of MOMENTS the rank is measured from outside as "held.MOMENT". The reply has a
`UnitMemoryReply`, and the tensors "shard", "mean" (its gradient) and "some.K", every SOME-th element of a
parameter that was gathered.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from course_lib.checks.rank import frozen, watching
from course_lib.checks.rank.counting import alive, more
from course_lib.checks.rank.memory import Patience
from course_lib.checks.rank.notebooks.zero.sharded import storages
from course_lib.checks.wire import Count, Instructions
from course_lib.runtime.backend import device
from course_lib.runtime.moments import BASE, START

MOMENTS = ("made", "freed", "reduced", "end")
SOME = 499  # a prime: in every row of a matrix it is another column
_flatten = torch.Tensor.flatten
_contiguous = torch.contiguous_format


@dataclass
class UnitMemoryReply:
    """The reply about a unit.

    alive, behind: at each moment the bytes of the tensors that Python code can reach, and those behind the
    parameters; begun: at each moment, the operations begun so far; whole: whether gather() always gave the
    parameters their shapes and memory; left: how many parameters had a .grad after reduce(); shard: whether
    it is a parameter, and is trained.
    """

    alive: dict[str, Count] = field(default_factory=dict)
    behind: dict[str, Count] = field(default_factory=dict)
    begun: dict[str, Count] = field(default_factory=dict)
    whole: bool = True
    left: Count = 0
    shard: tuple[bool, bool] = (False, False)


def drawn(seed: int, shapes: Sequence[Sequence[int]]) -> Iterator[torch.Tensor]:
    """Numbers between 0 and 1, the same for the same seed; one tensor at a time."""
    generator = frozen.Generator().manual_seed(seed)
    for shape in shapes:
        yield frozen.rand(tuple(shape), generator=generator, dtype=torch.float64)


def count_of_some(shape: Sequence[int]) -> int:
    """How many elements of a parameter of that shape go back."""
    return len(range(0, math.prod(shape), SOME))


@dataclass(frozen=True)
class UnitMemoryInstructions(Instructions):
    """shapes: of the parameters; params, grads: the seeds of their values."""

    shapes: list[list[int]]
    params: int
    grads: int


def warm_up(instructions: UnitMemoryInstructions) -> None:
    """Memory that libraries allocate once, at their first use, must not count as the class's."""
    watching.give_back_at_once()
    watching.settle(watching.WARM)
    watching.measured(START)


class Unit:
    """A student's unit, its parameters, and the reply about them."""

    def __init__(self, made: Any, instructions: UnitMemoryInstructions):
        self.shapes = [tuple(shape) for shape in instructions.shapes]
        self.patience = Patience(instructions.enough)
        self.values = UnitMemoryReply()
        self.before = alive()
        watching.measured(BASE)
        self.params = [frozen.Parameter(p.to(device())) for p in drawn(instructions.params, self.shapes)]
        self.unit = made(list(self.params))

    def moment(self, when: str) -> None:
        """Measured. `alive` first collects objects without references."""
        watching.settle()
        self.values.alive[when] = self.patience.measured(f"alive.{when}", lambda: more(alive(), self.before))
        self.values.begun[when] = watching.begun_and_waited()[0]
        watching.measured(f"held.{when}")
        self.values.behind[when] = storages(self.params)

    def gathered(self) -> bool:
        """gather(): whether every parameter has its shape now, and memory for it."""
        self.unit.gather()
        there = all(
            tuple(p.shape) == shape and p.untyped_storage().nbytes() >= p.nbytes
            for p, shape in zip(self.params, self.shapes, strict=True)
        )
        self.values.whole = self.values.whole and there
        return there

    def reduced(self, seed: int) -> None:
        """Gradients arrive, and reduce()."""
        for p, gradient in zip(self.params, drawn(seed, self.shapes), strict=True):
            p.grad = gradient.to(device())
        del gradient
        self.unit.reduce()
        self.values.left = sum(p.grad is not None for p in self.params)

    def some(self) -> dict[str, torch.Tensor]:
        """Some elements of every gathered parameter."""
        return {
            f"some.{k}": frozen.clone(_flatten(frozen.detach(p))[::SOME], memory_format=_contiguous)
            for k, p in enumerate(self.params)
        }


def unit(
    objects: list, tensors: dict, groups: list, instructions: UnitMemoryInstructions
) -> tuple[UnitMemoryReply, dict[str, Any]]:
    """A unit is made, gathered and freed, gathered and reduced and freed; its values are told after that."""
    driven = Unit(objects[0], instructions)
    made = driven.unit
    driven.moment("made")
    driven.gathered()
    made.free()
    driven.moment("freed")
    if driven.gathered():
        driven.reduced(instructions.grads)
    driven.moment("reduced")
    made.free()
    driven.moment("end")
    shard = made.shard
    driven.values.shard = isinstance(shard, frozen.Parameter), bool(shard.requires_grad)
    kept = frozen.clone(frozen.detach(shard))
    mean = frozen.zeros_like(kept) if shard.grad is None else frozen.clone(frozen.detach(shard.grad))
    outputs = {"shard": kept, "mean": mean}
    if driven.gathered():
        return driven.values, outputs | driven.some()
    nothing = (frozen.zeros(count_of_some(shape), dtype=torch.float64) for shape in driven.shapes)
    return driven.values, outputs | {f"some.{k}": zeros for k, zeros in enumerate(nothing)}
