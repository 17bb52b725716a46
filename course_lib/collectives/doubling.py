"""Collectives by doubling: in round k each rank talks to the one whose number differs in bit k.

After one round each rank knows what two ranks knew, after two rounds four, after log2 N all N. That is
the least number of rounds in which a rank can have heard from everybody. What is sent in them makes the
difference: the whole tensor in every round (recursive doubling: right for small tensors), or halves,
quarters, eighths (Rabenseifner: as few bytes as a ring in 2 log2 N rounds instead of 2 (N-1)).

    recursive_doubling_all_reduce   log2 N M bytes sent by each rank    log2 N rounds
    rabenseifner_all_reduce         2 (N-1)/N M                         2 log2 N
    barrier                         ceil(log2 N) bytes                  ceil(log2 N)

When N is no power of two, let C be the largest one below it. The N - C extra ranks first hand their
tensors to core ranks and get the result at the end: two rounds more, M more for a rank that has an extra one.

Source: Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH",
International Journal of High Performance Computing Applications 19 (2005), on all-reduce; Rabenseifner,
"Optimization of Collective Reduction Operations", ICCS 2004; Hensgen, Finkel and Manber, "Two Algorithms for
Barrier Synchronization", International Journal of Parallel Programming 17 (1988).

Arguments and habits are those of `torch.distributed`; each file of this package imports torch only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist

Group = dist.ProcessGroup | None
Messages = Sequence[tuple[torch.Tensor, int]]


def recursive_doubling_all_reduce(tensor: torch.Tensor, group: Group = None) -> None:
    """Sum `tensor` over the ranks of `group`, in place, in log2 N rounds.

    tensor: any shape, contiguous or not; the same shape and dtype on every rank.
    In round k rank r swaps its sum with rank r XOR 2^k, and both add: now 2^(k+1) ranks agree.
    Bytes sent: log2 N M by each rank; with N no power of two at most (floor(log2 N) + 1) M, in
    floor(log2 N) + 2 rounds. Scratch: one tensor.
    Two partners add the same two sums, a + b and b + a, which have the same bits: so all ranks do.

    Raises ValueError for a tensor that cannot be written; TypeError for what is no tensor.
    """
    rank, _ = _place(group)
    flat = _flat(tensor)
    arriving = torch.empty_like(flat)
    core = _fold(flat, arriving, group)
    distance = 1
    while distance < core and rank < core:
        partner = rank ^ distance
        _wait(_post([(arriving, partner)], [(flat, partner)], group))
        flat += arriving
        distance *= 2
    _unfold(flat, core, group)
    _put_back(flat, tensor)


def rabenseifner_all_reduce(tensor: torch.Tensor, group: Group = None) -> None:
    """Sum `tensor` over the ranks of `group`, in place: a ring's bytes in a logarithm of rounds.

    tensor: any shape, contiguous or not; the same shape and dtype on every rank.
    1. Reduce-scatter by halving: each rank gives its partner one half of what it has, gets the other
       half of the partner's and adds; then halves of that half, until it holds 1/C of the sum.
    2. All-gather by doubling: the same partners in reverse, each time with twice as much.
    Bytes sent: 2 (N-1)/N M by each rank, in 2 log2 N rounds; with N no power of two up to
    M + 2 (C-1)/C M, in 2 log2 C + 2. Scratch: one tensor.
    Every element is summed on one rank and copied from there: the same bits on every rank.

    Raises ValueError for a tensor that cannot be written; TypeError for what is no tensor.
    """
    rank, _ = _place(group)
    flat = _flat(tensor)
    arriving = torch.empty_like(flat)
    core = _fold(flat, arriving, group)
    if rank < core:
        _halve_and_double(flat, arriving, rank, core, group)
    _unfold(flat, core, group)
    _put_back(flat, tensor)


def _halve_and_double(
    flat: torch.Tensor, scratch: torch.Tensor, rank: int, core: int, group: Group
) -> None:
    start = [0]  # chunk i is flat[start[i] : start[i + 1]]
    for chunk in flat.tensor_split(core):
        start.append(start[-1] + chunk.numel())

    def chunks(low: int, high: int) -> torch.Tensor:
        return flat[start[low] : start[high]]

    distance = core // 2
    while distance:  # this rank works on 2 * distance chunks, and keeps the half that it stands in
        low = rank - rank % distance
        partner = rank ^ distance
        keep, give = (
            chunks(low, low + distance),
            chunks(low ^ distance, (low ^ distance) + distance),
        )
        arriving = scratch[: keep.numel()]
        _wait(_post([(arriving, partner)], [(give, partner)], group))
        keep += arriving
        distance //= 2
    distance = 1
    while distance < core:  # `distance` chunks are complete here, as many on the partner
        low = rank - rank % distance
        partner = rank ^ distance
        mine, theirs = (
            chunks(low, low + distance),
            chunks(low ^ distance, (low ^ distance) + distance),
        )
        _wait(_post([(theirs, partner)], [(mine, partner)], group))
        distance *= 2


def _fold(flat: torch.Tensor, scratch: torch.Tensor, group: Group) -> int:
    """Add the tensors of the extra ranks C, C + 1, ... to those of ranks 0, 1, ...; returns C."""
    rank, n = _place(group)
    core = 1 << n.bit_length() - 1
    if rank >= core:
        _wait(_post([], [(flat, rank - core)], group))
    elif rank + core < n:
        _wait(_post([(scratch, rank + core)], [], group))
        flat += scratch
    return core


def _unfold(flat: torch.Tensor, core: int, group: Group) -> None:
    """Hand the result to the extra ranks."""
    rank, n = _place(group)
    if rank >= core:
        _wait(_post([(flat, rank - core)], [], group))
    elif rank + core < n:
        _wait(_post([], [(flat, rank + core)], group))


def barrier(group: Group = None) -> None:
    """Return when every rank of `group` has called it: a dissemination barrier.

    In round k rank r tells rank r + 2^k, and hears from rank r - 2^k, that it and all that it has heard
    from are here: after ceil(log2 N) rounds everybody has heard from everybody, directly or not.
    Bytes sent: one in each round, since a message of no bytes need not arrive. Any N.
    """
    rank, n = _place(group)
    on_gpu = "nccl" in dist.get_backend(group)
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    here = torch.ones(1, dtype=torch.uint8, device=device)
    heard = torch.zeros_like(here)
    distance = 1
    while distance < n:
        _wait(_post([(heard, (rank - distance) % n)], [(here, (rank + distance) % n)], group))
        distance *= 2
    heard.item()  # on a GPU, wait() holds up the stream alone; this holds up the process


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


def _flat(tensor: torch.Tensor, name: str = "tensor", written: bool = True) -> torch.Tensor:
    """The elements of `tensor` in a row: its own memory where that is contiguous, else a copy."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} is a {type(tensor).__name__}; a torch.Tensor is expected")
    if tensor.layout != torch.strided:
        raise ValueError(f"{name} is {tensor.layout}; messages carry dense tensors: use to_dense()")
    if written and _overlaps_itself(tensor):
        raise ValueError(
            f"{name} cannot be written: several of its elements share one place in memory (shape "
            f"{tuple(tensor.shape)}, strides {tensor.stride()}, as expand makes them). Pass a clone()."
        )
    return tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1)


def _overlaps_itself(tensor: torch.Tensor) -> bool:
    reach = 1  # elements from the first to the last of the dimensions looked at so far
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1 and stride < reach:
            return tensor.numel() > 0
        reach += stride * (size - 1)
    return False


def _put_back(flat: torch.Tensor, tensor: torch.Tensor) -> None:
    """Write the elements of `flat` into `tensor`, unless they are the same memory already."""
    if flat.data_ptr() != tensor.data_ptr():
        tensor.detach().copy_(flat.view(tensor.shape))


def _post(receives: Messages, sends: Messages, group: Group) -> list[dist.Work]:
    """Start the messages of one round together; each is (tensor, rank of the other end in `group`).

    Together, because one after the other they can wait for each other: NCCL runs what it is given
    in order. Receives first: a message whose receive is ready need not wait. Empty ones are left out.
    """
    batch = [dist.P2POp(dist.irecv, t, group=group, group_peer=r) for t, r in receives if t.numel()]
    batch += [dist.P2POp(dist.isend, t, group=group, group_peer=r) for t, r in sends if t.numel()]
    return dist.batch_isend_irecv(batch) if batch else []


def _wait(works: Iterable[dist.Work]) -> None:
    for work in works:
        work.wait()
