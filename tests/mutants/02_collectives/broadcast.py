# %% wrong: the source sends to everybody, one after the other
# is: idea
# says: binomial tree
def broadcast(tensor, src, group=None):
    world = group or dist.group.WORLD
    buffer = tensor.contiguous()
    for peer in dist.get_process_group_ranks(world):
        if peer == src or not tensor.numel():
            continue
        if dist.get_rank() == src:
            dist.send(buffer, peer, group)
        elif dist.get_rank() == peer:
            dist.recv(buffer, src, group)
    tensor.copy_(buffer)


# %% wrong: the source sends to everybody at once
# is: idea
# says: a rank sends one message a round
def broadcast(tensor, src, group=None):
    world = group or dist.group.WORLD
    buffer = tensor.contiguous()
    if dist.get_rank() == src:
        peers = [peer for peer in dist.get_process_group_ranks(world) if peer != src]
        for handle in [dist.isend(buffer, peer, group) for peer in peers]:
            handle.wait()
    else:
        dist.recv(buffer, src, group)
    tensor.copy_(buffer)


# %% wrong: a chain
# is: idea
# says: binomial tree
def broadcast(tensor, src, group=None):
    world = group or dist.group.WORLD
    n, root = dist.get_world_size(world), dist.get_group_rank(world, src)
    place = (dist.get_rank(world) - root) % n
    buffer = tensor.contiguous()
    if place > 0:
        dist.recv(buffer, dist.get_global_rank(world, (place - 1 + root) % n), group)
    if place < n - 1:
        dist.send(buffer, dist.get_global_rank(world, (place + 1 + root) % n), group)
    tensor.copy_(buffer)


# %% wrong: a tree around rank 0
# is: slip
# says: start at `src`|Count relative to the source
def broadcast(tensor, src, group=None):
    world = group or dist.group.WORLD
    rank, n = dist.get_rank(world), dist.get_world_size(world)
    buffer = tensor.contiguous()
    distance = 1
    while distance < n:
        if rank < distance and rank + distance < n:
            dist.send(buffer, dist.get_global_rank(world, rank + distance), group)
        elif distance <= rank < 2 * distance:
            dist.recv(buffer, dist.get_global_rank(world, rank - distance), group)
        distance *= 2
    tensor.copy_(buffer)


# %% wrong: floor(log2 N) rounds
# is: slip
# says: never reached
def broadcast(tensor, src, group=None):
    world = group or dist.group.WORLD
    n, root = dist.get_world_size(world), dist.get_group_rank(world, src)
    place = (dist.get_rank(world) - root) % n
    buffer = tensor.contiguous()
    for k in range(int(math.log2(n))):
        distance = 2**k
        if place < distance and place + distance < n:
            dist.send(buffer, dist.get_global_rank(world, (place + distance + root) % n), group)
        elif distance <= place < 2 * distance:
            dist.recv(buffer, dist.get_global_rank(world, (place - distance + root) % n), group)
    tensor.copy_(buffer)


# %% wrong: sends to ranks that do not exist
# is: form
# says: cut short if N is not a power of two|Both ends must agree|deadlock
def broadcast(tensor, src, group=None):
    world = group or dist.group.WORLD
    n, root = dist.get_world_size(world), dist.get_group_rank(world, src)
    place = (dist.get_rank(world) - root) % n
    buffer = tensor.contiguous()
    distance = 1
    while distance < n:
        if place < distance:
            dist.send(buffer, dist.get_global_rank(world, (place + distance + root) % n), group)
        elif place < 2 * distance:
            dist.recv(buffer, dist.get_global_rank(world, (place - distance + root) % n), group)
        distance *= 2
    tensor.copy_(buffer)


# %% wrong: src taken for a place in the group
# is: slip
# says: dist.get_group_rank
def broadcast(tensor, src, group=None):
    world = group or dist.group.WORLD
    n = dist.get_world_size(world)
    place = (dist.get_rank(world) - src) % n
    buffer = tensor.contiguous()
    distance = 1
    while distance < n:
        if place < distance and place + distance < n:
            dist.send(buffer, dist.get_global_rank(world, (place + distance + src) % n), group)
        elif distance <= place < 2 * distance:
            dist.recv(buffer, dist.get_global_rank(world, (place - distance + src) % n), group)
        distance *= 2
    tensor.copy_(buffer)


# %% wrong: a copy receives, the argument does not
# is: slip
# says: Nothing arrived in `tensor` on the other ranks
def broadcast(tensor, src, group=None):
    world = group or dist.group.WORLD
    n, root = dist.get_world_size(world), dist.get_group_rank(world, src)
    place = (dist.get_rank(world) - root) % n
    buffer = tensor.clone(memory_format=torch.contiguous_format)
    distance = 1
    while distance < n:
        if place < distance and place + distance < n:
            dist.send(buffer, dist.get_global_rank(world, (place + distance + root) % n), group)
        elif distance <= place < 2 * distance:
            dist.recv(buffer, dist.get_global_rank(world, (place - distance + root) % n), group)
        distance *= 2


# %% wrong: the built-in
# is: idea
# says: dist.broadcast was called
def broadcast(tensor, src, group=None):
    buffer = tensor.contiguous()
    dist.broadcast(buffer, src, group)
    tensor.copy_(buffer)


