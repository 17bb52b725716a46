"""A case that trains a toy model with a student's class, and the tensors that must come back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from course_lib.checks.engine.case import Case, Line, RankSide, Spec
from course_lib.checks.engine.training import watching
from course_lib.checks.engine.training.single import Training

OPTIMIZERS = ("torch._dynamo",)  # the first optimizer of a process imports it
RECIPES = "course_lib.checks.engine.training.recipes"


def case(recipe: str, title: str, training: Training, lines: Sequence[Line], **more: Any) -> Case:
    """A run of `training` by one of the recipes ("replicas", "sharded_optimizer", "sharded_module")."""
    wanted = outputs(training)
    sides = [RankSide({}, training.instructions(r), wanted) for r in range(training.world_size)]
    watched = training.more.get("memory")
    return Case(
        title, sides, list(lines), recipe=f"{RECIPES}:{recipe}", imports=OPTIMIZERS,
        unrecorded=watching.settled(len(training.steps[0])) if watched else (), **more,
    )  # fmt: skip


def outputs(training: Training) -> dict[str, Spec]:
    """The tensors that a recipe hands back, see `recipes`."""
    model = training.built().to(training.dtype)
    tell, steps, found = set(training.tell), range(len(training.steps[0])), {}
    for name, p in model.named_parameters():
        names = [f"start.{name}"] if "start" in tell else []
        names += [f"grad.{s}.{name}" for s in steps if "grads" in tell and p.requires_grad]
        names += [f"param.{s}.{name}" for s in steps if "params" in tell]
        names += [f"end.{name}"] if "end" in tell else []
        found |= {one: Spec.of(p) for one in names}
    if "buffers" in tell:
        found |= {f"buffer.{name}": Spec.of(b) for name, b in model.named_buffers()}
    return found
