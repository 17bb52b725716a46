"""The pairs of functions at the edges of a sharded region.

N ranks hold a tensor in one of three ways. It is *whole* if it is the same on every rank, *cut* if each rank
has a part of it, and *partial* if each rank has a term of a sum. Each function turns one way into another,
and is named after what it does to values in forward and to gradients in backward:

    function                    values, forward           gradients, backward       in Megatron-LM
    identity_all_reduce         nothing                   all-reduce                f, copy_to_...
    all_reduce_identity         all-reduce                nothing                   g, reduce_from_...
    split_all_gather            keep the own part         all-gather                scatter_to_...
    all_gather_split            all-gather                keep the own part         gather_from_...
    all_gather_reduce_scatter   all-gather                reduce-scatter            gather_from_sequence_...
    reduce_scatter_all_gather   reduce-scatter            all-gather                reduce_scatter_to_...

Read a row backwards and you get another row, because the functions are conjugate in pairs. The first pair is
the most important one. If N ranks use a value, each use has a gradient, and the gradient of the value is the
sum of all N. So if forward sends nothing, backward needs an all-reduce. A sum hands its gradient on to every
term unchanged, so after an all-reduce in forward, backward sends nothing.
`torch.distributed.nn.functional.all_reduce` reduces once more in backward, since it treats the result on each
rank as a separate result. Here the results are copies of one result, and every rank begins backward with the
whole gradient of one loss, so another all-reduce would make it N times too large.

There are two ways to put parts together, and the choice depends on the work that follows. If every rank goes
on with the same work, the gradients of the N copies are equal, so each rank keeps its part
(`all_gather_split`). If each rank goes on with work of its own, as after `identity_all_reduce`, the gradients
are N terms of a sum, so they have to be added up (`all_gather_reduce_scatter`).

If the whole tensor has M bytes, each rank sends 2 (N-1)/N M for an all-reduce, and half as much, (N-1)/N M,
for an all-gather or a reduce-scatter.

Source: Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
Parallelism", 2019, section 3 (f and g); Korthikanti et al., "Reducing Activation Recomputation in Large
Transformer Models", 2022, section 4.2.2 (the same along the sequence).

This file imports torch only.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

Group = dist.ProcessGroup | None


def identity_all_reduce(x: Tensor, group: Group = None) -> Tensor:
    """Into a sharded region: `x` is whole, and each rank uses it for its own part of the work.

    forward: x itself, nothing sent. backward: the sum of all ranks' gradients, 2 (N-1)/N M sent.
    """
    return _IdentityAllReduce.apply(x, group)


def all_reduce_identity(x: Tensor, group: Group = None) -> Tensor:
    """Out of a sharded region: each rank holds a term of a sum.

    forward: the sum, in a new tensor, 2 (N-1)/N M sent. backward: the gradient itself, nothing sent.
    """
    return _AllReduceIdentity.apply(x, group)


def split_all_gather(x: Tensor, group: Group = None, dim: int = -1) -> Tensor:
    """Into a sharded region: each rank uses only its own part of a whole `x`.

    forward: the rank's part along `dim`, cut as `torch.tensor_split` does, nothing sent.
    backward: the parts' gradients put together, (N-1)/N M sent (parts padded to the longest).
    """
    return _SplitAllGather.apply(x, group, dim)


def all_gather_split(
    x: Tensor, group: Group = None, dim: int = -1, size: int | None = None
) -> Tensor:
    """Out of a sharded region: each rank holds a part along `dim`, and all need the whole.

    forward: the parts put together, (N-1)/N M sent (parts padded to the longest). backward: the rank's part
    of the gradient, nothing sent, because all ranks go on with the same work and so have equal gradients.
    size: elements of the whole along `dim`, cut as `torch.tensor_split` does; None: all parts are equal.
    """
    return _AllGatherSplit.apply(x, group, dim, size)


def all_gather_reduce_scatter(x: Tensor, group: Group = None, dim: int = -2) -> Tensor:
    """Into a sharded region, from parts (of the sequence) along `dim`: each rank uses the whole differently.

    forward: the parts put together, (N-1)/N M sent. backward: the rank's part of the sum of all ranks'
    gradients, (N-1)/N M sent. Together, they send as much as `identity_all_reduce`. All parts are equal.
    """
    return _AllGatherReduceScatter.apply(x, group, dim)


def reduce_scatter_all_gather(x: Tensor, group: Group = None, dim: int = -2) -> Tensor:
    """Out of a sharded region, to parts (of the sequence) along `dim`: each rank holds a term of a sum.

    forward: the rank's part of the sum, (N-1)/N M sent. backward: the parts' gradients put together,
    (N-1)/N M sent. Together, they send as much as `all_reduce_identity`. Raises ValueError if N does not
    divide the dimension.
    """
    return _ReduceScatterAllGather.apply(x, group, dim)


class _IdentityAllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # pyright: ignore
        return all_reduce(grad, ctx.group), None


class _AllReduceIdentity(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        return all_reduce(x, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # pyright: ignore
        return grad, None


class _SplitAllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, dim: int) -> Tensor:
        ctx.group, ctx.dim, ctx.size = group, dim, x.shape[dim]
        return own_part(x, group, dim)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore
        return all_gather(grad, ctx.group, ctx.dim, ctx.size), None, None


class _AllGatherSplit(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, dim: int, size: int | None) -> Tensor:
        ctx.group, ctx.dim = group, dim
        return all_gather(x, group, dim, size)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:  # pyright: ignore
        return own_part(grad, ctx.group, ctx.dim), None, None, None


class _AllGatherReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, dim: int) -> Tensor:
        ctx.group, ctx.dim = group, dim
        return all_gather(x, group, dim)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore
        return reduce_scatter(grad, ctx.group, ctx.dim), None, None


class _ReduceScatterAllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, dim: int) -> Tensor:
        ctx.group, ctx.dim = group, dim
        return reduce_scatter(x, group, dim)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore
        return all_gather(grad, ctx.group, ctx.dim), None, None


# ---- the collectives below them, on plain values without gradients


def place(group: Group = None) -> tuple[int, int]:
    """This process's rank in `group`, and the group's size; ValueError on a rank outside the group."""
    rank = dist.get_rank(group)
    if rank < 0:
        raise ValueError(
            f"rank {dist.get_rank()} is not in the group that it passed: only the group's own ranks "
            "may call. Guard the call with `if dist.get_rank() in ranks:`."
        )
    return rank, dist.get_world_size(group)


def own_part(x: Tensor, group: Group, dim: int) -> Tensor:
    """A copy of this rank's part of `x`, since a view would keep the whole alive."""
    rank, n = place(group)
    return x.tensor_split(n, dim)[rank].clone(memory_format=torch.contiguous_format) if n > 1 else x


