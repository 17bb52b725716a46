"""The helpers shared by the compressors of this package.

rank_and_size        this process's rank in the group
mean_over_ranks      an all-reduce, for tensors that can be added on the way
all_gather           for tensors that cannot be added, such as packed elements and indices
check_pair, keep     error feedback, which keeps what was not sent for the next step
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

Group = dist.ProcessGroup | None
Tensors = Sequence[torch.Tensor]


def rank_and_size(group: Group) -> tuple[int, int]:
    """This process's rank in `group`, and the group's size; ValueError on a rank outside the group."""
    rank = dist.get_rank(group)
    if rank < 0:
        raise ValueError(
            f"rank {dist.get_rank()} is not in the group that it passed: only the group's own ranks "
            "may call. Guard the call with `if dist.get_rank() in ranks:`."
        )
    return rank, dist.get_world_size(group)


def mean_over_ranks(tensors: Tensors, group: Group) -> list[torch.Tensor]:
    """The mean of each tensor over the ranks, by one all-reduce of all tensors together."""
    _, n = rank_and_size(group)
    if not tensors:
        return []
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    dist.all_reduce(flat, group=group)
    flat /= n
    parts = flat.split([tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


def all_gather(mine: torch.Tensor, group: Group) -> torch.Tensor:
    """(n, k): row r holds the k elements of rank r's `mine`."""
    _, n = rank_and_size(group)
    rows = mine.new_empty(n, mine.numel())
    gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # its name since 2.13
    gather(rows, mine.reshape(1, -1), group=group)
    return rows


def check_pair(tensor: torch.Tensor, error: torch.Tensor, names: tuple[str, str]) -> None:
    """Require two dense tensors of floating-point numbers with the same shape and device."""
    for item, name in zip((tensor, error), names, strict=True):
        if not isinstance(item, torch.Tensor):
            raise TypeError(f"{name} is a {type(item).__name__}; a torch.Tensor is expected")
        if not item.is_floating_point() or item.layout != torch.strided:
            raise ValueError(
                f"{name} is {item.dtype}, {item.layout}: only dense tensors of floating-point numbers can "
                "be compressed. Average whole numbers with dist.all_reduce; use to_dense()."
            )
    if tensor.shape != error.shape or tensor.device != error.device:
        raise ValueError(
            f"{names[0]} is {tuple(tensor.shape)} on {tensor.device} and {names[1]} {tuple(error.shape)} on "
            f"{error.device}: they must be alike. Make the residual once, before the first step: "
            "error = torch.zeros_like(tensor)."
        )


def keep(error: torch.Tensor, residual: torch.Tensor) -> None:
    """Write the residual into `error`, with zero for an element that is infinite or not a number.

    An overflow has been sent, so it shows in every rank's result. If `error` kept it as well, it would
    spoil all later results.
    """
    error.detach().copy_(residual.reshape(error.shape).nan_to_num(0.0, 0.0, 0.0))
