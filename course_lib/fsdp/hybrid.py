"""Islands: shard where the wire is fast, and keep replicas across the slow wire.

With full sharding over N ranks, every all-gather crosses the whole cluster. Hybrid sharding cuts the ranks
into islands of g, for example the GPUs of a node. Each island holds the model once, and each rank 1/g of it.
The r = N/g ranks with the same position in their islands hold the same shard:

    N = 8, g = 4      shard groups      [0 1 2 3] [4 5 6 7]            neighbours share the model
                      replica groups    [0 4] [1 5] [2 6] [3 7]        equals hold the same shard

    forward, backward   all-gather inside the island        2 (g-1)/g P
    backward            reduce-scatter inside               (g-1)/g P
                        all-reduce of the shard across      2 (r-1)/(r g) P

Each rank sends 3 (g-1)/g + 2 (r-1)/(r g) times P. Only the last term leaves the island. For example, with two
nodes of 8, all ranks of one node send 8 x 2 x 1/2 x 1/8 P = 1.0 P to the other node. With full sharding,
every ring that crosses brings 15/16 P over the wire three times, which makes 2.81 P. The price is memory,
which is 16P/g bytes per rank instead of 16P/N.

Source: Zhao et al., "PyTorch FSDP", VLDB 2023, section 3.2.2 (hybrid sharding); Zhang et al., "MiCS:
Near-linear Scaling for Training Gigantic Model on Public Cloud", VLDB 16(1), 2022.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from .arguments import Group, check_fit, group_size, reduce_scatter

Groups = list[list[int]]


def hybrid_groups(world_size: int, shard: int) -> tuple[Groups, Groups]:
    """(shard_groups, replica_groups) of ranks: g = `shard` neighbours share a model, equals are replicas.

    shard_groups: N/g lists of g consecutive ranks each. replica_groups: g lists of N/g ranks, which have the
    same position in their shard groups. Both are in ascending order, so that every rank can make all groups
    with dist.new_group in the same order, as torch.distributed requires. Nothing is sent.

    Raises ValueError if `shard` does not divide `world_size`, or if one of them is not a positive int.
    """
    for name, count in (("world_size", world_size), ("shard", shard)):
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ValueError(f"{name}={count!r}: a number of ranks is an int of 1 or more")
    if world_size % shard:
        raise ValueError(
            f"shard={shard} does not divide world_size={world_size}: the islands must be of one size"
        )
    ranks = list(range(world_size))
    shard_groups = [ranks[first : first + shard] for first in range(0, world_size, shard)]
    replica_groups = [ranks[place::shard] for place in range(shard)]
    return shard_groups, replica_groups


@torch.no_grad()
def hybrid_reduce(output: Tensor, grads: Tensor, shard_group: Group, replica_group: Group) -> None:
    """Write this rank's part of the mean over all N ranks of `grads` into `output`.

    shard_group: the g ranks of this rank's island. replica_group: the r ranks that hold the same shard as
        this rank, one of each island. N = g r.
    grads: this rank's gradient of the whole row, g x s elements, contiguous, floating-point. Not changed.
    output: s elements, contiguous, of the dtype of grads and on its device. Overwritten by the mean of the
        elements p x s to (p+1) x s, where p is this rank's position in its island. All replicas get the same.
    Sends (g-1) s elements inside the island (reduce-scatter), then 2 (r-1)/r s across (all-reduce). If
    an all-reduce came first, it would give the same values, but for (g-1)/g + 2 (r-1)/r times the row.

    Raises ValueError if sizes, dtypes or devices do not fit, if a tensor is not contiguous, or if the groups
    share any rank besides this one; TypeError for a dtype that is not floating-point.
    """
    g, r = group_size(shard_group), group_size(replica_group)
    shared = {*_members(shard_group)} & {*_members(replica_group)}
    if len(shared) > 1:
        raise ValueError(
            f"shard_group and replica_group share the ranks {sorted(shared)}: they must share this rank "
            "alone. The one holds the ranks of an island, the other one rank of each island."
        )
    check_fit(g, grads=grads, output=output)
    if grads.dtype != output.dtype:
        raise ValueError(f"grads is {grads.dtype} and output {output.dtype}: they must be alike")
    row = output.view(-1)
    reduce_scatter(row, grads.detach().view(-1), group=shard_group)
    dist.all_reduce(row, group=replica_group)
    row.div_(g * r)


def _members(group: Group) -> list[int]:
    """The group's ranks, as the whole world counts them."""
    return dist.get_process_group_ranks(dist.group.WORLD if group is None else group)
