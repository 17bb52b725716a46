"""A stage: the layers of a model that one rank runs between two messages. `gpt.py` cuts a GPT into stages.

Parameters held by several stages must stay equal in all of them. These are the tied embedding of the first
stage and the head of the last, and all parameters if the schedule has two copies of the model (DualPipe). A
stage lists the parameters it shares, and with which ranks. `shared.py` adds up the gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .shared import Shared

Loss = Callable[[Tensor, Tensor], Tensor]


def summed_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """The sum of the cross-entropies of (batch, seq, vocab) with (batch, seq); -100 does not count."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")


def counted(targets: Tensor) -> Tensor:
    """The number of targets that count."""
    return (targets != -100).sum()


@dataclass
class Stage:
    """One stage, on the rank that holds it.

    index: its number in the schedule.
    length, copies: how many stages a copy of the model has, and how many copies there are (2 for DualPipe),
        so `index % length` is the stage's place in its copy.
    module: takes one tensor, the output of the stage before or, in the first stage, the microbatch's inputs,
        and returns one tensor, which in the last stage is the output that `loss` takes.
    shape: a function of a microbatch's inputs that gives the shape of the tensors sent from stage to stage.
        Their dtype is the dtype of the module's parameters.
    loss, count: the sum of the losses, a function of output and targets, and the number of its terms, a
        function of the targets. Both get the targets of the whole sequence. If the stage works on a part of
        it, `loss` is the sum over this part, but `count` still counts the whole, so the ranks' results add up
        to the mean.
    shared: the parameters that other stages also hold, by a name used by all of them.
    """

    index: int
    length: int
    module: nn.Module
    shape: Callable[[Tensor], Sequence[int]]
    loss: Callable[[Tensor, Tensor], Tensor] = summed_loss
    count: Callable[[Tensor], Tensor] = counted
    shared: dict[str, Shared] = field(default_factory=dict)
    copies: int = 1

    @property
    def first(self) -> bool:
        return self.index % self.length == 0

    @property
    def last(self) -> bool:
        return (self.index + 1) % self.length == 0

    @property
    def dtype(self) -> torch.dtype:
        return next(self.module.parameters()).dtype
