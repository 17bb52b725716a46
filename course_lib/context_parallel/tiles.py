"""Attention in tiles, which never stores the N x N matrix of scores.

    out = softmax(q k^T / sqrt(head_dim)) v

One head of 131,072 tokens has 17 G scores, 34 GB in 16 bits, whereas its q, k, v and out of 128 features have
34 MB each. So the scores are made in tiles of block x block, used, and forgotten. For each tile of queries,
all tiles of keys pass by, and their results are merged (`online_softmax_merge`). Under a causal mask, tiles
above the diagonal are skipped, and only the tiles on the diagonal are masked.

Backward needs the softmax again, and computes it again. Since forward has kept one number per query, its lse,
p = exp(s - lse) needs no second pass. By the chain rule, for each tile of scores s,

    dv += p^T dout      dp = dout v^T      ds = p (dp - delta)      dq += ds k      dk += ds^T q

where delta, the sum over all keys of p dp, equals the sum over the features of out dout, which is known
before the tiles.

    kept for backward    q, k, v, out, and lse: linear in the sequence
    FLOPs                forward 4 s^2 h, backward 10 s^2 h (2 of them the scores again); half when causal

On a GPU this is one kernel whose tiles stay in the fast memory of a multiprocessor. Its speed comes from the
fast memory, not from the memory saved. Here, each line is an operation of PyTorch.

Source: Dao et al., FlashAttention, 2022, algorithms 1 and 4; Dao, FlashAttention-2, 2023, sections 3.1.1 and
3.1.2 (lse in place of two statistics; delta).

Copy this file together with softmax.py, arguments.py and layouts.py (for the spans).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .arguments import check_qkv
from .layouts import Spans
from .softmax import online_softmax_merge

BLOCK = 256


class Tiling(NamedTuple):
    """Which tokens the queries and the keys are, whether the mask is causal, and the tiles' size."""

    q_spans: Spans
    k_spans: Spans
    causal: bool
    block: int


def tiled_attention(
    q: Tensor, k: Tensor, v: Tensor, block: int = BLOCK, causal: bool = False
) -> Tensor:
    """Attention of one rank, forward and backward in tiles of block x block scores.

    q: (batch, seq, heads, head_dim); k, v: (batch, seq of keys, kv_heads, head_dim), head h of q with head
        h // (heads / kv_heads) of k and v. All of them have the same dtype, but scores and sums are in
        float32 at least.
    causal: query i sees the keys 0 .. i.

    Returns a tensor of q's shape and dtype. Raises ValueError if shapes do not fit.
    """
    return span_attention(q, k, v, [range(q.shape[1])], [range(k.shape[1])], causal, block)


def span_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_spans: Spans,
    k_spans: Spans,
    causal: bool,
    block: int = BLOCK,
) -> Tensor:
    """`tiled_attention` of tokens at any positions, given by q_spans and k_spans."""
    check_qkv(q, k, v, block)
    return _TiledAttention.apply(q, k, v, Tiling(q_spans, k_spans, causal, block))


