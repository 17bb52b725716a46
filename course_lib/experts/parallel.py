"""Experts on many ranks: each of n ranks holds E / n experts, and tokens travel to their experts and back.

    counts      T k assignments by expert, from each rank to each     an all-to-all of E numbers
    dispatch    rows, in the order of their experts, to the ranks     an all-to-all of rows
    compute     each of E / n experts: its rows from all ranks        nothing
    combine     the results, the same way back                        an all-to-all of rows
    add         each result times its weight, where the token lives   nothing

Rows arrive ordered by source, and within each source by expert. But the products need them by expert, so the
rows are permuted. The permutation is undone before they go back, so each rank gets its rows in the order in
which it sent them.

No size is known before the router has decided. So each rank has to tell all others how many rows it will
send, and the host has to wait for these numbers. This is the price of routing by data.

The experts' gradients are complete without another message, because the rows of all ranks have arrived, and
so have the gradients of their results. Each is a sum over the ranks' losses.

Sources: Lepikhin et al., GShard, 2020, section 3 (experts across devices, two all-to-alls); Megatron-Core's
`MoEAlltoAllTokenDispatcher` and torchtitan's `expert_parallel.py` (unequal parts, no capacity).
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from .all_to_all import Group, exchange
from .mixture import add_to_tokens, by_expert, check_mixture, through_experts


def expert_parallel_moe(
    x: Tensor,
    experts: Tensor,
    weights: Tensor,
    w1: Tensor,
    w3: Tensor,
    w2: Tensor,
    group: Group = None,
) -> Tensor:
    """The result of `moe` with all experts, (T, h).

    x, experts, weights: of this rank's own T tokens, of which there can be none; experts are counted over all
        ranks.
    w1, w3: (E / n, f, h), w2: (E / n, h, f): rank r of the group holds the experts from r E / n on.
    All ranks of the group call it, with experts of one shape.

    In forward it sends 8 bytes for each expert of another rank, this rank's rows for experts of other ranks,
    and the results of the rows that came from other ranks, where a row is h numbers. In backward it sends as
    many rows again (`course_lib.facts.all_to_all_bytes`). The gradients of w1, w3 and w2 are sums over all
    ranks' tokens.

    Raises ValueError if the shapes do not fit each other.
    """
    check_mixture(x, experts, weights, w1, w3, w2)
    n, held = dist.get_world_size(group), len(w1)
    token, order = by_expert(experts)
    counts = experts.flatten().bincount(minlength=n * held)  # int64: rows from here to each expert
    arriving = torch.empty_like(counts)  # rows from each rank to each expert of this one
    dist.all_to_all_single(arriving, counts, group=group)
    send, receive = (rows.view(n, held).sum(1).tolist() for rows in (counts, arriving))

    rows = exchange(x[token], send, receive, group)  # by source, of each source by expert
    expert = torch.arange(held, device=x.device).repeat(n).repeat_interleave(arriving)
    sort = expert.argsort(stable=True)
    out = through_experts(rows[sort], arriving.view(n, held).sum(0).tolist(), w1, w3, w2)
    out = exchange(out[sort.argsort()], receive, send, group)  # by source again, and back

    return add_to_tokens(out, weights.flatten()[order], token, x)
