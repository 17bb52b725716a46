# %% wrong: the own shard is not copied
# is: slip
# says: own shard never arrived in `output`
def all_gather(output, input, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    shards = output.chunk(n)
    passed = input.contiguous()
    for k in range(n - 1):
        handle = dist.isend(passed, group=group, group_dst=(rank + 1) % n)
        dist.recv(shards[(rank - k - 1) % n], group=group, group_src=(rank - 1) % n)
        handle.wait()
        passed = shards[(rank - k - 1) % n]


# %% wrong: shards in the order of arrival
# is: slip
# says: in the wrong places
def all_gather(output, input, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    shards = output.chunk(n)
    shards[0].copy_(input)
    for k in range(n - 1):
        handle = dist.isend(shards[k], group=group, group_dst=(rank + 1) % n)
        dist.recv(shards[k + 1], group=group, group_src=(rank - 1) % n)
        handle.wait()


# %% wrong: one round too few
# is: slip
# says: were never written
def all_gather(output, input, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    shards = output.chunk(n)
    shards[rank].copy_(input)
    for k in range(n - 2):
        handle = dist.isend(shards[(rank - k) % n], group=group, group_dst=(rank + 1) % n)
        dist.recv(shards[(rank - k - 1) % n], group=group, group_src=(rank - 1) % n)
        handle.wait()


# %% wrong: its own shard passed on in every round
# is: slip
# says: sent the rank's own shard once more
def all_gather(output, input, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    shards = output.chunk(n)
    shards[rank].copy_(input)
    for k in range(n - 1):
        handle = dist.isend(shards[rank], group=group, group_dst=(rank + 1) % n)
        dist.recv(shards[(rank - k - 1) % n], group=group, group_src=(rank - 1) % n)
        handle.wait()


# %% wrong: the whole output in every round
# is: idea
# says: never the whole output\. Without that, at most half
def all_gather(output, input, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    output.zero_()
    output.chunk(n)[rank].copy_(input)
    passed = output.clone()
    for _ in range(n - 1):
        received = torch.empty_like(output)
        handle = dist.isend(passed, group=group, group_dst=(rank + 1) % n)
        dist.recv(received, group=group, group_src=(rank - 1) % n)
        handle.wait()
        output += received
        passed = received


# %% wrong: the built-in
# is: idea
# says: dist.all_gather was called
def all_gather(output, input, group=None):
    dist.all_gather_into_tensor(output, input.contiguous(), group=group)


# %% wrong: sends first
# is: form
# says: post both together
def all_gather(output, input, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    shards = output.chunk(n)
    shards[rank].copy_(input)
    for k in range(n - 1):
        dist.send(shards[(rank - k) % n], group=group, group_dst=(rank + 1) % n)
        dist.recv(shards[(rank - k - 1) % n], group=group, group_src=(rank - 1) % n)


# %% wrong: the next round begins before the last has come
# is: form
# says: wait\(\)
def all_gather(output, input, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    output.zero_()
    shards = output.chunk(n)
    shards[rank].copy_(input)
    for k in range(n - 1):
        dist.isend(shards[(rank - k) % n], group=group, group_dst=(rank + 1) % n)
        dist.irecv(shards[(rank - k - 1) % n], group=group, group_src=(rank - 1) % n)


# %% wrong: the input handed over as it lies in memory
# is: detail
# says: not contiguous
def all_gather(output, input, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    shards = output.chunk(n)
    shards[rank].copy_(input)
    passed = input
    for k in range(n - 1):
        handle = dist.isend(passed, group=group, group_dst=(rank + 1) % n)
        dist.recv(shards[(rank - k - 1) % n], group=group, group_src=(rank - 1) % n)
        handle.wait()
        passed = shards[(rank - k - 1) % n]


# %% right: everybody to everybody
# on NCCL: so this run can hang there
def all_gather(output, input, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    length = len(input)
    output[rank * length : (rank + 1) * length] = input
    mine = input.contiguous()
    for k in range(1, n):
        source = (rank - k) % n
        sending = dist.isend(mine, group=group, group_dst=(rank + k) % n)
        dist.recv(output[source * length : (source + 1) * length], group=group, group_src=source)
        sending.wait()


# %% right: received into buffers of their own, then joined
def all_gather(output, input, group=None):
    world = group or dist.group.WORLD
    rank, n = dist.get_rank(world), dist.get_world_size(world)
    shards = {rank: input.contiguous()}
    passed = shards[rank]
    for k in range(1, n):
        received = torch.empty_like(passed)
        messages = [
            dist.P2POp(dist.isend, passed, dist.get_global_rank(world, (rank + 1) % n), group),
            dist.P2POp(dist.irecv, received, dist.get_global_rank(world, (rank - 1) % n), group),
        ]
        for handle in dist.batch_isend_irecv(messages):
            handle.wait()
        passed = shards[(rank - k) % n] = received
    output.copy_(torch.cat([shards[r] for r in range(n)]))


# %% wrong: output is another tensor's name afterwards
# is: form
# says: only gives that name to another tensor
def all_gather(output, input, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    shards = [torch.empty(input.shape, dtype=input.dtype) for _ in range(n)]
    shards[rank].copy_(input)
    for k in range(n - 1):
        pair = [
            dist.P2POp(dist.isend, shards[(rank - k) % n], group=group, group_peer=(rank + 1) % n),
            dist.P2POp(dist.irecv, shards[rank - k - 1], group=group, group_peer=(rank - 1) % n),
        ]
        [handle.wait() for handle in dist.batch_isend_irecv(pair)]
    output = torch.cat(shards)


# %% wrong: buffers of the default dtype
# is: detail
# says: Give a buffer the dtype of the tensor that is sent
def all_gather(output, input, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    shards = {rank: input.contiguous()}
    for k in range(n - 1):
        received = torch.empty(input.shape, device=input.device)
        handle = dist.isend(shards[(rank - k) % n], group=group, group_dst=(rank + 1) % n)
        dist.recv(received, group=group, group_src=(rank - 1) % n)
        handle.wait()
        shards[(rank - k - 1) % n] = received
    output.copy_(torch.cat([shards[r] for r in range(n)]))


# %% wrong: added to what the output held
# is: slip
# says: write into it instead of adding to it
def all_gather(output, input, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    shards, passed = output.chunk(n), input.contiguous()
    shards[rank].add_(passed)
    for k in range(n - 1):
        received = torch.empty_like(passed)
        handle = dist.isend(passed, group=group, group_dst=(rank + 1) % n)
        dist.recv(received, group=group, group_src=(rank - 1) % n)
        handle.wait()
        passed = received
        shards[(rank - k - 1) % n].add_(passed)


# %% wrong: as many chunks as there are ranks in the world
# is: slip
# says: they count all ranks, and there are as many chunks
def all_gather(output, input, group=None):
    rank, n = dist.get_rank(), dist.get_world_size()
    shards = output.contiguous().chunk(n)
    shards[rank].copy_(input)
    for k in range(n - 1):
        handle = dist.isend(shards[(rank - k) % n], (rank + 1) % n, group)
        dist.recv(shards[(rank - k - 1) % n], (rank - 1) % n, group)
        handle.wait()


# %% wrong: the left neighbour of rank 0 is rank -1
# is: form
# says: number in this group is one of 0 \.\. 3\. To go around a ring
def all_gather(output, input, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    shards = output.chunk(n)
    shards[rank].copy_(input)
    for k in range(n - 1):
        right = dist.P2POp(dist.isend, shards[rank - k], group=group, group_peer=(rank + 1) % n)
        left = dist.P2POp(dist.irecv, shards[rank - k - 1], group=group, group_peer=rank - 1)
        for handle in dist.batch_isend_irecv([right, left]):
            handle.wait()
