"""Clipping by the global norm, when no rank holds the gradient and some of it is held many times.

The square of a norm is a sum over elements, so pieces' squares add up, if each element counts once. On a
mesh an element is on several ranks for three reasons, and on one for the fourth:

    cut over tp            its part is on this rank of tp alone        every rank of tp counts
    whole on tp            norms, biases of the residual stream        the first rank of tp counts
    tied, on two stages    the same sum on both ends of pp             the first stage counts
    replicas               equal on all ranks of dp and cp             nothing is sent to them

So a rank that has nothing to count sends zero, and one all-reduce of one number over the flattened group of
pp x tp makes the square of the norm. All gradients are then scaled by one factor on all ranks: the copies of
a parameter stay equal, which they would not if each rank clipped by a norm of its own.

Source: Pascanu, Mikolov, Bengio, "On the difficulty of training recurrent neural networks", ICML 2013,
section 3.2 (clipping); `torch.nn.utils.clip_grad_norm_` (the 1e-6); Megatron-LM's
`get_main_grads_for_grad_norm`, which leaves out shared parameters and duplicates of tensor parallelism in the
same way.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn

from .mesh import Mesh

TINY = 1e-6  # PyTorch's, so that a norm of zero can be divided by


@torch.no_grad()
def clip_grad_norm(
    named_parameters: Iterable[tuple[str, nn.Parameter]],
    max_norm: float,
    mesh: Mesh,
    cut: set[str],
    tied: set[str],
) -> float:
    """Scale all gradients by min(1, max_norm / (norm + 1e-6)), in which norm is that of the whole model.

    named_parameters: of this rank, by their names in the whole model; a `grad` of None counts as zeros.
    cut: the names of those of which each rank of tp holds a part; of a part that several ranks hold, one of
        them has the name (`cut_names`). tied: the names of those that the first
        and the last stage of pp hold, with equal gradients. Replicas (dp, cp) have equal gradients, as
        `hybrid_step` leaves them.
    Returns the norm before the scaling, the same on every rank. Sends 2 (n-1)/n times 8 bytes, in one
    all-reduce over the n ranks of pp x tp.
    """
    first_of_tp, first_of_pp = (mesh.coordinate.get(axis, 0) == 0 for axis in ("tp", "pp"))
    squares = torch.zeros((), dtype=torch.float64, device=mesh.device)
    gradients = []
    for name, param in named_parameters:
        if param.grad is None:
            continue
        gradients.append(param.grad)
        if (name in cut or first_of_tp) and (name not in tied or first_of_pp):
            squares += param.grad.double().square().sum()
    dist.all_reduce(squares, group=mesh.group(("pp", "tp")))  # also on ranks without gradients
    norm = float(squares.sqrt())
    factor = max_norm / (norm + TINY)
    if factor < 1:
        for gradient in gradients:
            gradient.mul_(factor)
    return norm
