"""A GPT whose MLPs are mixtures of experts; attention, norms and embeddings stay as they are, and shared."""

from __future__ import annotations

from typing import Any

import torch

from .all_to_all import Group
from .modules import MoE


def expert_gpt(
    model: Any,
    experts: int,
    k: int,
    group: Group = None,
    *,
    hidden: int | None = None,
    every: int = 1,
    balance: float = 0.0,
    tokens_group: Group = None,
) -> Any:
    """Exchange the MLP of every `every`-th block for a mixture, in place, and return the model.

    model: `course_lib.models.GPT`, or a model whose `blocks` have an `mlp` with a linear layer `down`.
    hidden: numbers inside an expert; None: as many as the MLP has. For the other arguments, see `MoE`. All
    ranks of `group` call it with their default generators in the same state, since each rank draws all
    experts.
    """
    for number, block in enumerate(model.blocks, 1):
        if number % every == 0:
            down = block.mlp.down
            mixture = MoE(
                down.out_features, hidden or down.in_features, experts, k, group,
                balance=balance, tokens_group=tokens_group,
            )  # fmt: skip
            with torch.no_grad():  # as the model draws what is added to the residual stream
                mixture.w2.div_((2 * len(model.blocks)) ** 0.5)
            block.mlp = mixture.to(down.weight.device, down.weight.dtype)
    return model
