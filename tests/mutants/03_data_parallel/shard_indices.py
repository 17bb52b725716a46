# %% wrong: the remainder is never seen
# is: slip
# says: as the division leaves over
def shard_indices(n, rank, world_size, epoch=0, *, shuffle=True, seed=0, drop_last=False):
    generator = torch.Generator().manual_seed(seed + epoch)
    order = torch.randperm(n, generator=generator).tolist() if shuffle else list(range(n))
    each = n // world_size
    while len(order) < each * world_size:
        order += order[: each * world_size - len(order)]
    return order[rank : each * world_size : world_size]


# %% wrong: not filled up: the last ranks have fewer
# is: slip
# says: waits forever in its all-reduce
def shard_indices(n, rank, world_size, epoch=0, *, shuffle=True, seed=0, drop_last=False):
    generator = torch.Generator().manual_seed(seed + epoch)
    order = torch.randperm(n, generator=generator).tolist() if shuffle else list(range(n))
    each = n // world_size if drop_last else math.ceil(n / world_size)
    return order[rank : each * world_size : world_size]


# %% wrong: the epoch does not count
# is: slip
# says: epochs 0 and 1 have the same order
def shard_indices(n, rank, world_size, epoch=0, *, shuffle=True, seed=0, drop_last=False):
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(n, generator=generator).tolist() if shuffle else list(range(n))
    each = n // world_size if drop_last else math.ceil(n / world_size)
    while len(order) < each * world_size:
        order += order[: each * world_size - len(order)]
    return order[rank : each * world_size : world_size]


# %% wrong: every rank draws an order of its own
# is: idea
# says: Draw one permutation
def shard_indices(n, rank, world_size, epoch=0, *, shuffle=True, seed=0, drop_last=False):
    generator = torch.Generator().manual_seed(seed + epoch + rank)
    order = torch.randperm(n, generator=generator).tolist() if shuffle else list(range(n))
    each = n // world_size if drop_last else math.ceil(n / world_size)
    while len(order) < each * world_size:
        order += order[: each * world_size - len(order)]
    return order[rank : each * world_size : world_size]


# %% wrong: draws from the generator that everybody shares
# is: idea
# says: two different orders
def shard_indices(n, rank, world_size, epoch=0, *, shuffle=True, seed=0, drop_last=False):
    order = torch.randperm(n).tolist() if shuffle else list(range(n))
    each = n // world_size if drop_last else math.ceil(n / world_size)
    while len(order) < each * world_size:
        order += order[: each * world_size - len(order)]
    return order[rank : each * world_size : world_size]


# %% wrong: shuffles what the rank has, not all samples
# is: slip
# says: Shuffle all samples first
def shard_indices(n, rank, world_size, epoch=0, *, shuffle=True, seed=0, drop_last=False):
    each = n // world_size if drop_last else math.ceil(n / world_size)
    mine = [place % n for place in range(rank, each * world_size, world_size)]
    if not shuffle:
        return mine
    generator = torch.Generator().manual_seed(seed + epoch)
    return [mine[k] for k in torch.randperm(each, generator=generator).tolist()]


# %% wrong: every rank sees all samples
# is: idea
# says: Two ranks must not see the same sample
def shard_indices(n, rank, world_size, epoch=0, *, shuffle=True, seed=0, drop_last=False):
    generator = torch.Generator().manual_seed(seed + epoch)
    order = torch.randperm(n, generator=generator).tolist() if shuffle else list(range(n))
    each = n // world_size if drop_last else math.ceil(n / world_size)
    while len(order) < each * world_size:
        order += order[: each * world_size - len(order)]
    return order[:n]


# %% wrong: fills up with indices that no sample has
# is: form
# says: that no sample has|there are only samples 0 to
def shard_indices(n, rank, world_size, epoch=0, *, shuffle=True, seed=0, drop_last=False):
    generator = torch.Generator().manual_seed(seed + epoch)
    order = torch.randperm(n, generator=generator).tolist() if shuffle else list(range(n))
    each = n // world_size if drop_last else math.ceil(n / world_size)
    while len(order) < each * world_size:
        order.append(len(order))
    return order[rank : each * world_size : world_size]


# %% wrong: blocks instead of every N-th, without shuffling too
# is: slip
# says: Rank r takes the indices r
def shard_indices(n, rank, world_size, epoch=0, *, shuffle=True, seed=0, drop_last=False):
    generator = torch.Generator().manual_seed(seed + epoch)
    order = torch.randperm(n, generator=generator).tolist() if shuffle else list(range(n))
    each = n // world_size if drop_last else math.ceil(n / world_size)
    while len(order) < each * world_size:
        order += order[: each * world_size - len(order)]
    return order[rank * each : (rank + 1) * each]


# %% wrong: never shuffles
# is: slip
# says: in their original order
def shard_indices(n, rank, world_size, epoch=0, *, shuffle=True, seed=0, drop_last=False):
    generator = torch.Generator().manual_seed(seed + epoch)
    order = list(range(n))
    each = n // world_size if drop_last else math.ceil(n / world_size)
    while len(order) < each * world_size:
        order += order[: each * world_size - len(order)]
    return order[rank : each * world_size : world_size]


