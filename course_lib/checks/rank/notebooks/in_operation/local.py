"""Recipe (see `harness`): a toy model is trained by local steps, and its parameters go back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from course_lib.checks.rank import frozen, toys
from course_lib.checks.rank.training import TrainingInstructions, keywords
from course_lib.runtime.backend import device

_optimizers = {name: getattr(torch.optim, name) for name in ("SGD", "AdamW")}


@dataclass
class LocalReply:
    """Nothing beside the tensors "end.NAME"."""


@dataclass(frozen=True)
class LocalInstructions(TrainingInstructions):
    """See `TrainingInstructions`: one microbatch in each step. outer: learning rate and momentum."""

    steps_between: int = 1
    outer: tuple[float, float] = (1.0, 0.0)


class Loss(nn.Module):
    """`model(batch)`: the mean loss of (inputs, targets)."""

    def __init__(self, toy: toys.Toy):
        super().__init__()
        self.toy = toy

    def forward(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        x, y = batch
        return frozen.mse_loss(self.toy(x), y)


def trained(
    objects: list, tensors: dict, groups: list, instructions: LocalInstructions
) -> tuple[LocalReply, dict[str, Any]]:
    """Call the first object once, for all steps."""
    toy = toys.build(instructions.model).to(device())
    named = dict(toy.named_parameters())
    dtype = next(iter(named.values())).dtype
    name, defaults = instructions.optimizer
    optimizer = _optimizers[name]([p for p in named.values() if p.requires_grad], **defaults)
    drawn = (toys.batch(step[0], dtype) for step in instructions.steps)
    batches = [(x.to(device()), y.to(device())) for x, y in drawn]
    outer = (instructions.steps_between, *instructions.outer)
    objects[0](Loss(toy), optimizer, batches, *outer, **keywords(instructions, groups))
    return LocalReply(), {f"end.{name}": frozen.clone(frozen.detach(p)) for name, p in named.items()}
