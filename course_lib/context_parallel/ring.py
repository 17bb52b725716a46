"""Ring attention: every rank keeps its queries, while the keys and values of all ranks come by.

Each of N ranks holds a part of the sequence. Queries need all keys and values, but gathering these would put
the whole sequence on every rank. So keys and values go around a ring instead. In step i, rank r has the keys
and values of rank r - i and merges its queries' attention to them into its result (`online_softmax_merge`).
At the same time, it passes them on to rank r + 1 and receives the next ones from rank r - 1. Since nothing is
sent in the last step, there are N steps but only N - 1 messages per rank.

        rank 0    rank 1    rank 2    rank 3        the keys and values of each rank
          0         1         2         3           step 0
          3         0         1         2           step 1
          2         3         0         1           step 2
          1         2         3         0           step 3

In backward, keys and values go around again, and their gradients follow, because rank r's keys collect a
share of their gradient on every rank, and the sum must end up on rank r. The sum starts there, follows the
keys one step behind, and is back after N messages.

If a rank's keys and values have M bytes, it sends (N-1) M in N - 1 messages in forward. In backward, it sends
the same again, and N M for the gradients in N messages (twice as many bytes for 16 bits, because sums are
kept in float32). The messages hide behind the computation if a part is long enough (see
`course_lib.facts.hiding_block`).

Source: Liu, Zaharia, Abbeel, Ring Attention with Blockwise Transformers for Near-Infinite Context, 2023;
Li et al., Sequence Parallelism, 2021 (the ring). For layouts for causal masks, see `layouts.py`.

Copy this file together with tiles.py, softmax.py, layouts.py and arguments.py.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from .arguments import check_qkv
from .layouts import Group, Layout, Spans, check_layout, check_part, contiguous, place, tokens_in
from .softmax import online_softmax_merge
from .tiles import BLOCK, Tiling, backward_tiles, forward_tiles, row_delta


def ring_attention(
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

    q: (batch, tokens here, heads, head_dim); k, v: (batch, tokens here, kv_heads, head_dim), as for
        `tiled_attention`. All ranks call it, with the same batch, heads and dtype.
    layout: where each rank's tokens are in the sequence. None means parts of equal size in succession.
    block: within a step, scores are made in tiles of block x block.

    Returns a tensor of q's shape and dtype, merged in float32 at least. Gradients of k and v return to the
    rank of k and v. Raises ValueError if shapes do not fit each other or the layout.
    """
    check_qkv(q, k, v, block)
    rank, n = place(group)
    layout = contiguous(n * q.shape[1], n) if layout is None else layout
    check_layout(layout, n)
    for name, x in (("q", q), ("k", k)):
        check_part(name, x.shape[1], layout, rank)
    return _RingAttention.apply(q, k, v, causal, group, layout, block)


class _RingAttention(torch.autograd.Function):
    """forward: keys and values go around, and out is merged.

    backward: keys and values go around again, and their gradients follow one step behind them.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor,
        causal: bool, group: Group, layout: Layout, block: int,
    ) -> Tensor:  # fmt: skip
        rank, n = place(group)
        dtype = torch.promote_types(q.dtype, torch.float32)
        out = q.new_zeros(q.shape, dtype=dtype)
        lse = q.new_full(q.shape[:-1], -torch.inf, dtype=dtype)
        kv = torch.stack((k, v))
        for step in range(n):
            owner = (rank - step) % n
            last = step == n - 1
            next_kv, sending = (kv, []) if last else pass_on(kv, layout[owner - 1], group)
            if not causal or any_seen(layout[rank], layout[owner]):
                k_here, v_here = kv
                tiling = Tiling(layout[rank], layout[owner], causal, block)
                part_out, part_lse = forward_tiles(q, k_here, v_here, tiling)
                out, lse = online_softmax_merge(out, lse, part_out, part_lse)
            wait(sending)
            kv = next_kv
        ctx.where = causal, group, layout, block
        ctx.save_for_backward(q, k, v, out := out.to(q.dtype), lse)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        q, k, v, out, lse = ctx.saved_tensors
        causal, group, layout, block = ctx.where
        rank, n = place(group)
        delta = row_delta(out, grad)
        dq = torch.zeros_like(q, dtype=lse.dtype)
        kv = torch.stack((k, v))
        sum_before, bringing = lse.new_zeros(()), []  # from the ranks that had these keys before
        for step in range(n):
            owner = (rank - step) % n
            last = step == n - 1
            next_kv, sending = (kv, []) if last else pass_on(kv, layout[owner - 1], group)
            dkv = torch.zeros_like(kv, dtype=lse.dtype)
            if not causal or any_seen(layout[rank], layout[owner]):
                (k_here, v_here), (dk_here, dv_here) = kv, dkv
                tiling = Tiling(layout[rank], layout[owner], causal, block)
                backward_tiles(
                    q, k_here, v_here, tiling,
                    grad=grad, lse=lse, delta=delta, dq=dq, dk=dk_here, dv=dv_here,
                )  # fmt: skip
            wait(bringing)
            dkv += sum_before
            sum_before, bringing = pass_on(dkv, layout[owner - 1], group)
            wait(sending)
            kv = next_kv
        wait(bringing)  # after the last transfer the sums for this rank's own keys
        dk, dv = sum_before.to(k.dtype)
        return dq.to(q.dtype), dk, dv, None, None, None, None


def pass_on(tensor: Tensor, arriving: Spans, group: Group) -> tuple[Tensor, list[dist.Work]]:
    """Begin to send `tensor` to the next rank, and to receive the previous rank's tensor.

    tensor: (2, batch, tokens, kv_heads, head_dim); arriving: the spans of the arriving tokens. Do not touch
    either tensor before `wait`. Send and receive are posted together, because they could deadlock on NCCL if
    one were posted after the other.
    """
    rank, n = place(group)
    if n == 1:
        return tensor, []
    two, batch, _, kv_heads, head_dim = tensor.shape
    received = tensor.new_empty(two, batch, tokens_in(arriving), kv_heads, head_dim)
    ends = [(dist.isend, tensor, (rank + 1) % n), (dist.irecv, received, (rank - 1) % n)]
    operations = [
        dist.P2POp(call, buffer, group=group, group_peer=peer)
        for call, buffer, peer in ends
        if buffer.numel()  # a rank without tokens
    ]
    return received, dist.batch_isend_irecv(operations) if operations else []


def wait(works: list[dist.Work]) -> None:
    for work in works:
        work.wait()


def any_seen(q_spans: Spans, k_spans: Spans) -> bool:
    """Whether a causal mask lets any of these queries see any of these keys; if not, the step is skipped."""
    return any(queries[-1] >= keys[0] for queries in q_spans for keys in k_spans)