def all_reduce(x: Tensor, group: Group) -> Tensor:
    """The sum over the ranks, in a new tensor."""
    total = x.clone(memory_format=torch.contiguous_format)
    if place(group)[1] > 1 and total.numel():
        dist.all_reduce(total, group=group)
    return total


def all_gather(x: Tensor, group: Group, dim: int, size: int | None = None) -> Tensor:
    """The ranks' parts one after the other along `dim`; see `all_gather_split` for `size`."""
    _, n = place(group)
    if n == 1:
        return x
    dim = dim % x.dim()
    if size is None or size % n == 0:
        pieces = x.new_empty(n, *x.shape)
        _all_gather_into_tensor(pieces.flatten(0, 1), x.contiguous(), group=group)
        return pieces.movedim(0, dim).flatten(dim, dim + 1)
    longest = -(-size // n)
    padded = torch.cat(
        [x, x.new_zeros(*x.shape[:dim], longest - x.shape[dim], *x.shape[dim + 1 :])], dim
    )
    pieces = padded.new_empty(n, *padded.shape)
    _all_gather_into_tensor(pieces.flatten(0, 1), padded, group=group)
    kept = [piece.narrow(dim, 0, (size + n - 1 - rank) // n) for rank, piece in enumerate(pieces)]
    return torch.cat(kept, dim)


def reduce_scatter(x: Tensor, group: Group, dim: int) -> Tensor:
    """This rank's part along `dim` of the sum over the ranks."""
    _, n = place(group)
    if n == 1:
        return x
    dim = dim % x.dim()
    if x.shape[dim] % n:
        raise ValueError(
            f"{x.shape[dim]} positions (dimension {dim} of {tuple(x.shape)}) cannot be shared equally by {n} "
            f"ranks: pad the sequence to a multiple of {n}"
        )
    pieces = x.unflatten(dim, (n, x.shape[dim] // n)).movedim(dim, 0).contiguous()
    part = torch.empty_like(pieces[0])
    _reduce_scatter_tensor(part, pieces.flatten(0, 1), group=group)
    return part


# PyTorch 2.13 renames both and warns of the old names; 2.6 knows only the old ones.
_reduce_scatter_tensor = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
_all_gather_into_tensor = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
