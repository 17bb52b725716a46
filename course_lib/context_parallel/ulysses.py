"""Ulysses: trade parts of the sequence for heads while attention is computed.

Heads do not look at each other. So before attention, an all-to-all gives each of N ranks heads / N heads of
the whole sequence, and the rank computes their attention by itself. After attention, another all-to-all gives
each rank its tokens back, with all heads.

    q, k, v   (batch, seq / N, heads, head_dim)  ->  (batch, seq, heads / N, head_dim)
    out       (batch, seq, heads / N, head_dim)  ->  (batch, seq / N, heads, head_dim)

Each rank sends (N-1)/N of each of the four tensors, in forward and again in backward. The more ranks there
are, the fewer bytes each rank sends, whereas in a ring every rank's keys pass every rank. In exchange, no
computation hides the messages, N cannot exceed the number of heads (of keys and values, if these are fewer),
and every link is used at the same time.

Source: Jacobs et al., DeepSpeed Ulysses, 2023.

Copy this file together with tiles.py, softmax.py, layouts.py and arguments.py.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from .arguments import check_qkv
from .layouts import (
    Group,
    Layout,
    check_layout,
    check_part,
    contiguous,
    joined,
    place,
    tokens_in,
)
from .tiles import BLOCK, span_attention


def ulysses_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool = False,
    group: Group = None,
    *,
    layout: Layout | None = None,
    block: int = BLOCK,
) -> Tensor:
    """Attention of this rank's queries to the keys of all ranks of `group`.

    Arguments and result are the same as for `ring_attention`. It also raises ValueError if the number of
    ranks does not divide the heads of queries or the heads of keys and values.
    """
    check_qkv(q, k, v, block)
    rank, n = place(group)
    layout = contiguous(n * q.shape[1], n) if layout is None else layout
    check_layout(layout, n)
    check_part("q", q.shape[1], layout, rank)
    check_part("k", k.shape[1], layout, rank)
    check_heads(q.shape[2], k.shape[2], n)
    sizes = [tokens_in(spans) for spans in layout]
    q, k, v = (tokens_to_heads(x, sizes, group) for x in (q, k, v))
    whole = joined(layout)  # rank after rank, which need not be the order of the sequence
    out = span_attention(q, k, v, whole, whole, causal, block)
    return heads_to_tokens(out, sizes, group)


def tokens_to_heads(x: Tensor, sizes: list[int], group: Group = None) -> Tensor:
    """(batch, tokens here, heads, d) to (batch, tokens of all ranks, heads / n, d).

    sizes: how many tokens each rank has.

    forward: an all-to-all of tokens for heads. backward: the reverse. In each direction, a rank sends
    (n-1)/n of x.
    """
    return _TokensToHeads.apply(x, sizes, group)


def heads_to_tokens(x: Tensor, sizes: list[int], group: Group = None) -> Tensor:
    """Undo `tokens_to_heads`, whose backward is the forward of this function."""
    return _HeadsToTokens.apply(x, sizes, group)


class _TokensToHeads(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, sizes: list[int], group: Group) -> Tensor:
        ctx.where = sizes, group
        return _to_heads(x, sizes, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore
        sizes, group = ctx.where
        return _to_tokens(grad, sizes, group), None, None


class _HeadsToTokens(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, sizes: list[int], group: Group) -> Tensor:
        ctx.where = sizes, group
        return _to_tokens(x, sizes, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore
        sizes, group = ctx.where
        return _to_heads(grad, sizes, group), None, None


def _to_heads(x: Tensor, sizes: list[int], group: Group) -> Tensor:
    _, n = place(group)
    batch, _, heads, d = x.shape
    theirs = [piece.contiguous() for piece in x.chunk(n, dim=2)]
    mine = [x.new_empty(batch, size, heads // n, d) for size in sizes]
    _all_to_all(mine, theirs, group)
    return torch.cat(mine, dim=1)


def _to_tokens(x: Tensor, sizes: list[int], group: Group) -> Tensor:
    rank, n = place(group)
    theirs = [piece.contiguous() for piece in x.split(sizes, dim=1)]
    mine = [torch.empty_like(theirs[rank]) for _ in range(n)]
    _all_to_all(mine, theirs, group)
    return torch.cat(mine, dim=2)


def _all_to_all(output: list[Tensor], input: list[Tensor], group: Group) -> None:
    """Send the r-th tensor of `input` to rank r, in one flat tensor, as gloo has no all-to-all of lists."""
    sent, received = (torch.cat([piece.flatten() for piece in many]) for many in (input, output))
    dist.all_to_all_single(
        received, sent, [x.numel() for x in output], [x.numel() for x in input], group=group
    )
    for piece, values in zip(output, received.split([x.numel() for x in output]), strict=True):
        piece.copy_(values.view_as(piece))


def check_heads(heads: int, kv_heads: int, n: int) -> None:
    for name, count in (("heads", heads), ("kv_heads", kv_heads)):
        if count % n:
            raise ValueError(
                f"{name}={count} cannot be shared equally by {n} ranks, and Ulysses gives each its own: "
                "use fewer ranks, ring_attention, or both (`ulysses_ring_attention`)"
            )