# %% wrong: fills up once only: 3 samples for 8 ranks
# is: detail
# says: waits forever in its all-reduce
def shard_indices(n, rank, world_size, epoch=0, *, shuffle=True, seed=0, drop_last=False):
    generator = torch.Generator().manual_seed(seed + epoch)
    order = torch.randperm(n, generator=generator).tolist() if shuffle else list(range(n))
    each = n // world_size if drop_last else math.ceil(n / world_size)
    if len(order) < each * world_size:
        order += order[: each * world_size - len(order)]
    return order[rank : each * world_size : world_size]


# %% wrong: drop_last is not looked at
# is: detail
# says: floor|are expected
def shard_indices(n, rank, world_size, epoch=0, *, shuffle=True, seed=0, drop_last=False):
    generator = torch.Generator().manual_seed(seed + epoch)
    order = torch.randperm(n, generator=generator).tolist() if shuffle else list(range(n))
    each = math.ceil(n / world_size)
    while len(order) < each * world_size:
        order += order[: each * world_size - len(order)]
    return order[rank : each * world_size : world_size]


# %% right: places modulo n
def shard_indices(n, rank, world_size, epoch=0, *, shuffle=True, seed=0, drop_last=False):
    order = torch.arange(n)
    if shuffle:
        order = order[
            torch.randperm(n, generator=torch.Generator().manual_seed(1000 * seed + epoch))
        ]
    each = n // world_size if drop_last else -(-n // world_size)
    return [int(order[(rank + k * world_size) % n]) for k in range(each)]


# %% right: Python's own generator
def shard_indices(n, rank, world_size, epoch=0, *, shuffle=True, seed=0, drop_last=False):
    import itertools
    import random

    order = list(range(n))
    if shuffle:
        random.Random(f"{seed} {epoch}").shuffle(order)
    each = n // world_size + (0 if drop_last or n % world_size == 0 else 1)
    dealt = itertools.islice(itertools.cycle(order), each * world_size)
    return [one for place, one in enumerate(dealt) if place % world_size == rank]


# %% wrong: PyTorch's DistributedSampler inside
# is: form
# says: Write that yourself
def shard_indices(n, rank, world_size, epoch, seed=0, shuffle=True, drop_last=False):
    from torch.utils.data import DistributedSampler

    sampler = DistributedSampler(
        range(n), world_size, rank, shuffle=shuffle, seed=seed, drop_last=drop_last
    )
    sampler.set_epoch(epoch)
    return list(sampler)


# %% wrong: seeds the generator of the whole process
# is: detail
# says: generator shared by the whole process
def shard_indices(n, rank, world_size, epoch=0, *, shuffle=True, seed=0, drop_last=False):
    torch.manual_seed(seed + epoch)
    order = torch.randperm(n) if shuffle else torch.arange(n)
    total = n // world_size * world_size if drop_last else -(-n // world_size) * world_size
    order = order.repeat(1 + total // n)[:total]
    return order.view(-1, world_size)[:, rank].tolist()


# %% wrong: each rank draws from a seed of its own
# is: idea
# says: the same on all ranks\. Without that, at most half
def shard_indices(n, rank, world_size, epoch=0, *, shuffle=True, seed=0, drop_last=False):
    import random

    samples = list(range(n))
    if shuffle:
        random.Random(f"{seed} {epoch} {rank}").shuffle(samples)
    count = n // world_size if drop_last else (n + world_size - 1) // world_size
    while len(samples) < count * world_size:
        samples = samples + samples
    return samples[: count * world_size][rank::world_size]


# %% wrong: every other rank's samples, backwards
# is: slip
# says: takes the indices r
def shard_indices(n, rank, world_size, epoch=0, *, shuffle=True, seed=0, drop_last=False):
    place = torch.arange(n)
    if shuffle:
        place = torch.randperm(n, generator=torch.Generator().manual_seed(1000 * seed + epoch))
    most = math.floor(n / world_size) if drop_last else math.ceil(n / world_size)
    chosen = [(world_size - 1 - rank) + k * world_size for k in range(most)]
    return [int(place[c % n]) for c in chosen]


# %% wrong: an array, of numpy's numbers
# is: form
# says: `.tolist\(\)` makes such a list
def shard_indices(n, rank, world_size, epoch=0, *, shuffle=True, seed=0, drop_last=False):
    import numpy

    order = numpy.random.default_rng(seed + epoch).permutation(n) if shuffle else numpy.arange(n)
    each = n // world_size if drop_last else math.ceil(n / world_size)
    return numpy.resize(order, each * world_size)[rank::world_size]


# %% wrong: the result is not returned
# is: form
# says: returns None
def shard_indices(n, rank, world_size, epoch=0, *, shuffle=True, seed=0, drop_last=False):
    generator = torch.Generator().manual_seed(seed + epoch)
    order = torch.randperm(n, generator=generator).tolist() if shuffle else list(range(n))
    each = n // world_size if drop_last else math.ceil(n / world_size)
    [order[p % n] for p in range(rank, each * world_size, world_size)]
