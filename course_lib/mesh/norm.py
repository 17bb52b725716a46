"""Clipping by the global norm, when no rank holds the gradient and some of it is held many times.

The square of a norm is a sum over elements, so the squares of pieces add up if each element counts once. On a
mesh, this is how the ranks hold an element, and how it counts:

    cut over tp            its part is only on this rank of tp         every rank of tp counts
    whole on tp            norms, biases of the residual stream        the first rank of tp counts
    tied, on two stages    the same sum on both ends of pp             the first stage counts
    an expert's            on the ranks of ep that hold it             every rank of ep counts
    no expert's            equal on all ranks of ep                    the first rank of ep counts
    replicas               equal on all ranks of dp and cp             nothing is sent to them

So a rank that has nothing to count sends zero, and one all-reduce of one number over the flattened group of
pp x ep x tp gives the square of the norm. All gradients are then scaled by the same factor on all ranks, so
the copies of a parameter stay equal. They would not if each rank clipped by a norm of its own.

Source: Pascanu, Mikolov, Bengio, "On the difficulty of training recurrent neural networks", ICML 2013,
section 3.2 (clipping); `torch.nn.utils.clip_grad_norm_` (the 1e-6); Megatron-LM's
`get_main_grads_for_grad_norm`, which leaves out shared parameters and duplicates of tensor parallelism in the
same way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn

from .mesh import Mesh

TINY = 1e-6  # PyTorch's, so that a norm of zero can be divided by
# In place of a sum of squares, because a sum is -0.0 only if all its terms are (IEEE 754, section 6.3).
ABSENT = -0.0


@torch.no_grad()
def clip_grad_norm(
    named_parameters: Iterable[tuple[str, nn.Parameter]],
    max_norm: float,
    mesh: Mesh,
    cut: set[str],
    tied: set[str],
    apart: set[str] | None = None,
) -> float:
    """Scale all gradients by min(1, max_norm / (norm + 1e-6)), where norm is the norm of the whole model.

    named_parameters: of this rank, by their names in the whole model; a `grad` of None counts as zeros.
    cut: the names of the parameters of which each rank of tp holds a part; if several ranks hold the same
        part, only one of them lists the name (`cut_names`). tied: the names of the parameters held by the
        first and the last stage of pp, with equal gradients. apart: the names of the parameters that differ
        on each rank of ep (`expert_names`). Replicas (dp, cp) have equal gradients, as `hybrid_step` leaves
        them.
    Returns the norm before the scaling, the same on every rank; 0.0 without parameters. If an element is NaN,
    the norm and all gradients become NaN. Sends 2 (n-1)/n times 8 bytes, in one all-reduce over the n ranks
    of pp x ep x tp. Raises RuntimeError on all of these ranks if they have parameters but no gradient.
    """
    first_of_tp, first_of_ep, first_of_pp = (
        mesh.coordinate.get(axis, 0) == 0 for axis in ("tp", "ep", "pp")
    )
    named = list(named_parameters)
    gradients = {name: param.grad for name, param in named if param.grad is not None}
    start = ABSENT if named and not gradients else 0.0
    squares = torch.full((), start, dtype=torch.float64, device=mesh.device)
    for name, gradient in gradients.items():
        counts = (name in cut or first_of_tp) and (name not in tied or first_of_pp)
        if counts and (name in (apart or ()) or first_of_ep):
            squares += gradient.double().square().sum()
    dist.all_reduce(
        squares, group=mesh.group(("pp", "ep", "tp"))
    )  # also on ranks without gradients
    if squares == 0 and math.copysign(1, float(squares)) < 0:  # a NaN may have a sign, too
        raise RuntimeError(
            "no rank has a gradient in the parameters that it passed: clip after the backward, that of "
            "hybrid_step for instance, and before zero_grad()"
        )
    norm = math.sqrt(squares)
    factor = max_norm / (norm + TINY)
    if not factor >= 1:  # a norm below max_norm stays as it is; NaN goes into all gradients
        for gradient in gradients.values():
            gradient.mul_(factor)
    return norm
