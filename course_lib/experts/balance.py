"""Balance: a router left to itself sends everything to a few experts, which learn, and so are chosen again.

There are two ways to prevent this:

    a loss    E sum f_i p_i, f_i the share of the assignments that expert i gets, p_i its mean probability.
              It is 1 if both are uniform, and E / k if k experts get everything. f_i has no gradient, so the
              probabilities of the popular experts are pushed down.
    a bias    a number for each expert, added to the probabilities only for the choice. After each step it
              grows for experts with too few tokens, and falls for experts with too many. It changes no
              gradient.

Both need the counts of all ranks, since a single rank has few tokens, and an odd batch on it is not an
imbalance.

Sources: Fedus, Zoph, Shazeer, Switch Transformers, 2021, section 2.2 (the loss, here divided by k);
Wang et al., Auxiliary-Loss-Free Load Balancing Strategy for Mixture-of-Experts, 2024 (the bias, and MaxVio);
DeepSeek-V3, 2024, sections 2.1.2 and 4.2. AddLoss: Megatron-Core's `MoEAuxLossAutoScaler`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .all_to_all import Group


def load_balancing_loss(logits: Tensor, experts: Tensor, group: Group = None) -> Tensor:
    """This rank's share of E sum f_i p_i over the tokens of all ranks; a number with a gradient to `logits`.

    logits: (T, E), of this rank's tokens; experts: (T, k), the chosen ones. f_i and the number of tokens are
    taken over all ranks of `group`, which can have unequally many tokens, or none. p_i sums the probabilities
    of this rank's tokens, and divides by the number of tokens of all ranks. So the shares add up to the loss
    of the batch, and their gradients to its gradient.

    Sends 2 (n-1)/n of E numbers in one all-reduce, in float32 at least, and nothing in backward.
    Raises ValueError if no rank has a token.
    """
    E, k = logits.shape[1], experts.shape[1]
    exact = torch.promote_types(logits.dtype, torch.float32)
    counts = experts.flatten().bincount(minlength=E).to(exact)
    dist.all_reduce(counts, group=group)
    assigned = counts.sum()  # k for each token of all ranks
    if assigned == 0:
        raise ValueError("no rank has a token: there is nothing to balance")
    f, p = counts / assigned, logits.softmax(-1).sum(0) / (assigned / k)
    return E * (f * p).sum()


def update_bias(bias: Tensor, counts: Tensor, speed: float = 0.001, group: Group = None) -> Tensor:
    """The bias after a step, `speed` more for experts with less than the mean, `speed` less for the others.

    bias: (E,); counts: (E,), the assignments of this rank's tokens to each expert since the last update. An
    expert with exactly the mean keeps its bias. Returns a new tensor, the same on all ranks.

    Sends 2 (n-1)/n of E numbers of 8 bytes, in one all-reduce.
    """
    total = counts.double()  # a copy, unless counts are float64, since the sum is made in it
    total = total.clone() if total is counts else total
    dist.all_reduce(total, group=group)
    return bias + speed * (total.mean() - total).sign().to(bias.dtype)


def max_violation(counts: Tensor) -> float:
    """MaxVio: by how much the busiest expert exceeds the mean, as a share of it; 0 if all are equal.

    counts: (E,). If k of E experts get everything, it is E / k - 1.
    """
    mean = float(counts.double().mean())
    return float(counts.max()) / mean - 1 if mean else 0.0


class AddLoss(torch.autograd.Function):
    """`AddLoss.apply(y, loss, scale)` is y; in backward, `loss` gets the gradient `scale`.

    So a loss computed inside a layer takes part in the backward of the model's loss without being handed
    through the layers, or between the stages of a pipeline. The printed loss does not include it.

    A scaler multiplies the model's loss before backward, and cannot know of this loss. So set the scale of
    the class before each backward: `AddLoss.loss_scale = scaler.scale`, or `scaler.get_scale()` of PyTorch's.
    Otherwise, the unscaled gradients contain this loss divided by the scale.
    """

    loss_scale = 1.0  # by which the model's loss was multiplied

    @staticmethod
    def forward(ctx: Any, y: Tensor, loss: Tensor, scale: float) -> Tensor:
        ctx.gradient = loss.new_full(loss.shape, scale)
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:  # pyright: ignore
        return grad, ctx.gradient * AddLoss.loss_scale, None
