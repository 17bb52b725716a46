"""Top-k sparsification: send the largest elements, keep the rest for later.

Most of a gradient's norm sits in few elements. A rank adds what it kept back in earlier steps, picks the k
elements of largest magnitude, sends them, and keeps all others. What is not sent is not lost: it adds
up until it is large enough to be picked.

Ranks pick different elements, so there is no common vector to all-reduce: an element travels as a
pair of index and value, and every rank gets all pairs of all ranks. That is an all-gather, whose
traffic grows with N: each rank sends (N-1) k (index + value) bytes, where a ring all-reduce of M bytes
never sends more than 2 M. With 4-byte indices and values and k = fraction x size the two are equal at
N = 1 / fraction: 1 % saves nothing at 100 ranks. A compression of 100 would be 50 on two ranks,
since indices cost as much as values.

Source: Aji and Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017; Lin et al.,
"Deep Gradient Compression", ICLR 2018; convergence: Stich, Cordonnier and Jaggi, "Sparsified SGD with
Memory", NeurIPS 2018. This file imports torch only.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

Group = dist.ProcessGroup | None


@torch.no_grad()
def topk_all_reduce(
    tensor: torch.Tensor, fraction: float, error: torch.Tensor, group: Group = None
) -> None:
    """Replace `tensor` by the mean over the ranks of the largest elements of `tensor + error`.

    tensor: any shape, floating point; the same shape and dtype on every rank. Overwritten by the mean.
    fraction: share of the elements that each rank sends, above 0 and at most 1; at least one element.
    error: what this rank has kept back so far: the tensor's shape, zeros before the first step, float32
        or wider to keep all of it. Overwritten: what was sent plus `error` is what was asked, exactly.
    Sends (N-1) k (4 + itemsize) bytes per rank, with k = round(fraction x size): one all-gather of the
    indices (8 bytes each from 2^31 elements on), one of the values, in the tensor's dtype. Scratch: one
    tensor and all pairs. The same bits on every rank.

    Raises ValueError for a fraction, a dtype or an error that does not fit; TypeError for what is no tensor.
    """
    _, n = _place(group)
    _check_pair(tensor, error, ("tensor", "error"))
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction={fraction}: the share of the elements to send lies in (0, 1]")
    if not tensor.numel():
        return
    k = max(1, round(fraction * tensor.numel()))
    wide = torch.promote_types(error.dtype, torch.float32)
    asked = (tensor.to(wide) + error).reshape(-1)
    indices = asked.abs().topk(k, sorted=False).indices
    values = asked[indices].to(tensor.dtype)
    every_index = _all_gather(indices.to(_index_dtype(tensor.numel())), n, group)
    every_value = _all_gather(values, n, group)

    mean = torch.zeros_like(asked)
    for theirs, value in zip(
        every_index, every_value, strict=True
    ):  # no index twice in one of them
        mean.index_add_(0, theirs.long(), value.to(mean.dtype))
    asked[indices] -= values.to(asked.dtype)
    _keep(error, asked)
    tensor.copy_((mean / n).view(tensor.shape))


def _index_dtype(numel: int) -> torch.dtype:
    return torch.int32 if numel < 1 << 31 else torch.int64


def _all_gather(mine: torch.Tensor, n: int, group: Group) -> torch.Tensor:
    """(n, k): row r is what rank r has."""
    every = mine.new_empty(n * mine.numel())
    gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # its name since 2.13
    gather(every, mine, group=group)
    return every.view(n, -1)


# ---- plumbing: the same in every file of this package, so that each can be copied out alone


def _place(group: Group) -> tuple[int, int]:
    """This process's rank in `group`, and the group's size."""
    rank = dist.get_rank(group)
    if rank < 0:
        raise ValueError(
            f"rank {dist.get_rank()} is not in the group that it passed: only the group's own ranks "
            "may call. Guard the call with `if dist.get_rank() in ranks:`."
        )
    return rank, dist.get_world_size(group)


def _check_pair(tensor: torch.Tensor, error: torch.Tensor, names: tuple[str, str]) -> None:
    """Both are dense tensors of real numbers that can be written, alike in shape and device."""
    for one, name in zip((tensor, error), names, strict=True):
        if not isinstance(one, torch.Tensor):
            raise TypeError(f"{name} is a {type(one).__name__}; a torch.Tensor is expected")
        if not one.is_floating_point() or one.layout != torch.strided:
            raise ValueError(
                f"{name} is {one.dtype}, {one.layout}: only dense tensors of floating-point numbers can "
                "be compressed. Average whole numbers with dist.all_reduce; use to_dense()."
            )
    if tensor.shape != error.shape or tensor.device != error.device:
        raise ValueError(
            f"{names[0]} is {tuple(tensor.shape)} on {tensor.device} and {names[1]} {tuple(error.shape)} on "
            f"{error.device}: they must be alike. Make the residual once, before the first step: "
            "error = torch.zeros_like(tensor)."
        )


def _keep(error: torch.Tensor, residual: torch.Tensor) -> None:
    """Write the residual into `error`; where it is infinite or not a number, zero.

    An overflow has been sent and shows in every rank's result; remembered, it would spoil all later ones.
    """
    error.detach().copy_(residual.reshape(error.shape).nan_to_num(0.0, 0.0, 0.0))
