"""Replicated parameters, which each rank uses on its own part of the activations.

Examples are a norm's weights on parts of the sequence, and the key and value weights if there are fewer heads
than ranks. Each rank's gradient is the contribution of *its* tokens or heads. Without a sum, the copies drift
apart step by step, and no rank notices. The conjugate function says what to do. If a whole value enters work
that differs from rank to rank, its gradients are summed. This holds for parameters as well as for
activations.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .conjugate import Group, all_reduce, own_part
from .given import check_embedding, check_plain


def sum_gradients(group: Group, *parameters: Tensor | None) -> tuple[Tensor | None, ...]:
    """`identity_all_reduce` for several parameters together; a None stays None.

    forward: the parameters themselves. backward: their gradients, summed over the ranks in one all-reduce,
    for which each rank sends 2 (n-1)/n of their bytes in every backward.
    """
    present = [parameter for parameter in parameters if parameter is not None]
    summed = iter(_SumGradients.apply(group, *present) if present else ())
    return tuple(None if parameter is None else next(summed) for parameter in parameters)


class _SumGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, group: Group, *parameters: Tensor) -> tuple[Tensor, ...]:
        ctx.group = group
        return tuple(parameter.view_as(parameter) for parameter in parameters)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        flat = all_reduce(torch.cat([grad.flatten() for grad in grads]), ctx.group)
        pieces = flat.split([grad.numel() for grad in grads])
        return None, *(piece.view_as(grad) for piece, grad in zip(pieces, grads, strict=True))


class SequenceParallelNorm(nn.Module):
    """`norm` (LayerNorm or RMSNorm over the last dimension) on the rank's part of the sequence.

    A norm needs all features of a token but nothing of other tokens, so parts of the sequence are as good as
    the whole. The values are the same as from `norm`. The gradients of its weights are summed over the ranks
    of `group`.

    Raises TypeError for another module, and ValueError for a norm with hooks or over more dimensions than the
    features.
    """

    def __init__(self, norm: nn.LayerNorm | nn.RMSNorm, group: Group = None):
        super().__init__()
        if not isinstance(norm, (nn.LayerNorm, nn.RMSNorm)):
            raise TypeError(f"norm is a {type(norm).__name__}; LayerNorm or RMSNorm is expected")
        if len(norm.normalized_shape) > 1:
            raise ValueError(
                f"norm is over the last {len(norm.normalized_shape)} dimensions, and so over tokens of other "
                "ranks; one over the features alone is expected"
            )
        check_plain(norm, nn.LayerNorm, nn.RMSNorm)
        self.group, self.eps, self.shape = group, norm.eps, norm.normalized_shape
        self.of_root_mean_square = isinstance(norm, nn.RMSNorm)
        self.weight: nn.Parameter | None = norm.weight
        self.bias: nn.Parameter | None = getattr(norm, "bias", None)

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = sum_gradients(self.group, self.weight, self.bias)
        if self.of_root_mean_square:
            return F.rms_norm(x, self.shape, weight, self.eps)
        assert self.eps is not None  # only for RMSNorm does None mean the dtype's own eps
        return F.layer_norm(x, self.shape, weight, bias, self.eps)


class SequenceParallelEmbedding(nn.Module):
    """`embedding` of positions, looked up only for the rank's part of the sequence.

    forward takes all positions, (seq,) or (batch, seq), and returns the embeddings of the rank's part,
    (..., seq / n, width). `padding_idx` is the only option of the embedding that is carried over.

    Raises ValueError for max_norm, scale_grad_by_freq, sparse, or hooks; TypeError for another module.
    """

    def __init__(self, embedding: nn.Embedding, group: Group = None):
        super().__init__()
        check_embedding(embedding, embedding.num_embeddings, embedding.embedding_dim)
        self.group, self.weight = group, embedding.weight
        self.padding_idx = embedding.padding_idx

    def forward(self, positions: Tensor) -> Tensor:
        (weight,) = sum_gradients(self.group, self.weight)
        assert weight is not None
        return F.embedding(own_part(positions, self.group, -1), weight, self.padding_idx)
