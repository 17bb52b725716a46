"""Which rank holds which tokens of a sequence, for attention spread over ranks.

A layout says for each rank where its tokens are in the whole sequence. It lists ranges of positions (the
rank's *spans*) in the order in which the rank holds them. For 16 tokens on 4 ranks, each number is the rank
that holds the token:

    contiguous   0 0 0 0 1 1 1 1 2 2 2 2 3 3 3 3    [range(0, 4)], [range(4, 8)], ...
    striped      0 1 2 3 0 1 2 3 0 1 2 3 0 1 2 3    [range(0, 16, 4)], [range(1, 16, 4)], ...
    zigzag       0 0 1 1 2 2 3 3 3 3 2 2 1 1 0 0    [range(0, 2), range(14, 16)], ...

Under a causal mask, a token attends to the tokens before it, so the rank with the end of the sequence has the
most work, on P ranks 2 - 1/P times the mean. Striped gives each rank tokens from all over the sequence, so in
each step of a ring all ranks have the same work except for one diagonal. Zigzag cuts 2 P chunks and pairs the
first with the last and the second with the last but one, so the work is equal in every step (`balanced.py`).

All layers except attention treat each token by itself and need only its position (`positions`). Attention
masks by positions, so no layout needs code of its own there.

Sources: Liu et al., Ring Attention, 2023 (contiguous). Brandon et al., Striped Attention, 2023. Zhu,
ring-flash-attention, 2024, and Llama Team, The Llama 3 Herd of Models, 2024, section 3.3.2 (zigzag).

This file imports torch only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise

import torch
import torch.distributed as dist
from torch import Tensor

Group = dist.ProcessGroup | None
Spans = Sequence[range]
Layout = Sequence[Spans]
MakeLayout = Callable[[int, int], Layout]


def contiguous(seq: int, n: int) -> Layout:
    """The layout of n parts of `seq` tokens in succession, cut as `torch.tensor_split` does."""
    return [without_empty([chunk]) for chunk in chunks(seq, n)]


def striped(seq: int, n: int) -> Layout:
    """The layout with token t on rank t mod n."""
    return [without_empty([range(rank, seq, n)]) for rank in range(n)]


def subdivided(layout: Layout, n: int) -> Layout:
    """Each rank's tokens are cut into n parts in succession, for n ranks; rank 0's parts come first."""
    parts = []
    for spans in layout:
        for part in chunks(tokens_in(spans), n):
            parts.append(_cut(spans, part.start, part.stop))
    return parts


def joined(layout: Layout) -> Spans:
    """The spans of all ranks of `layout`, rank after rank; spans that continue each other become one."""
    spans: list[range] = []
    for span in (span for held in layout for span in held):
        if spans and spans[-1].stop == span.start and spans[-1].step == span.step == 1:
            span = range(spans.pop().start, span.stop)
        spans.append(span)
    return spans


# ---- dealing out and collecting


def tokens_in(spans: Spans) -> int:
    return sum(map(len, spans))


def positions(spans: Spans, device: torch.device | None = None) -> Tensor:
    """The positions in `spans`, (tokens,), int64, for rotary and learned positions."""
    runs = [torch.arange(span.start, span.stop, span.step, device=device) for span in spans]
    return torch.cat([torch.empty(0, dtype=torch.long, device=device), *runs])


def deal(x: Tensor, layout: Layout, group: Group = None, dim: int = 1) -> Tensor:
    """A copy of this rank's tokens of `x`, which is whole on every rank; nothing is sent.

    x: any shape with the sequence along `dim`, such as tokens (batch, seq). Raises ValueError if the
    sequence and the layout differ in length.
    """
    rank, n = place(group)
    check_layout(layout, n)
    seq = tokens_in(joined(layout))
    if x.shape[dim] != seq:
        raise ValueError(
            f"x has {x.shape[dim]} tokens (dimension {dim} of {tuple(x.shape)}), the layout deals out {seq}: "
            f"make it for this sequence, as in zigzag({x.shape[dim]}, {n})"
        )
    return x.index_select(dim, positions(layout[rank], x.device))


@torch.no_grad()
def collect(x: Tensor, layout: Layout, group: Group = None, dim: int = 1) -> Tensor:
    """Undo `deal`: the whole sequence in order, on every rank, from the part held by each rank.

    It is meant for looking at results, so no gradient passes. Each rank sends (n-1)/n of the whole (parts
    padded to the longest). Raises ValueError unless `x` has as many tokens as the layout gives this rank.
    """
    rank, n = place(group)
    check_layout(layout, n)
    check_part("x", x.shape[dim], layout, rank)
    parts = x.detach().movedim(dim, 0).contiguous()
    if n > 1:
        longest = max(map(tokens_in, layout))
        padded = parts.new_zeros(longest, *parts.shape[1:])
        padded[: len(parts)] = parts
        gathered = [torch.empty_like(padded) for _ in range(n)]
        dist.all_gather(gathered, padded, group=group)
        kept = [part[: tokens_in(held)] for part, held in zip(gathered, layout, strict=True)]
        parts = torch.cat(kept)
    order = positions(joined(layout), x.device)
    whole = torch.empty_like(parts)
    whole[order] = parts
    return whole.movedim(0, dim)


# ---- checks


def place(group: Group = None) -> tuple[int, int]:
    """This process's rank in `group`, and the group's size; ValueError on a rank outside the group."""
    rank = dist.get_rank(group)
    if rank < 0:
        raise ValueError(
            f"rank {dist.get_rank()} is not in the group that it passed: only the group's own ranks "
            "may call. Guard the call with `if dist.get_rank() in ranks:`."
        )
    return rank, dist.get_world_size(group)


def check_layout(layout: Layout, n: int) -> None:
    if len(layout) != n:
        raise ValueError(
            f"the layout is for {len(layout)} ranks, the group has {n}: make it for {n}, as in "
            f"zigzag(seq, {n})"
        )


def check_part(name: str, length: int, layout: Layout, rank: int) -> None:
    held = tokens_in(layout[rank])
    if length != held:
        raise ValueError(
            f"{name} has {length} tokens, the layout gives rank {rank} {held} of "
            f"{tokens_in(joined(layout))}: `deal` takes them out of a whole sequence"
        )


# ---- helpers


def chunks(length: int, n: int) -> list[range]:
    """n ranges in succession, the first length % n of them one longer."""
    sizes = [length // n + (i < length % n) for i in range(n)]
    return [range(start, stop) for start, stop in pairwise(accumulate(sizes, initial=0))]


def _cut(spans: Spans, start: int, stop: int) -> Spans:
    """The tokens of `spans` from the start-th up to, but not including, the stop-th."""
    kept, before = [], 0
    for span in spans:
        kept.append(span[max(0, start - before) : max(0, stop - before)])
        before += len(span)
    return without_empty(kept)


def without_empty(spans: Iterable[range]) -> Spans:
    return [span for span in spans if span]