# %% wrong: every rank sends to the rank after it, in all rounds
# is: form
# says: it is the rank 2\*\*k further
def broadcast(tensor, src, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    root = dist.get_group_rank(group or dist.group.WORLD, src)
    place, buffer, distance = (rank - root) % n, tensor.contiguous(), 1
    while distance < n:
        if place < distance and place + distance < n:
            dist.send(buffer, group=group, group_dst=(rank + 1) % n)
        elif distance <= place < 2 * distance:
            dist.recv(buffer, group=group, group_src=(rank - distance) % n)
        distance *= 2
    tensor.copy_(buffer)


# %% wrong: None is given to get_group_rank
# is: form
# says: do not take None for the group of all ranks
def broadcast(tensor, src, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    root = dist.get_group_rank(group, src)
    place, buffer, distance = (rank - root) % n, tensor.contiguous(), 1
    while distance < n:
        if place < distance and place + distance < n:
            dist.send(buffer, group=group, group_dst=(rank + distance) % n)
        elif distance <= place < 2 * distance:
            dist.recv(buffer, group=group, group_src=(rank - distance) % n)
        distance *= 2
    tensor.copy_(buffer)


# %% wrong: children before the parent
# is: form
# says: first receive from the parent
def broadcast(tensor, src, group=None):
    world = group or dist.group.WORLD
    n, root = dist.get_world_size(world), dist.get_group_rank(world, src)
    place = (dist.get_rank(world) - root) % n
    buffer = tensor.contiguous()
    distance = 1 << (n - 1).bit_length() >> 1
    parent = None
    while distance:
        if place % (2 * distance) == 0:
            if place + distance < n:
                dist.recv(buffer, dist.get_global_rank(world, (place + distance + root) % n), group)
        elif place % (2 * distance) == distance:
            dist.recv(buffer, dist.get_global_rank(world, (place - distance + root) % n), group)
        distance //= 2
    tensor.copy_(buffer)


# %% right: the largest distance first
def broadcast(tensor, src, group=None):
    world = group or dist.group.WORLD
    ranks = dist.get_process_group_ranks(world)
    n, root = len(ranks), ranks.index(src)
    place = (dist.get_rank(world) - root) % n
    buffer = tensor.contiguous()
    distance = 1 << max(n - 1, 0).bit_length()
    while distance > 1:
        distance //= 2
        if place % (2 * distance) == 0 and place + distance < n and buffer.numel():
            dist.send(buffer, ranks[(place + distance + root) % n], group)
        elif place % (2 * distance) == distance and buffer.numel():
            dist.recv(buffer, ranks[(place - distance + root) % n], group)
    if buffer is not tensor:
        tensor.copy_(buffer)


# %% right: group ranks, isend and irecv
def broadcast(tensor, src, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    root = src if group is None else dist.get_group_rank(group, src)
    value = tensor.clone(memory_format=torch.contiguous_format)
    sends, have = [], {root}
    while len(have) < n:
        for k, giver in enumerate(sorted(have, key=lambda r: (r - root) % n)):
            taker = (root + len(have) + k) % n if len(have) + k < n else None
            if taker is not None and rank == giver:
                sends.append(dist.isend(value, group=group, group_dst=taker))
            if taker is not None and rank == taker:
                dist.irecv(value, group=group, group_src=giver).wait()
        have |= {(root + i) % n for i in range(len(have), min(2 * len(have), n))}
        for handle in sends:
            handle.wait()
        sends = []
    tensor.copy_(value)


# %% wrong: counts relative to src, which is a rank of the world
# is: slip
# says: count relative to that, within the group
def broadcast(tensor, src, group=None):
    n, me = dist.get_world_size(group), dist.get_rank(group)
    place = (me - src) % n
    held = tensor.contiguous()
    reach = 1
    while reach < n:
        if place < reach and place + reach < n:
            dist.send(held, group=group, group_dst=(place + reach + src) % n)
        elif reach <= place < 2 * reach:
            dist.recv(held, group=group, group_src=(place - reach + src) % n)
        reach *= 2
    tensor.copy_(held)


# %% wrong: a buffer of the default dtype
# is: detail
# says: Give a buffer the dtype of the tensor that is sent
def broadcast(tensor, src, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    root = dist.get_group_rank(group or dist.group.WORLD, src)
    place, distance = (rank - root) % n, 1
    while distance < n:
        if place < distance and place + distance < n:
            dist.send(tensor.contiguous(), group=group, group_dst=(rank + distance) % n)
        elif distance <= place < 2 * distance:
            received = torch.empty(tensor.shape, device=tensor.device)
            dist.recv(received, group=group, group_src=(rank - distance) % n)
            tensor.copy_(received)
        distance *= 2


# %% wrong: places beyond the last wrap around
# is: form
# says: so the last round is cut short: send only if
def broadcast(tensor, src, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    root = dist.get_group_rank(group or dist.group.WORLD, src)
    place, distance, passed = (rank - root) % n, 1, tensor.contiguous()
    while distance < n:
        if place < distance:
            dist.send(passed, group=group, group_dst=(rank + distance) % n)
        elif distance <= place < 2 * distance:
            dist.recv(passed, group=group, group_src=(rank - distance) % n)
        distance *= 2
    tensor.copy_(passed)
