"""Collectives on a ring, where every rank only sends to its right and receives from its left.

N ranks hold M bytes each, and all of them need the sum. The sum of one element takes N - 1 messages to
make and N - 1 more to hand out. So all ranks together send at least 2 (N-1) M bytes, and the busiest rank
sends at least the mean, 2 (N-1)/N M. A ring reaches this bound. It cuts the tensor into N chunks and lets
the sums of all chunks travel at the same time, so no link ever idles. The price is latency, because the
2 (N-1) rounds have to follow each other, whereas a tree needs only 2 log2 N.

    reduce_scatter          (N-1)/N M bytes sent by each rank     N - 1 rounds
    all_gather              (N-1)/N M                             N - 1
    ring_all_reduce         2 (N-1)/N M                           2 (N-1)
    hierarchical_all_reduce 2 (N-1)/N M in all, 2 (n-1)/n M/g of it between nodes

Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
Journal of Parallel and Distributed Computing 69 (2009), for the bound and for the ring; Gibiansky,
"Bringing HPC Techniques to Deep Learning" (2017), brought it to gradients.

Arguments follow the order and the habits of `torch.distributed`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .messages import (
    Group,
    check_sizes,
    exchange,
    flat_to_read,
    flat_to_write,
    members,
    put_back,
    rank_and_size,
)


def reduce_scatter(output: Tensor, input: Tensor, group: Group = None) -> None:
    """Sum `input` over the ranks and leave the r-th of its N equal shards on rank r, in `output`.

    input: N times as many elements as output, shard after shard, in any shape. It is not changed.
    output: any shape; the same dtype and device.
    A size that N does not divide is refused, as in `dist.reduce_scatter_tensor`, so pad the input first.
    Sends (N-1)/N of the input's bytes per rank, in N - 1 rounds; scratch: one shard.

    A sum starts as one rank's shard and travels around the ring, and each rank on its way adds its own
    shard. The sum for rank r starts on the right neighbour, r + 1, so that it reaches rank r last.

    Raises ValueError if the sizes or dtypes do not fit; TypeError if an argument is not a dense tensor.
    """
    rank, n = rank_and_size(group)
    result, whole = flat_to_write(output, "output"), flat_to_read(input, "input", output)
    check_sizes(n, input=input, output=output)
    shards = whole.tensor_split(n)
    landing = (result, torch.empty_like(result) if n > 2 else result)  # the last sum in `result`
    passing = shards[rank - 1]
    for k in range(n - 1):
        arriving = landing[(n - 2 - k) % 2]
        _pass_on(passing, arriving, group)
        passing = arriving.add_(shards[(rank - 2 - k) % n])
    if n == 1:
        result.copy_(shards[0])
    put_back(result, output)


def all_gather(output: Tensor, input: Tensor, group: Group = None) -> None:
    """Collect every rank's `input` on every rank, the input of rank r as the r-th shard of `output`.

    output: N times as many elements as input, shard after shard, in any shape.
    input: any shape, the same size on every rank; the same dtype and device. It is not changed.
    Sends (N-1)/N of the output's bytes per rank, in N - 1 rounds. Shards are received in place.

    Raises ValueError if the sizes or dtypes do not fit; TypeError if an argument is not a dense tensor.
    """
    rank, n = rank_and_size(group)
    result, own = flat_to_write(output, "output"), flat_to_read(input, "input", output)
    check_sizes(n, output=output, input=input)
    shards = result.tensor_split(n)
    shards[rank].copy_(own)
    _gather_chunks(shards, rank, group)
    put_back(result, output)


def ring_all_reduce(tensor: Tensor, group: Group = None) -> None:
    """Sum `tensor` over the ranks of `group`, in place.

    tensor: any shape, contiguous or not; the same shape and dtype on every rank.
    Sends 2 (N-1)/N of the tensor's bytes per rank, in 2 (N-1) rounds; scratch: one chunk. If N does not
    divide the size, `tensor_split` makes the first chunks one element longer. In each phase, a rank sends
    all chunks except one. Messages of no bytes are not sent.
    Every element is summed on one rank and copied from there, so all ranks end with the same bits.

    Raises ValueError if `tensor` cannot be written; TypeError if it is not a dense tensor.
    """
    rank, n = rank_and_size(group)
    flat = flat_to_write(tensor)
    chunks = flat.tensor_split(n)
    _reduce_chunks(chunks, group)
    _gather_chunks(chunks, (rank + 1) % n, group)
    put_back(flat, tensor)


def _reduce_chunks(chunks: Sequence[Tensor], group: Group) -> None:
    """First phase, a reduce-scatter. It leaves chunk r + 1 complete on rank r."""
    rank, n = rank_and_size(group)
    scratch = torch.empty_like(chunks[0])  # used again in every round; chunk 0 is the longest
    for k in range(n - 1):
        own = chunks[(rank - k - 1) % n]
        arriving = scratch[: own.numel()]
        _pass_on(chunks[(rank - k) % n], arriving, group)
        own += arriving


def _gather_chunks(chunks: Sequence[Tensor], complete: int, group: Group) -> None:
    """Second phase, an all-gather. The complete chunks go around once more, and are received in place."""
    _, n = rank_and_size(group)
    for k in range(n - 1):
        _pass_on(chunks[(complete - k) % n], chunks[(complete - k - 1) % n], group)


def _pass_on(outgoing: Tensor, arriving: Tensor, group: Group) -> None:
    """One round, in which `outgoing` is sent to the right while `arriving` is received from the left."""
    rank, n = rank_and_size(group)
    exchange(group, receives=[(arriving, (rank - 1) % n)], sends=[(outgoing, (rank + 1) % n)])


def hierarchical_all_reduce(tensor: Tensor, intra_group: Group, inter_group: Group) -> None:
    """Sum `tensor` over all nodes, in place, keeping most of the traffic inside each node.

    intra_group: the g ranks of this rank's node. inter_group: n ranks, one per node, which have the same
    position in their nodes. All nodes have the same number of ranks; N = n g.
    tensor: as in `ring_all_reduce`, and the same shape on all N ranks.

    1. Reduce-scatter inside the node, so that each rank sums 1/g of the tensor over its node.
    2. All-reduce only that 1/g across nodes, so that all links between two nodes work at the same time.
    3. All-gather inside the node.

    Sends 2 (g-1)/g M inside the node and 2 (n-1)/n M/g across nodes per rank, which is 2 (N-1)/N M in all,
    in 2 (g-1) + 2 (n-1) rounds. All ranks end with the same bits.
    Source: Mikami et al., "Massively Distributed SGD: ImageNet/ResNet-50 Training in a Flash" (2018), who
    use a two-dimensional torus of GPUs.

    Raises ValueError and TypeError as `ring_all_reduce` does, and ValueError if the groups share any rank
    besides this one.
    """
    place, g = rank_and_size(intra_group)
    rank_and_size(inter_group)
    shared = {*members(intra_group)} & {*members(inter_group)}
    if len(shared) > 1:
        raise ValueError(
            f"intra_group and inter_group share the ranks {sorted(shared)}: they must share this rank "
            "alone. The one holds the ranks of a node, the other one rank of each node."
        )
    flat = flat_to_write(tensor)
    chunks = flat.tensor_split(g)
    complete = (place + 1) % g
    _reduce_chunks(chunks, intra_group)
    ring_all_reduce(chunks[complete], inter_group)
    _gather_chunks(chunks, complete, intra_group)
    put_back(flat, tensor)