class _TiledAttention(torch.autograd.Function):
    """forward: out; keeps the inputs, out and lse. backward: the three gradients, from the same tiles."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, tiling: Tiling) -> Tensor:
        ctx.tiling = tiling
        out, lse = forward_tiles(q, k, v, tiling)
        out = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        q, k, v, out, lse = ctx.saved_tensors
        dq, dk, dv = (torch.zeros_like(x, dtype=lse.dtype) for x in (q, k, v))
        delta = row_delta(out, grad)
        backward_tiles(q, k, v, ctx.tiling, grad=grad, lse=lse, delta=delta, dq=dq, dk=dk, dv=dv)
        return dq.to(q.dtype), dk.to(q.dtype), dv.to(q.dtype), None


def in_full_precision(function: Callable) -> Callable:
    """Switch off `torch.autocast`, which would compute products of float32 tensors in 16 bits."""

    @functools.wraps(function)
    def full(q: Tensor, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast(q.device.type, enabled=False):
            return function(q, *args, **kwargs)

    return full


@in_full_precision
def forward_tiles(q: Tensor, k: Tensor, v: Tensor, tiling: Tiling) -> tuple[Tensor, Tensor]:
    """(out, lse), (batch, seq, heads, head_dim) and (batch, seq, heads), in float32 at least.

    A query that sees no key has out 0 and lse -inf.
    """
    q_spans, k_spans, causal, block = tiling
    kv_heads, dtype = k.shape[2], torch.promote_types(q.dtype, torch.float32)
    out, lse = q.new_zeros(q.shape, dtype=dtype), q.new_empty(q.shape[:-1], dtype=dtype)
    for rows, queries in tiles(q_spans, block):
        q_tile = by_head(q[:, rows].to(dtype), kv_heads) * q.shape[-1] ** -0.5
        out_tile = torch.zeros_like(q_tile)
        lse_tile = q_tile.new_full(q_tile.shape[:-1], -torch.inf)
        for columns, keys in tiles(k_spans, block):
            if causal and queries[-1] < keys[0]:
                continue  # every key comes after every query, so nothing to compute
            k_tile, v_tile = (by_head(x[:, columns].to(dtype), kv_heads) for x in (k, v))
            scores = q_tile @ k_tile.mT
            if causal and queries[0] < keys[-1]:
                hide_later(scores, queries, keys)
            block_out, block_lse = softmax_times(scores, v_tile)
            out_tile, lse_tile = online_softmax_merge(out_tile, lse_tile, block_out, block_lse)
        out[:, rows] = by_token(out_tile, len(queries))
        lse[:, rows] = by_token(lse_tile[..., None], len(queries))[..., 0]
    return out, lse


@in_full_precision
def backward_tiles(
    q: Tensor, k: Tensor, v: Tensor, tiling: Tiling,
    *, grad: Tensor, lse: Tensor, delta: Tensor, dq: Tensor, dk: Tensor, dv: Tensor,
) -> None:  # fmt: skip
    """Add to dq, dk and dv, in place, the contributions of these queries' attention to these keys.

    grad: the gradient of out. lse: of each query over *all* keys it sees, on any rank. delta: the result of
    `row_delta`. dq, dk, dv: in the dtype of lse.
    """
    q_spans, k_spans, causal, block = tiling
    kv_heads, dtype, scale = k.shape[2], lse.dtype, q.shape[-1] ** -0.5
    lse = lse.clamp_min(torch.finfo(dtype).min)  # exp(-inf - -inf) would be nan
    for rows, queries in tiles(q_spans, block):
        q_tile = by_head(q[:, rows].to(dtype), kv_heads) * scale
        grad_tile = by_head(grad[:, rows].to(dtype), kv_heads)
        lse_tile, delta_tile = (by_head(x[:, rows, :, None], kv_heads) for x in (lse, delta))
        dq_tile = torch.zeros_like(q_tile)
        for columns, keys in tiles(k_spans, block):
            if causal and queries[-1] < keys[0]:
                continue
            k_tile, v_tile = (by_head(x[:, columns].to(dtype), kv_heads) for x in (k, v))
            scores = q_tile @ k_tile.mT
            if causal and queries[0] < keys[-1]:
                hide_later(scores, queries, keys)
            p = scores.sub_(lse_tile).exp_()
            dv[:, columns] += by_token(p.mT @ grad_tile, len(keys))
            ds = (grad_tile @ v_tile.mT).sub_(delta_tile).mul_(p)
            dq_tile += ds @ k_tile
            dk[:, columns] += by_token(ds.mT @ q_tile, len(keys))
        dq[:, rows] += by_token(dq_tile.mul_(scale), len(queries))


def row_delta(out: Tensor, grad: Tensor) -> Tensor:
    """The sum over the features of out times its gradient, (batch, seq, heads), in float32 at least."""
    dtype = torch.promote_types(out.dtype, torch.float32)
    return (out.to(dtype) * grad.to(dtype)).sum(-1)


# ---- one tile


def tiles(spans: Spans, block: int) -> Iterator[tuple[slice, range]]:
    """(indices of the tile's tokens in the tensor, their positions); each tile is within one span.

    Positions in a tile ascend, so the first and the last tell whether the tile is masked wholly, partly or
    not at all.
    """
    before = 0
    for span in spans:
        for start in range(0, len(span), block):
            positions = span[start : start + block]
            yield slice(before + start, before + start + len(positions)), positions
        before += len(span)


def hide_later(scores: Tensor, queries: range, keys: range) -> None:
    """Write -inf, in place, for every key that comes after the query."""
    at = torch.arange(queries.start, queries.stop, queries.step, device=scores.device)
    of = torch.arange(keys.start, keys.stop, keys.step, device=scores.device)
    heads_apart = scores.unflatten(2, (-1, len(queries)))
    heads_apart.masked_fill_(at[:, None] < of, -torch.inf)


def softmax_times(scores: Tensor, v_tile: Tensor) -> tuple[Tensor, Tensor]:
    """(out, lse) of one tile; the scores are overwritten."""
    largest = scores.amax(-1, keepdim=True).clamp_min_(torch.finfo(scores.dtype).min)
    p = scores.sub_(largest).exp_()
    total = p.sum(-1, keepdim=True)
    lse = (largest + total.log())[..., 0]  # log(0) is -inf, if all keys are masked
    return (p @ v_tile).div_(total.clamp_min(torch.finfo(scores.dtype).tiny)), lse


def by_head(x: Tensor, kv_heads: int) -> Tensor:
    """(batch, tokens, heads, d) to (batch, kv_heads, heads / kv_heads * tokens, d).

    Queries that share a head of keys become rows of one product.
    """
    return x.unflatten(2, (kv_heads, -1)).permute(0, 2, 3, 1, 4).flatten(2, 3)


def by_token(x: Tensor, tokens: int) -> Tensor:
    """Undo `by_head` with a view (batch, tokens, heads, d), or for keys (batch, tokens, kv_heads, d)."""
    return x.unflatten(2, (-1, tokens)).permute(0, 3, 1, 2, 4).flatten(2, 3)
