"""Rows to other ranks, by an all-to-all with unequal parts, and its backward.

Each rank cuts its rows into n parts, the i-th for rank i, and gets n parts, the i-th from rank i. A built-in
all-to-all needs both lists of sizes before it begins, because a receiver has to make room.

`dist.all_to_all_single` has no backward. Its gradient is the same exchange the other way around, since the
rank that received a row has the row's gradient, and the rank that sent the row needs it.

A rank sends the rows of its parts for other ranks, h numbers each, and copies its own part. In backward, it
sends the rows of the parts it received from other ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

Group = dist.ProcessGroup | None


def exchange(
    rows: Tensor, send: Sequence[int], receive: Sequence[int], group: Group = None
) -> Tensor:
    """The rows that arrive: receive[0] of rank 0, then receive[1] of rank 1, and so on; (sum(receive), ...).

    rows: (sum(send), ...), of which the first send[0] go to rank 0 and the next send[1] to rank 1. Ranks are
        counted in the group, and any number can be 0. All ranks of the group call it, and send[i] of rank j
        is receive[j] of rank i. The lists hold Python's integers, so on a GPU the host has waited for them.

    forward: one all-to-all. backward: the reverse, in which send and receive change places.

    Raises ValueError unless each list has one number for each rank and `send` adds up to the number of rows.
    """
    n = dist.get_world_size(group)
    if len(send) != n or len(receive) != n:
        raise ValueError(
            f"send and receive have {len(send)} and {len(receive)} numbers, and the group has {n} ranks"
        )
    if sum(send) != len(rows):
        raise ValueError(f"send sums to {sum(send)}, and there are {len(rows)} rows")
    return _Exchange.apply(rows, list(send), list(receive), group)


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, send: list[int], receive: list[int], group: Group
    ) -> Tensor:
        ctx.back = receive, send, group
        return _all_to_all(rows, send, receive, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:  # pyright: ignore
        return _all_to_all(grad, *ctx.back), None, None, None


def _all_to_all(rows: Tensor, send: list[int], receive: list[int], group: Group) -> Tensor:
    came = rows.new_empty((sum(receive), *rows.shape[1:]))
    dist.all_to_all_single(came, rows.contiguous(), receive, send, group=group)
    return came
