"""Recipes (see `harness`) for objects that average gradients and remember something from step to step."""

from __future__ import annotations

from typing import Any

import torch

from course_lib.checks.rank.training import Session, TrainingReply, keywords

_clone, _detach = torch.clone, torch.Tensor.detach


def averaged(
    objects: list, tensors: dict[str, torch.Tensor], groups: list, instructions: dict
) -> tuple[dict[str, None], dict[str, Any]]:
    """Make the first object, and call its `all_reduce(gradients)` in each step; the gradients go back.

    instructions: steps, the names of each step's gradients among `tensors`; kwargs of the object; group,
    which of the case's groups it gets. A rank without "steps" takes no part.
    """
    if "steps" not in instructions:
        return {}, {}
    made = objects[0](**keywords(instructions, groups))
    outputs = {}
    for names in instructions["steps"]:
        gradients = [tensors[name] for name in names]
        made.all_reduce(gradients)
        # copies: an object may keep the tensor itself and write to it in a later step
        outputs |= {name: _clone(_detach(tensors[name])) for name in names}
    return {}, outputs


def averaging_optimizer(
    objects: list, tensors: dict[str, torch.Tensor], groups: list, instructions: dict
) -> tuple[TrainingReply, dict[str, Any]]:
    """An optimizer that averages gradients itself; instructions: as in `training`, and `object`."""
    if "steps" not in instructions:
        return TrainingReply(), {}
    session = Session(instructions)
    made = objects[instructions["object"]]
    optimizer = made(list(session.named.values()), **keywords(instructions, groups))
    session.started()
    for step in range(len(instructions["steps"])):
        session.accumulate(step, session.model, None)
        optimizer.step()
        for p in session.named.values():
            p.grad = None
        session.stepped(step)
    return session.reply()
