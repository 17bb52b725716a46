"""Cross entropy of a linear head, without the matrix of all logits.

The logits of T tokens are T V numbers, and so is their gradient. For 8,192 tokens and a vocabulary of
128,256, each of the two takes 4.2 GB in float32. Yet a token's loss needs only its own row, and the results
that stay are small: one number, the gradient of the hidden states (T h) and the gradient of the weight (V h).

So the tokens are cut into chunks. Each chunk computes its logits, its loss, and *immediately* its share of
both gradients, and then frees the logits. This works because for a mean, the gradient of the loss is known
except for one factor, by which backward multiplies. Nothing is computed twice.

Source: Hsu et al., Liger Kernel: Efficient Triton Kernels for LLM Training, 2024, section 3.2
(FusedLinearCrossEntropy).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

IGNORED = -100  # PyTorch's mark for a target that does not count


def chunked_loss(hidden: Tensor, weight: Tensor, targets: Tensor, chunks: int) -> Tensor:
    """The mean cross entropy of `hidden @ weight.T` over all targets that are not -100, a float32 number.

    hidden: (T, h); weight: (V, h), both of one floating dtype; targets: (T,) int64; none of them is modified.
    chunks: the number of parts into which the tokens are cut; they can be unequal. The loss is NaN if no
    target counts, as in PyTorch. Raises ValueError, on the CPU, for a target outside the vocabulary that is
    not -100. (On a GPU this check would have to wait for the GPU. Instead, such a target makes the loss NaN.)
    forward: the loss, and both gradients except for a factor, T h + V h numbers. The current chunk takes
    another 2 T V / chunks numbers. Sums over chunks are in float32. backward: the factor. 6 T V h FLOPs in
    all.
    """
    outside = (targets != IGNORED) & ((targets < 0) | (targets >= len(weight)))
    check_targets(targets, outside, len(weight))
    loss = _ChunkedLoss.apply(hidden, weight, targets.masked_fill(outside, IGNORED), chunks)
    return loss * torch.where(outside.any(), torch.nan, 1.0)


def check_targets(targets: Tensor, outside: Tensor, vocab_size: int) -> None:
    """Raise ValueError for a target outside the vocabulary, on the CPU."""
    if targets.device.type == "cpu" and outside.any():
        raise ValueError(
            f"target {targets[outside][0]} lies outside the vocabulary, 0 .. {vocab_size - 1}. A target of "
            f"{IGNORED} does not count"
        )


class _ChunkedLoss(torch.autograd.Function):
    """forward: the loss, and its gradients for an upstream gradient of 1. backward: times the real one."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, chunks: int) -> Tensor:
        counted = targets != IGNORED
        count = counted.sum()
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        of_hidden = torch.empty_like(hidden)
        of_weight = torch.zeros_like(weight, dtype=torch.float32)
        for x, y, valid, place in zip(
            *(t.tensor_split(chunks) for t in (hidden, targets, counted, of_hidden)), strict=True
        ):
            logits = (x @ weight.t()).float()
            normal = logits.logsumexp(1)
            index = y.clamp(min=0)[:, None]  # any index for an ignored target, whose row is masked
            right = logits.gather(1, index)[:, 0]
            loss += ((normal - right) * valid).sum()
            slope = logits.sub_(normal[:, None]).exp_()  # the softmax, in the logits' memory
            slope.scatter_add_(1, index, -torch.ones_like(slope[:, :1]))
            slope *= (valid / count)[:, None]
            narrow = slope.to(x.dtype)
            place.copy_(narrow @ weight)
            of_weight.addmm_(narrow.t().to(torch.float32), x.to(torch.float32))
        ctx.save_for_backward(of_hidden, of_weight.to(weight.dtype))
        return loss / count

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        of_hidden, of_weight = ctx.saved_tensors
        (upstream,) = gradients
        return (
            of_hidden * upstream.to(of_hidden.dtype),
            of_weight * upstream.to(of_weight.dtype),
            None,
            None,
        )
