"""Clipping by the global norm, when each rank holds a piece of every gradient.

The square of a norm is a sum over elements, so the pieces' squares add up: each rank has to send only one
number. Source: Pascanu, Mikolov, Bengio, "On the difficulty of training recurrent neural
networks", ICML 2013, section 3.2 (clipping); `torch.nn.utils.clip_grad_norm_` (the 1e-6).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor

TINY = 1e-6  # PyTorch's, so that a norm of zero can be divided by


@torch.no_grad()
def clip_grad_norm_(
    shards: Iterable[Tensor],
    max_norm: float,
    group: dist.ProcessGroup | None = None,
    replica_group: dist.ProcessGroup | None = None,
) -> float:
    """Scale all gradients by min(1, max_norm / norm), in which norm is that of the whole gradient.

    shards: this rank's pieces of the parameters, with their pieces of the gradients in `.grad`; a `.grad`
    that is None counts as zeros. The ranks of `group` (None: all) hold the other pieces.
    replica_group: the ranks that hold the same pieces as this one, after their gradients were averaged;
    these pieces count once, so that nothing is sent to those ranks.
    Returns the norm before the scaling, the same on every rank of the group. Each rank sends 2 (N-1)/N
    times 4 bytes in one all-reduce.
    """
    shards = list(shards)
    gradients = [shard.grad for shard in shards if shard.grad is not None]
    squares = torch.zeros((), device=shards[0].device)  # float32: 16 bits would lose small pieces
    for gradient in gradients:
        squares += gradient.float().square().sum()
    dist.all_reduce(squares, group=group)  # a rank without any gradient takes part as well
    norm = float(squares.sqrt())
    factor = max_norm / (norm + TINY)
    if factor < 1:  # a norm below max_norm stays as it is
        for gradient in gradients:
            gradient.mul_(factor)
    return norm
