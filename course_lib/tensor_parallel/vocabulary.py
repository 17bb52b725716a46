"""The two ends of a language model over many ranks: the embedding and the loss.

The vocabulary is the largest dimension of all. A microbatch of 4 x 2,048 tokens and a vocabulary of 50,257
make 412 million logits, 1.6 GB in float32, and their gradient takes as much again. Gathering them would send
most of these bytes. A rank that holds the logits of its part of the vocabulary needs only three numbers from
the other ranks for each token: the largest logit, the sum of exponentials, and the logit of the target.

The number of ranks rarely divides the size of a vocabulary. The vocabulary is cut as `torch.tensor_split`
does, so the first ranks hold one more token, and nothing has to be padded.

Source: Shoeybi et al., "Megatron-LM", 2019, section 3 (both ends, and the fused loss).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .conjugate import Group, all_reduce, all_reduce_identity, place, reduce_scatter_all_gather
from .cut import Cut, Parallel
from .given import check_embedding
from .linear import Sequences, checked


class VocabParallelEmbedding(Parallel):
    """`nn.Embedding` whose rows are cut over the ranks.

    num_embeddings, embedding_dim: of the whole table; any sizes.
    sequence: None returns (batch, seq, embedding_dim) on every rank; "keep" and "regather" the rank's part
        of the sequence, (batch, seq / n, embedding_dim).
    embedding: an nn.Embedding to be cut, instead of a new one, with its `padding_idx`.

    A rank looks up the tokens it has and takes zeros for the others, so the sum over the ranks is the table's
    row. With M = tokens * embedding_dim elements, each rank sends 2 (n-1)/n M in forward and nothing in
    backward. With `sequence`, it sends (n-1)/n M each way.

    Raises ValueError, on the CPU, for a token outside the vocabulary. (On a GPU the check would have to wait
    for the GPU, so such a token gives a row of zeros there.) Raises ValueError if `embedding` has other
    sizes, or max_norm, scale_grad_by_freq, sparse, or hooks, and TypeError if it is not an nn.Embedding.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        group: Group = None,
        *,
        sequence: Sequences = None,
        embedding: nn.Embedding | None = None,
    ):
        super().__init__(group)
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.sequence = checked(sequence)
        embedding = embedding or nn.Embedding(num_embeddings, embedding_dim)
        check_embedding(embedding, num_embeddings, embedding_dim)
        self.padding_idx = embedding.padding_idx
        self.weight = self.take("weight", embedding.weight, Cut(0, num_embeddings, group))

    def forward(self, tokens: Tensor) -> Tensor:
        check_tokens("token", tokens, self.num_embeddings)
        start, end = self.cuts["weight"].bounds()
        elsewhere = (tokens < start) | (tokens >= end)
        if end == start:  # more ranks than tokens, so nothing to look up
            rows = self.weight.new_zeros(*tokens.shape, self.embedding_dim) + self.weight.sum()
        else:
            padding = self.padding_idx
            own = padding - start if padding is not None and start <= padding < end else None
            rows = F.embedding((tokens - start).masked_fill(elsewhere, 0), self.weight, own)
            rows = rows.masked_fill(elsewhere[..., None], 0)
        if self.sequence is None:
            return all_reduce_identity(rows, self.group)
        return reduce_scatter_all_gather(rows, self.group)

    def extra_repr(self) -> str:
        return f"{self.num_embeddings} (here {self.weight.shape[0]}), {self.embedding_dim}"


