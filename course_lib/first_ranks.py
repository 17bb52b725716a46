"""The first messages: say which rank this is, swap with a neighbour, pass a tensor around a circle.

All N processes run the same function at the same time, and `dist.get_rank()` tells them apart. A message
takes two ranks. The first calls send, the second calls recv, and each waits until its partner has made its
call. So if you write both sides in one function, make sure that not all ranks wait at the same time. There
are two ways:

* break the symmetry, so that one of two partners sends first and the other receives first;
* post both the send and the receive, and wait for them together (`dist.batch_isend_irecv`).

The second way is used here, because it needs no case for odd and even ranks, and works on every backend,
including NCCL, on which an isend followed by an irecv can still deadlock.

Peers are ranks of the group (`group_peer`); plain `dist.send(tensor, dst)` counts in the whole world.
"""

from __future__ import annotations

import torch
import torch.distributed as dist


def hello() -> tuple[int, int, str]:
    """This process's rank, the number of ranks, and the device of its tensors, "cpu" or "cuda:3"."""
    on_gpu = "nccl" in dist.get_backend()
    device = f"cuda:{torch.cuda.current_device()}" if on_gpu else "cpu"
    return dist.get_rank(), dist.get_world_size(), device


def exchange(tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> None:
    """Swap `tensor` with the neighbour rank ^ 1 (0 and 1, 2 and 3, ...), in place.

    tensor: any shape, contiguous or not; the same shape and dtype on both sides. With an odd number of
    ranks, the last rank has no partner and keeps its tensor.
    Sends the tensor's bytes once, in one round. Scratch: one tensor, since a tensor that is being sent
    must not be written.
    """
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    partner = rank ^ 1
    if partner >= n:
        return
    outgoing = tensor.contiguous()  # a message is a row of memory
    incoming = torch.empty_like(outgoing)
    handles = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, outgoing, group=group, group_peer=partner),
            dist.P2POp(dist.irecv, incoming, group=group, group_peer=partner),
        ]
    )
    for handle in handles:
        handle.wait()
    tensor.copy_(incoming)


def ring_shift(tensor: torch.Tensor, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """Send `tensor` to the right neighbour and return the left neighbour's, as a new tensor.

    tensor: any shape, contiguous or not; the same shape and dtype on every rank. It is not changed.
    Rank r sends to r + 1 and receives from r - 1, modulo the number of ranks; a single rank gets a copy
    of its own tensor. Sends the tensor's bytes once, in one round.
    """
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    if n == 1:
        return tensor.clone()
    outgoing = tensor.contiguous()
    incoming = torch.empty_like(outgoing)
    handles = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, outgoing, group=group, group_peer=(rank + 1) % n),
            dist.P2POp(dist.irecv, incoming, group=group, group_peer=(rank - 1) % n),
        ]
    )
    for handle in handles:
        handle.wait()
    return incoming
