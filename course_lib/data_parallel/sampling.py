"""Which samples of a data set a rank sees in an epoch.

Together the ranks must see every sample, and no two ranks should see the same one. All ranks must see equally
many, because a rank with one batch more than the others would wait for them forever. N rarely divides the
size of the data set, so up to N - 1 samples are seen twice (or, with drop_last, not at all).

Nothing is sent. All ranks draw the same permutation from the same seed, and each takes every N-th index of
it. The epoch is part of the seed, so that every epoch has another order.

Source: the arithmetic and the order of `torch.utils.data.DistributedSampler`. That class, however, needs
`set_epoch(epoch)` before each epoch, and repeats the first epoch's order if you forget it.

This file imports only torch.
"""

from __future__ import annotations

import torch


def shard_indices(
    n: int,
    rank: int,
    world_size: int,
    epoch: int = 0,
    *,
    shuffle: bool = True,
    seed: int = 0,
    drop_last: bool = False,
) -> list[int]:
    """The indices `rank` sees in `epoch`, in order, of a data set of n samples.

    Every rank gets ceil(n / world_size) indices. Missing ones are filled from the beginning of the order,
    several times over if n is smaller than their number. With drop_last, every rank gets only
    floor(n / world_size), and the end of the order is left out. An empty data set gives empty lists.
    shuffle: take a permutation drawn from seed + epoch; False takes the samples in their own order.
    seed: the same on all ranks.

    Raises ValueError for a rank outside 0 .. world_size - 1 or n < 0.
    """
    if world_size < 1 or not 0 <= rank < world_size:
        raise ValueError(
            f"rank {rank} of {world_size}: ranks count from 0 to world_size - 1, and there is at least one"
        )
    if n < 0:
        raise ValueError(f"n={n}: a data set has 0 samples or more")
    if shuffle:
        generator = torch.Generator().manual_seed(seed + epoch)
        order = torch.randperm(n, generator=generator).tolist()
    else:
        order = list(range(n))
    each = n // world_size if drop_last or n == 0 else -(-n // world_size)
    return [order[place % n] for place in range(rank, each * world_size, world_size)]