def vocab_parallel_cross_entropy(
    logits: Tensor,
    target: Tensor,
    group: Group = None,
    *,
    vocab_size: int | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """`F.cross_entropy` of logits that no rank holds in full.

    logits: (..., the rank's part of the vocabulary), cut as `torch.tensor_split` does.
    target: (...), tokens of the whole vocabulary, the same on every rank; targets of ignore_index do not
        count.
    vocab_size: of the whole vocabulary; None: all parts are equal.
    reduction: "mean" over the targets that count, "sum", or "none"; the same value on every rank.

    It computes in float32 at least, and subtracts the largest logit first, so that exponentials of 1,000 do
    not overflow. With T targets, each rank sends 2 (n-1)/n of 3 T numbers in forward (4 bytes each; 8 in
    float64) in two all-reduces, and nothing in backward. The logits and one number per target are kept for
    backward.

    Raises ValueError if shapes do not fit and, on the CPU, for a target outside the vocabulary. (On a GPU its
    loss is nan.)
    """
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction is 'mean', 'sum' or 'none', not {reduction!r}")
    if logits.shape[:-1] != target.shape:
        raise ValueError(
            f"logits {tuple(logits.shape)} and target {tuple(target.shape)} do not fit: one target for each "
            "row of logits is expected"
        )
    rank, n = place(group)
    vocab_size = n * logits.shape[-1] if vocab_size is None else vocab_size
    start, end = Cut(0, vocab_size, group).bounds()
    if end - start != logits.shape[-1]:
        raise ValueError(
            f"rank {rank} of {n} holds {logits.shape[-1]} logits; of a vocabulary of {vocab_size} it should "
            f"hold {end - start}. Pass vocab_size, the size of the whole vocabulary"
        )
    counts = target != ignore_index
    check_tokens("target", target[counts], vocab_size)
    loss = _CrossEntropy.apply(logits, target, counts, (start, end), group)
    outside = counts & ((target < 0) | (target >= vocab_size))
    loss = loss.masked_fill(~counts, 0).masked_fill(outside, torch.nan)
    if reduction == "mean":
        return loss.sum() / counts.sum()
    return loss.sum() if reduction == "sum" else loss


class _CrossEntropy(torch.autograd.Function):
    """forward: log(sum of exp(logits)) - the target's logit, from the parts of all ranks.

    backward: softmax - 1 at the target, each rank for its own part, so nothing is sent.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        target: Tensor,
        counts: Tensor,
        bounds: tuple[int, int],
        group: Group,
    ) -> Tensor:
        start, end = bounds
        precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
        largest = _largest(precise, group)
        here = counts & (target >= start) & (target < end)
        at = (target - start).masked_fill(~here, 0)
        sums = precise.new_zeros(2, *target.shape)
        if end > start:
            sums[0] = (precise - largest[..., None]).exp_().sum(-1)
            sums[1] = precise.gather(-1, at[..., None])[..., 0].masked_fill(~here, 0)
        exponentials, of_target = all_reduce(sums, group)
        lse = exponentials.log() + largest
        ctx.save_for_backward(logits, lse, at, here)
        return lse - of_target

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None, None]:  # pyright: ignore
        logits, lse, at, here = ctx.saved_tensors
        for_logits = (logits.to(lse.dtype) - lse[..., None]).exp_()
        if for_logits.shape[-1]:
            for_logits.scatter_add_(-1, at[..., None], -here[..., None].to(lse.dtype))
        return for_logits.mul_(grad[..., None]).to(logits.dtype), None, None, None, None


def _largest(logits: Tensor, group: Group) -> Tensor:
    """The largest logit of each row over all ranks. Any finite shift is right, so it needs no gradient."""
    none = logits.new_full((*logits.shape[:-1], 1), -torch.inf)  # of a rank without tokens
    largest = (logits if logits.shape[-1] else none).amax(-1)
    if place(group)[1] > 1 and largest.numel():
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    return largest


def check_tokens(what: str, tokens: Tensor, vocab_size: int) -> None:
    """Raise ValueError for a token outside 0 .. vocab_size - 1, on the CPU, where the check costs nothing."""
    if tokens.device.type != "cpu" or not tokens.numel():
        return
    low, high = (int(bound) for bound in tokens.aminmax())
    if low < 0 or high >= vocab_size:
        wrong = low if low < 0 else high
        raise ValueError(f"{what} {wrong} lies outside the vocabulary, 0 .. {vocab_size - 1}")
