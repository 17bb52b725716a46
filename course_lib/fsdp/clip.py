"""Clipping by the global norm, when each rank holds a piece of every gradient.

The square of a norm is a sum over elements, so the squares of the pieces add up, and each rank has to send
only one number. The same number says whether any rank has a gradient at all. Otherwise, a norm of 0 could
hide a mistake, such as clipping before backward, or shards that get their gradients later.

Source: Pascanu, Mikolov, Bengio, "On the difficulty of training recurrent neural
networks", ICML 2013, section 3.2 (clipping); `torch.nn.utils.clip_grad_norm_` (the 1e-6).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor

from .arguments import message_device

TINY = 1e-6  # as in PyTorch, so that a norm of zero can be divided by
# Sent instead of a sum of squares, since a sum is -0.0 only if all terms are (IEEE 754, section 6.3).
ABSENT = -0.0


@torch.no_grad()
def clip_grad_norm_(
    shards: Iterable[Tensor],
    max_norm: float,
    group: dist.ProcessGroup | None = None,
    replica_group: dist.ProcessGroup | None = None,
) -> float:
    """Scale all gradients by min(1, max_norm / norm), where norm is the norm of the whole gradient.

    shards: this rank's pieces of the parameters, with their pieces of the gradients in `.grad`; None counts
    as zeros. The ranks of `group` (None: all) hold the other pieces. Pass the parameters of
    `PrefetchedModule` or of `course_lib.zero.Zero3Module`. With a `Zero1Optimizer` or `Zero2Optimizer`, pass
    `optimizer.shards`, but only after a call of `optimizer.average_gradients()`.
    replica_group: the ranks that hold the same pieces as this rank, after their gradients were averaged.
    These pieces count only once, so nothing is sent to these ranks.
    Returns the norm before the scaling, the same on every rank of the group; 0.0 without shards. If an
    element is NaN, the norm and all gradients become NaN. Each rank sends 2 (N-1)/N times 4 bytes in one
    all-reduce. Raises RuntimeError on all ranks if there are shards but none has a gradient.
    """
    shards = list(shards)
    gradients = [shard.grad for shard in shards if shard.grad is not None]
    missing = shards and not gradients
    squares = torch.full((), ABSENT if missing else 0.0, device=message_device(shards, group))
    for gradient in gradients:
        squares += gradient.float().square().sum()  # 16 bits would lose small pieces
    dist.all_reduce(squares, group=group)  # a rank without any gradient takes part as well
    check_present(float(squares))
    norm = math.sqrt(squares)
    factor = max_norm / (norm + TINY)
    if not factor >= 1:  # a norm below max_norm stays as it is; NaN goes into all gradients
        for gradient in gradients:
            gradient.mul_(factor)
    return norm


def check_present(squares: float) -> None:
    """RuntimeError if the sum over the ranks says that none of them has a gradient."""
    if squares == 0 and math.copysign(1, squares) < 0:  # a NaN can also have a sign
        raise RuntimeError(
            "no rank has a gradient in the parameters that it passed: clip after backward and before "
            "zero_grad(). The shards of a Zero1Optimizer or a Zero2Optimizer have gradients only after "
            "optimizer.average_gradients()"
        )
