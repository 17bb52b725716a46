# %% wrong: no fold, partners that do not exist
# is: slip
# says: Fold the extra ranks in
def recursive_doubling_all_reduce(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    total = tensor.contiguous().clone()
    distance = 1
    while distance < n:
        received = torch.empty_like(total)
        handle = dist.isend(total, group=group, group_dst=rank ^ distance)
        dist.recv(received, group=group, group_src=rank ^ distance)
        handle.wait()
        total = total + received
        distance *= 2
    tensor.copy_(total)


# %% wrong: ranks without a partner skip the round
# is: slip
# says: is not a power of two
def recursive_doubling_all_reduce(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    total = tensor.contiguous().clone()
    distance = 1
    while distance < n:
        if rank ^ distance < n:
            received = torch.empty_like(total)
            handle = dist.isend(total, group=group, group_dst=rank ^ distance)
            dist.recv(received, group=group, group_src=rank ^ distance)
            handle.wait()
            total = total + received
        distance *= 2
    tensor.copy_(total)


# %% wrong: partners at r + distance, round the ring
# is: slip
# says: values were counted twice
def recursive_doubling_all_reduce(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    total = tensor.contiguous().clone()
    distance = 1
    while distance < n:
        received = torch.empty_like(total)
        handle = dist.isend(total, group=group, group_dst=(rank + distance) % n)
        dist.recv(received, group=group, group_src=(rank - distance) % n)
        handle.wait()
        total = total + received
        distance *= 2
    tensor.copy_(total)


# %% wrong: extra ranks folded in, never out
# is: slip
# says: Send every extra rank the sum at the end
def recursive_doubling_all_reduce(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    core = 1 << (n.bit_length() - 1)
    total = tensor.contiguous().clone()
    received = torch.empty_like(total)
    if rank >= core:
        dist.send(total, group=group, group_dst=rank - core)
        return
    if rank + core < n:
        dist.recv(received, group=group, group_src=rank + core)
        total += received
    distance = 1
    while distance < core:
        handle = dist.isend(total, group=group, group_dst=rank ^ distance)
        dist.recv(received, group=group, group_src=rank ^ distance)
        handle.wait()
        total += received
        distance *= 2
    tensor.copy_(total)


# %% wrong: extra ranks are told the sum, but their values are left out
# is: slip
# says: must hand its values
def recursive_doubling_all_reduce(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    core = 1 << (n.bit_length() - 1)
    total = tensor.contiguous().clone()
    received = torch.empty_like(total)
    if rank >= core:
        dist.recv(total, group=group, group_src=rank - core)
        tensor.copy_(total)
        return
    distance = 1
    while distance < core:
        handle = dist.isend(total, group=group, group_dst=rank ^ distance)
        dist.recv(received, group=group, group_src=rank ^ distance)
        handle.wait()
        total += received
        distance *= 2
    if rank + core < n:
        dist.send(total, group=group, group_dst=rank + core)
    tensor.copy_(total)


# %% wrong: one round too few
# is: slip
# says: Rounds are missing
def recursive_doubling_all_reduce(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    core = 1 << (n.bit_length() - 1)
    total = tensor.contiguous().clone()
    received = torch.empty_like(total)
    distance = 1
    while distance < core // 2:
        handle = dist.isend(total, group=group, group_dst=rank ^ distance)
        dist.recv(received, group=group, group_src=rank ^ distance)
        handle.wait()
        total += received
        distance *= 2
    tensor.copy_(total)


# %% wrong: the built-in
# is: idea
# says: dist.all_reduce was called
def recursive_doubling_all_reduce(tensor, group=None):
    buffer = tensor.contiguous()
    dist.all_reduce(buffer, group=group)
    tensor.copy_(buffer)


# %% wrong: a ring of whole tensors
# is: idea
# says: log2 N rounds
def recursive_doubling_all_reduce(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    parts = [None] * n
    parts[rank] = passed = tensor.contiguous().clone()
    for k in range(1, n):
        received = torch.empty_like(passed)
        handle = dist.isend(passed, group=group, group_dst=(rank + 1) % n)
        dist.recv(received, group=group, group_src=(rank - 1) % n)
        handle.wait()
        parts[(rank - k) % n] = passed = received
    tensor.copy_(sum(parts[1:], parts[0]))


# %% wrong: both partners send first
# is: form
# says: post the two together
def recursive_doubling_all_reduce(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    total = tensor.contiguous().clone()
    received = torch.empty_like(total)
    distance = 1
    while distance < n:
        dist.send(total, group=group, group_dst=rank ^ distance)
        dist.recv(received, group=group, group_src=rank ^ distance)
        total += received
        distance *= 2
    tensor.copy_(total)


# %% wrong: added while it is being sent
# is: form
# says: must not change|was changed before wait
def recursive_doubling_all_reduce(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    core = 1 << (n.bit_length() - 1)
    total = tensor.contiguous().clone()
    received = torch.empty_like(total)
    if rank >= core:
        dist.send(total, group=group, group_dst=rank - core)
        dist.recv(total, group=group, group_src=rank - core)
        tensor.copy_(total)
        return
    if rank + core < n:
        dist.recv(received, group=group, group_src=rank + core)
        total += received
    distance = 1
    while distance < core:
        handle = dist.isend(total, group=group, group_dst=rank ^ distance)
        dist.recv(received, group=group, group_src=rank ^ distance)
        total += received
        handle.wait()
        distance *= 2
    if rank + core < n:
        dist.send(total, group=group, group_dst=rank + core)
    tensor.copy_(total)


# %% right: neighbours folded together
def recursive_doubling_all_reduce(tensor, group=None):
    world = group or dist.group.WORLD
    ranks = dist.get_process_group_ranks(world)
    rank, n = dist.get_rank(world), len(ranks)
    if tensor.numel() == 0:
        return
    core = 2 ** int(math.log2(n))
    extra = n - core
    total = tensor.flatten().clone()
    other = torch.empty_like(total)
    if rank < 2 * extra and rank % 2 == 0:  # hands in, waits, and is told
        dist.send(total, ranks[rank + 1], group)
        dist.recv(total, ranks[rank + 1], group)
        tensor.copy_(total.view_as(tensor))
        return
    if rank < 2 * extra:
        dist.recv(other, ranks[rank - 1], group)
        total += other
    place = rank // 2 if rank < 2 * extra else rank - extra
    for k in range(core.bit_length() - 1):
        peer = place ^ 2**k
        peer = ranks[2 * peer + 1 if peer < extra else peer + extra]
        messages = [
            dist.P2POp(dist.irecv, other, peer, group),
            dist.P2POp(dist.isend, total, peer, group),
        ]
        for handle in dist.batch_isend_irecv(messages):
            handle.wait()
        total += other
    if rank < 2 * extra:
        dist.send(total, ranks[rank - 1], group)
    tensor.copy_(total.view_as(tensor))


# %% right: the largest distance first, the lower partner sends first
# on NCCL: so this run can hang there
def recursive_doubling_all_reduce(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    core = 1
    while 2 * core <= n:
        core *= 2
    total = tensor.contiguous().clone()
    other = torch.empty_like(total)

    def send(peer):
        if total.numel():
            dist.send(total, group=group, group_dst=peer)

    def receive(into, peer):
        if total.numel():
            dist.recv(into, group=group, group_src=peer)

    if rank >= core:
        send(rank - core)
        receive(total, rank - core)
    else:
        if rank + core < n:
            receive(other, rank + core)
            total = total + other
        distance = core // 2
        while distance:
            handle = (
                dist.isend(total, group=group, group_dst=rank ^ distance) if total.numel() else None
            )
            receive(other, rank ^ distance)
            if handle is not None:
                handle.wait()
            total = total + other
            distance //= 2
        if rank + core < n:
            send(rank + core)
    tensor.copy_(total)


# %% wrong: folded in, and partners at r + distance
# is: slip
# says: Ranks did not swap: rank 0 sent to rank 1 and received from rank 3
def recursive_doubling_all_reduce(tensor, group=None):
    n, me = dist.get_world_size(group), dist.get_rank(group)
    core = 1 << (n.bit_length() - 1)
    mine = tensor.flatten()

    def exchange(out=None, into=None, to=0, source=0):
        ops = [] if out is None else [dist.P2POp(dist.isend, out, group=group, group_peer=to)]
        if into is not None:
            ops.append(dist.P2POp(dist.irecv, into, group=group, group_peer=source))
        for handle in dist.batch_isend_irecv(ops) if mine.numel() else ():
            handle.wait()

    if me >= core:
        exchange(out=mine, to=me - core)
        mine = torch.empty_like(mine)
        exchange(into=mine, source=me - core)
    else:
        guest = torch.empty_like(mine)
        if me + core < n:
            exchange(into=guest, source=me + core)
            mine = mine + guest
        for k in range(core.bit_length() - 1):
            exchange(mine, guest, (me + 2**k) % core, (me - 2**k) % core)
            mine = mine + guest
        if me + core < n:
            exchange(out=mine, to=me + core)
    tensor.copy_(mine.view(tensor.shape))


# %% wrong: a tree to rank 0 and back
# is: idea
# says: so that log2 N rounds are enough\. Without that, at most half
def recursive_doubling_all_reduce(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    total, distance = tensor.contiguous().clone(), 1
    received = torch.empty_like(total)
    while distance < n:
        if rank % (2 * distance) == 0 and rank + distance < n:
            dist.recv(received, group=group, group_src=rank + distance)
            total += received
        elif rank % (2 * distance) == distance:
            dist.send(total, group=group, group_dst=rank - distance)
        distance *= 2
    while distance > 1:
        distance //= 2
        if rank % (2 * distance) == 0 and rank + distance < n:
            dist.send(total, group=group, group_dst=rank + distance)
        elif rank % (2 * distance) == distance:
            dist.recv(total, group=group, group_src=rank - distance)
    tensor.copy_(total)


# %% wrong: the rank's own tensor in every round
# is: slip
# says: send everything you have, which is the sum so far
def recursive_doubling_all_reduce(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    own = tensor.contiguous().clone()
    total, distance = own.clone(), 1
    while distance < n:
        received = torch.empty_like(own)
        handle = dist.isend(own, group=group, group_dst=rank ^ distance)
        dist.recv(received, group=group, group_src=rank ^ distance)
        handle.wait()
        total += received
        distance *= 2
    tensor.copy_(total)


# %% wrong: nothing is done if N is no power of two
# is: slip
# says: Fold the extra ranks into the first 2, double there
def recursive_doubling_all_reduce(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    total, distance = tensor.contiguous().clone(), 1
    if n & (n - 1):
        return
    while distance < n:
        received = torch.empty_like(total)
        handle = dist.isend(total, group=group, group_dst=rank ^ distance)
        dist.recv(received, group=group, group_src=rank ^ distance)
        handle.wait()
        total = total + received
        distance *= 2
    tensor.copy_(total)
