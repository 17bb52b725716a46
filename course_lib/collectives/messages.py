"""The algorithms of this package share three things: ranks in a group, tensors as rows, rounds of messages.

    rank_and_size, group_rank   the rank of this process in the group, and the rank of a root
    flat_to_read, flat_to_write a tensor of any strides as a contiguous row; `put_back` writes the row back
    check_sizes                 whether two tensors fit each other
    exchange                    one round of messages

Messages carry contiguous rows, so all other tensors are copied. If no algorithm could work with an
argument, it is refused here, before anything is sent.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

Group = dist.ProcessGroup | None
Messages = Sequence[tuple[Tensor, int]]  # rows, each with the rank of its other end in the group


def rank_and_size(group: Group) -> tuple[int, int]:
    """This process's rank in `group`, and the group's size; ValueError on a rank outside the group."""
    rank = dist.get_rank(group)
    if rank < 0:
        raise ValueError(
            f"rank {dist.get_rank()} is not in the group that it passed: only the group's own ranks "
            "may call. Guard the call with `if dist.get_rank() in ranks:`."
        )
    return rank, dist.get_world_size(group)


def members(group: Group) -> list[int]:
    """The group's ranks, as the whole world counts them."""
    return dist.get_process_group_ranks(dist.group.WORLD if group is None else group)


def group_rank(root: int, name: str, group: Group) -> int:
    """The rank in `group` of the world's rank `root`, which is the argument `name`."""
    if root not in members(group):
        raise ValueError(
            f"{name}={root} is not in the group, whose ranks in the whole world are {members(group)}"
        )
    return members(group).index(root)


def exchange(group: Group, receives: Messages = (), sends: Messages = ()) -> None:
    """One round of messages; returns when all have arrived and the sent rows can be overwritten.

    All messages start together. If they started one after another, they could wait for each other, because
    NCCL runs operations in the order in which it gets them. Receives are listed first, so that no message
    has to wait for its receive. Messages of no bytes are left out.
    """
    batch = [dist.P2POp(dist.irecv, t, group=group, group_peer=r) for t, r in receives if t.numel()]
    batch += [dist.P2POp(dist.isend, t, group=group, group_peer=r) for t, r in sends if t.numel()]
    for work in dist.batch_isend_irecv(batch) if batch else ():
        work.wait()


def flat_to_read(tensor: Tensor, name: str, output: Tensor | None = None) -> Tensor:
    """The elements of `tensor` in a row, which is its own memory if it is contiguous, else a copy.

    The row is also a copy if `tensor` shares memory with `output`, which is written while the row is
    still needed.
    """
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
        kind = getattr(tensor, "layout", type(tensor).__name__)
        raise TypeError(f"{name} is a {kind}; a dense torch.Tensor is expected")
    row = tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1)
    memory = None if output is None else output.untyped_storage().data_ptr()
    return row.clone() if row.untyped_storage().data_ptr() == memory else row


def flat_to_write(tensor: Tensor, name: str = "tensor") -> Tensor:
    """The same for a tensor that will be written. Change the row, then call `put_back`."""
    row = flat_to_read(tensor, name)
    reach = 1  # elements from the first to the last of the dimensions looked at so far
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride < reach and tensor.numel():
            raise ValueError(
                f"{name} cannot be written: several of its elements share one place in memory (strides "
                f"{tensor.stride()}, as expand makes them). Pass a clone()."
            )
        reach += stride * (size - 1)
    return row


def put_back(row: Tensor, tensor: Tensor) -> None:
    """Write the elements of `row` into `tensor`, unless both already share the same memory."""
    if row.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(row.view(tensor.shape))


def check_sizes(times: int, **tensors: Tensor) -> None:
    """The first of the two tensors must hold `times` as many elements as the second, of the same kind."""
    (name, whole), (other, part) = tensors.items()
    alike = whole.dtype == part.dtype and whole.device == part.device
    if not alike or whole.numel() != times * part.numel():
        raise ValueError(
            f"{name} has {whole.numel()} elements of {whole.dtype} on {whole.device}, {other} "
            f"{part.numel()} of {part.dtype} on {part.device}: {name} must have {times} x {part.numel()}, of "
            "the same dtype on the same device. Pad a size that the number of ranks does not divide."
        )
