"""Ulysses inside a ring, for more ranks than there are heads, and with fewer bytes than one ring of all.

There are N = u x r ranks. Groups of u ranks in succession, which have the fastest links between them, trade
tokens for heads (`ulysses.py`). Then each rank holds u parts of the sequence with heads / u heads, and takes
part in a ring of r ranks, one from each group. The ring has r steps instead of N. Its messages have the same
size as in a ring of N ranks, because they hold u times the tokens of 1/u of the heads.

Source: Fang and Zhao, USP: A Unified Sequence Parallelism Approach for Long Context Generative AI, 2024;
Gu et al., LoongTrain, 2024.

Copy this file together with ulysses.py, ring.py and the files they need.
"""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

from .arguments import check_qkv
from .layouts import Group, Layout, check_layout, check_part, joined, place, tokens_in
from .layouts import contiguous as in_succession
from .ring import ring_attention
from .tiles import BLOCK
from .ulysses import check_heads, heads_to_tokens, tokens_to_heads


def ulysses_ring_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool = False,
    ulysses_group: Group = None,
    ring_group: Group = None,
    *,
    layout: Layout | None = None,
    block: int = BLOCK,
) -> Tensor:
    """Attention of this rank's queries to the keys of all ranks of both groups.

    Arguments and result are the same as for `ring_attention`, except for the groups, made by `two_groups`.
    layout: for all N ranks, beginning with the ranks of the first Ulysses group; None: parts of equal size in
        succession. `subdivided(zigzag(seq, r), u)` gives equal work in every step.
    """
    check_qkv(q, k, v, block)
    inside, u = place(ulysses_group)
    outside, r = place(ring_group)
    layout = in_succession(u * r * q.shape[1], u * r) if layout is None else layout
    check_layout(layout, u * r)
    check_part("q", q.shape[1], layout, outside * u + inside)
    check_part("k", k.shape[1], layout, outside * u + inside)
    check_heads(q.shape[2], k.shape[2], u)
    together = [layout[i * u : (i + 1) * u] for i in range(r)]  # the tokens of each Ulysses group
    sizes = [tokens_in(spans) for spans in together[outside]]
    q, k, v = (tokens_to_heads(x, sizes, ulysses_group) for x in (q, k, v))
    parts = [joined(spans) for spans in together]
    out = ring_attention(q, k, v, causal, ring_group, layout=parts, block=block)
    return heads_to_tokens(out, sizes, ulysses_group)


def two_groups(u: int) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """(this rank's Ulysses group of u ranks in succession, its ring of every u-th rank), over all ranks.

    Every rank must call it. Raises ValueError if u does not divide the number of ranks.
    """
    n = dist.get_world_size()
    if u < 1 or n % u:
        raise ValueError(f"{n} ranks cannot be cut into groups of {u}: choose a divisor of {n}")
    inside, _ = dist.new_subgroups_by_enumeration(
        [list(range(first, first + u)) for first in range(0, n, u)]
    )
    outside, _ = dist.new_subgroups_by_enumeration([list(range(i, n, u)) for i in range(u)])
    assert isinstance(inside, dist.ProcessGroup) and isinstance(outside, dist.ProcessGroup)
    return inside, outside
