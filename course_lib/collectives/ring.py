"""Collectives on a ring: every rank sends to its right and receives from its left, nothing else.

N ranks hold M bytes each and all need the sum. One element's sum takes N - 1 messages to make and
N - 1 more to hand out, so all ranks together send at least 2 (N-1) M bytes, and the busiest rank at
least the mean, 2 (N-1)/N M. A ring reaches that bound: cut the tensor into N chunks, let the sums of
all chunks travel at the same time, and no link ever idles. The price is latency: 2 (N-1) rounds, one
after another, where a tree needs 2 log2 N.

    reduce_scatter          (N-1)/N M bytes sent by each rank     N - 1 rounds
    all_gather              (N-1)/N M                             N - 1
    ring_all_reduce         2 (N-1)/N M                           2 (N-1)
    hierarchical_all_reduce 2 (N-1)/N M in all, 2 (n-1)/n M/g of it between nodes

Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
Journal of Parallel and Distributed Computing 69 (2009), for the bound and for the ring; Gibiansky,
"Bringing HPC Techniques to Deep Learning" (2017), brought it to gradients.

Arguments and habits are those of `torch.distributed`; each file of this package imports torch only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist

Group = dist.ProcessGroup | None
Messages = Sequence[tuple[torch.Tensor, int]]


def reduce_scatter(output: torch.Tensor, input: torch.Tensor, group: Group = None) -> None:
    """Sum `input` over the ranks and leave the r-th of its N equal shards on rank r, in `output`.

    input: N times as many elements as output, in any shape: shard after shard. It is left alone.
    output: any shape; the same dtype and device.
    Sizes that N does not divide are refused, as by `dist.reduce_scatter_tensor`: pad them.
    Sends (N-1)/N of the input's bytes per rank, in N - 1 rounds; scratch: one shard.

    A sum starts as one rank's shard and goes round; each rank that it passes adds its own. The sum
    for rank r starts on its right neighbour, r + 1, so that it comes home last.

    Raises ValueError when the sizes or dtypes do not fit; TypeError for what is no tensor.
    """
    rank, n = _place(group)
    whole, result = _flat(input, "input", written=False), _flat(output, "output")
    _check_pair(input, output, n, ("input", "output"))
    shards = (whole.clone() if _share_memory(input, output) else whole).tensor_split(n)
    landing = (result, torch.empty_like(result) if n > 2 else result)  # the last sum in `result`
    passing = shards[rank - 1]
    for k in range(n - 1):
        arriving = landing[(n - 2 - k) % 2]
        _wait(_pass_on(passing, arriving, group))
        passing = arriving.add_(shards[(rank - 2 - k) % n])
    if n == 1:
        result.copy_(shards[0])
    _put_back(result, output)


def all_gather(output: torch.Tensor, input: torch.Tensor, group: Group = None) -> None:
    """Collect every rank's `input` on every rank: rank r's becomes the r-th shard of `output`.

    output: N times as many elements as input, in any shape: shard after shard.
    input: any shape, the same size on every rank; the same dtype and device. It is left alone.
    Sends (N-1)/N of the output's bytes per rank, in N - 1 rounds. Shards are received in place.

    Raises ValueError when the sizes or dtypes do not fit; TypeError for what is no tensor.
    """
    rank, n = _place(group)
    own, result = _flat(input, "input", written=False), _flat(output, "output")
    _check_pair(output, input, n, ("output", "input"))
    shards = result.tensor_split(n)
    shards[rank].copy_(own.clone() if _share_memory(input, output) else own)
    _gather_chunks(shards, rank, group)
    _put_back(result, output)


def ring_all_reduce(tensor: torch.Tensor, group: Group = None) -> None:
    """Sum `tensor` over the ranks of `group`, in place.

    tensor: any shape, contiguous or not; the same shape and dtype on every rank.
    Sends 2 (N-1)/N of the tensor's bytes per rank, in 2 (N-1) rounds; scratch: one chunk. When N does
    not divide the size, `tensor_split` makes the first chunks one element longer, and a rank sends all
    chunks but one in each phase. Messages of no bytes are not sent.
    Every element is summed on one rank and copied from there: the same bits on every rank.

    Raises ValueError for a tensor that cannot be written; TypeError for what is no tensor.
    """
    rank, n = _place(group)
    flat = _flat(tensor)
    chunks = flat.tensor_split(n)
    _reduce_chunks(chunks, group)
    _gather_chunks(chunks, (rank + 1) % n, group)
    _put_back(flat, tensor)


def _reduce_chunks(chunks: Sequence[torch.Tensor], group: Group) -> None:
    """First phase, a reduce-scatter: afterwards chunk r + 1 on rank r is complete."""
    rank, n = _place(group)
    scratch = torch.empty_like(chunks[0])  # used again in every round; chunk 0 is the longest
    sends: list[dist.Work] = []
    for k in range(n - 1):
        own = chunks[(rank - k - 1) % n]
        arriving = scratch[: own.numel()]
        sends += _pass_on(chunks[(rank - k) % n], arriving, group)
        own += arriving
    _wait(sends)


def _gather_chunks(chunks: Sequence[torch.Tensor], complete: int, group: Group) -> None:
    """Second phase, an all-gather: the complete chunks go round once more, received in place."""
    _, n = _place(group)
    sends: list[dist.Work] = []
    for k in range(n - 1):
        sends += _pass_on(chunks[(complete - k) % n], chunks[(complete - k - 1) % n], group)
    _wait(sends)


def _pass_on(outgoing: torch.Tensor, arriving: torch.Tensor, group: Group) -> list[dist.Work]:
    """One round: send `outgoing` to the right, return when what the left sends is in `arriving`.

    Returns what is still under way; wait for it before `outgoing` is written.
    """
    rank, n = _place(group)
    works = _post([(arriving, (rank - 1) % n)], [(outgoing, (rank + 1) % n)], group)
    if arriving.numel():
        works.pop(0).wait()
    return works


def hierarchical_all_reduce(tensor: torch.Tensor, intra_group: Group, inter_group: Group) -> None:
    """Sum `tensor` over all nodes, in place, keeping most of the traffic inside each node.

    intra_group: the g ranks of this rank's node. inter_group: the n ranks that hold the same place in
    their nodes, one of each node. All nodes have the same number of ranks; N = n g.
    tensor: as in `ring_all_reduce`, and the same shape on all N ranks.

    1. Reduce-scatter inside the node: each rank sums 1/g of the tensor over its node.
    2. All-reduce across nodes, of that 1/g alone: all links between two nodes work at once.
    3. All-gather inside the node.

    Sends 2 (g-1)/g M inside the node and 2 (n-1)/n M/g across per rank, 2 (N-1)/N M together, in
    2 (g-1) + 2 (n-1) rounds. The same bits on every rank.
    Source: Mikami et al., "Massively Distributed SGD: ImageNet/ResNet-50 Training in a Flash" (2018),
    there on a two-dimensional torus of GPUs.

    Raises ValueError and TypeError as `ring_all_reduce`, and when the groups share more than this rank.
    """
    place, g = _place(intra_group)
    _place(inter_group)
    _check_grid(intra_group, inter_group)
    flat = _flat(tensor)
    chunks = flat.tensor_split(g)
    complete = (place + 1) % g
    _reduce_chunks(chunks, intra_group)
    ring_all_reduce(chunks[complete], inter_group)
    _gather_chunks(chunks, complete, intra_group)
    _put_back(flat, tensor)


# ---- checks of the arguments


def _check_pair(whole: torch.Tensor, shard: torch.Tensor, n: int, names: tuple[str, str]) -> None:
    """`whole` must hold n times what `shard` holds, of the same kind."""
    name, other = names
    if whole.dtype != shard.dtype or whole.device != shard.device:
        raise ValueError(
            f"{name} is {whole.dtype} on {whole.device}, {other} {shard.dtype} on {shard.device}: both "
            "must have one dtype and one device"
        )
    if whole.numel() != n * shard.numel():
        raise ValueError(
            f"{name} has {whole.numel()} elements and {other} {shard.numel()}: with {n} ranks {name} must "
            f"have {n} x {shard.numel()} = {n * shard.numel()}. Pad a size that {n} does not divide."
        )


def _share_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether a and b may overlap, so that writing the one could change the other."""
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def _check_grid(intra_group: Group, inter_group: Group) -> None:
    world = dist.group.WORLD
    intra = set(dist.get_process_group_ranks(world if intra_group is None else intra_group))
    inter = set(dist.get_process_group_ranks(world if inter_group is None else inter_group))
    if intra & inter != {dist.get_rank()}:
        raise ValueError(
            f"intra_group {sorted(intra)} and inter_group {sorted(inter)} share the ranks "
            f"{sorted(intra & inter)}: they must share rank {dist.get_rank()} alone. The one holds the "
            "ranks of a node, the other one rank of each node."
        )


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
