"""Collectives by doubling: in round k, each rank talks to the rank whose number differs in bit k.

After one round each rank knows what two ranks knew, after two rounds what four knew, and after log2 N
rounds what all N knew. No algorithm lets a rank hear from all others in fewer rounds. The algorithms differ
in the size of their messages. Recursive doubling sends the whole tensor in every round, which is right for
small tensors. Rabenseifner's algorithm sends halves, quarters, eighths and so on. It sends as few bytes as
a ring, but in 2 log2 N rounds instead of 2 (N-1).

    recursive_doubling_all_reduce   log2 N M bytes sent by each rank    log2 N rounds
    rabenseifner_all_reduce         2 (N-1)/N M                         2 log2 N
    barrier                         ceil(log2 N) bytes                  ceil(log2 N)

If N is not a power of two, let C be the largest power of two below N. The N - C extra ranks first hand
their tensors to core ranks, and get the result at the end. This takes two more rounds, and each core rank
that serves an extra rank sends M more.

Source: Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH",
International Journal of High Performance Computing Applications 19 (2005), on all-reduce; Rabenseifner,
"Optimization of Collective Reduction Operations", ICCS 2004; Hensgen, Finkel and Manber, "Two Algorithms for
Barrier Synchronization", International Journal of Parallel Programming 17 (1988).

Arguments follow the order and the habits of `torch.distributed`.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from .messages import Group, exchange, flat_to_write, put_back, rank_and_size


def recursive_doubling_all_reduce(tensor: Tensor, group: Group = None) -> None:
    """Sum `tensor` over the ranks of `group`, in place, in log2 N rounds.

    tensor: any shape, contiguous or not; the same shape and dtype on every rank.
    In round k, rank r swaps its sum with rank r XOR 2^k, and both add, so that 2^(k+1) ranks agree.
    Bytes sent: log2 N M by each rank; if N is not a power of two, at most (floor(log2 N) + 1) M, in
    floor(log2 N) + 2 rounds. Scratch: one tensor.
    Two partners add the same two sums, one as a + b and the other as b + a. Both have the same bits, so all
    ranks end with the same bits.

    Raises ValueError if `tensor` cannot be written; TypeError if it is not a dense tensor.
    """
    rank, _ = rank_and_size(group)
    flat = flat_to_write(tensor)
    arriving = torch.empty_like(flat)
    core = _fold(flat, arriving, group)
    distance = 1
    while distance < core and rank < core:
        partner = rank ^ distance
        exchange(group, receives=[(arriving, partner)], sends=[(flat, partner)])
        flat += arriving
        distance *= 2
    _unfold(flat, core, group)
    put_back(flat, tensor)


def rabenseifner_all_reduce(tensor: Tensor, group: Group = None) -> None:
    """Sum `tensor` over the ranks of `group`, in place, with the bytes of a ring but in O(log N) rounds.

    tensor: any shape, contiguous or not; the same shape and dtype on every rank.
    1. Reduce-scatter by halving. Each rank sends one half of its tensor to its partner, receives the
       partner's other half and adds it. Then it halves that half, and so on until it holds 1/C of the sum.
    2. All-gather by doubling. The same partners meet in reverse order, each time with twice as much.
    Bytes sent: 2 (N-1)/N M by each rank, in 2 log2 N rounds; if N is not a power of two, up to
    M + 2 (C-1)/C M, in 2 log2 C + 2 rounds. Scratch: one tensor.
    Every element is summed on one rank and copied from there, so all ranks end with the same bits.

    Raises ValueError if `tensor` cannot be written; TypeError if it is not a dense tensor.
    """
    rank, _ = rank_and_size(group)
    flat = flat_to_write(tensor)
    arriving = torch.empty_like(flat)
    core = _fold(flat, arriving, group)
    if rank < core:
        _halve_and_double(flat, arriving, rank, core, group)
    _unfold(flat, core, group)
    put_back(flat, tensor)


def _halve_and_double(flat: Tensor, scratch: Tensor, rank: int, core: int, group: Group) -> None:
    start = [0]  # chunk i is flat[start[i] : start[i + 1]]
    for chunk in flat.tensor_split(core):
        start.append(start[-1] + chunk.numel())

    def chunks(first: int, count: int) -> Tensor:
        return flat[start[first] : start[first + count]]

    distance = core // 2
    while distance:  # work on 2 * distance chunks, and keep the half with chunk `rank`
        low, partner = rank - rank % distance, rank ^ distance
        keep, give = chunks(low, distance), chunks(low ^ distance, distance)
        arriving = scratch[: keep.numel()]
        exchange(group, receives=[(arriving, partner)], sends=[(give, partner)])
        keep += arriving
        distance //= 2
    distance = 1
    while distance < core:  # `distance` chunks are complete here, and as many on the partner
        low, partner = rank - rank % distance, rank ^ distance
        mine, theirs = chunks(low, distance), chunks(low ^ distance, distance)
        exchange(group, receives=[(theirs, partner)], sends=[(mine, partner)])
        distance *= 2


def _fold(flat: Tensor, scratch: Tensor, group: Group) -> int:
    """Add the tensors of the extra ranks C, C + 1, ... to the tensors of ranks 0, 1, ..., and return C."""
    rank, n = rank_and_size(group)
    core = 1 << n.bit_length() - 1
    if rank >= core:
        exchange(group, sends=[(flat, rank - core)])
    elif rank + core < n:
        exchange(group, receives=[(scratch, rank + core)])
        flat += scratch
    return core


def _unfold(flat: Tensor, core: int, group: Group) -> None:
    """Hand the result to the extra ranks."""
    rank, n = rank_and_size(group)
    if rank >= core:
        exchange(group, receives=[(flat, rank - core)])
    elif rank + core < n:
        exchange(group, sends=[(flat, rank + core)])


def barrier(group: Group = None) -> None:
    """Return as soon as every rank of `group` has called this function (a dissemination barrier).

    In round k, rank r tells rank r + 2^k that r has arrived, and so have all ranks r has heard from. Rank r
    hears the same from rank r - 2^k. After ceil(log2 N) rounds, every rank has heard from all others, either
    directly or through other ranks.
    Bytes sent: one in each round, since a message of no bytes might never arrive. N can be any number.
    """
    rank, n = rank_and_size(group)
    on_gpu = "nccl" in dist.get_backend(group)
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    here = torch.ones(1, dtype=torch.uint8, device=device)
    heard = torch.zeros_like(here)
    distance = 1
    while distance < n:
        exchange(
            group, receives=[(heard, (rank - distance) % n)], sends=[(here, (rank + distance) % n)]
        )
        distance *= 2
    heard.item()  # on a GPU wait() holds up only the stream; item() holds up the process
