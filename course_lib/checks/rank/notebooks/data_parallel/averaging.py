"""Recipes (see `harness`) for objects that average gradients and remember something from step to step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from course_lib.checks.rank import frozen
from course_lib.checks.rank.training import Session, TrainingInstructions, TrainingReply, keywords
from course_lib.checks.wire import Instructions


@dataclass(frozen=True)
class AveragedInstructions(Instructions):
    """steps: the names of each step's gradients among the tensors; kwargs: of the object; group: which of the
    case's groups it gets; None: not passed.
    """

    steps: list[list[str]]
    kwargs: dict[str, Any]
    group: int | None = None


@dataclass(frozen=True)
class OptimizerInstructions(TrainingInstructions):
    """object: which of the objects is the optimizer."""

    object: int = 0


def averaged(
    objects: list, tensors: dict[str, torch.Tensor], groups: list, instructions: AveragedInstructions
) -> tuple[dict[str, None], dict[str, Any]]:
    """Make the first object, and call its `all_reduce(gradients)` in each step; the gradients go back."""
    made = objects[0](**keywords(instructions, groups))
    outputs = {}
    for names in instructions.steps:
        gradients = [tensors[name] for name in names]
        made.all_reduce(gradients)
        # copies: an object may keep the tensor itself and write to it in a later step
        outputs |= {name: frozen.clone(frozen.detach(tensors[name])) for name in names}
    return {}, outputs


def averaging_optimizer(
    objects: list, tensors: dict[str, torch.Tensor], groups: list, instructions: OptimizerInstructions
) -> tuple[TrainingReply, dict[str, Any]]:
    """An optimizer that averages gradients itself."""
    session = Session(instructions)
    made = objects[instructions.object]
    optimizer = made(list(session.named.values()), **keywords(instructions, groups))
    session.started()
    for step in range(len(instructions.steps)):
        session.accumulate(step, session.model, None)
        optimizer.step()
        for p in session.named.values():
            p.grad = None
        session.stepped(step)
    return session.reply()
