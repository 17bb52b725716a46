# %% wrong: both receive first
# is: idea
# says: Both partners do the same thing first
def exchange(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    if rank ^ 1 >= n:
        return
    received = torch.empty_like(tensor)
    dist.recv(received, group=group, group_src=rank ^ 1)
    dist.send(tensor, group=group, group_dst=rank ^ 1)
    tensor.copy_(received)


# %% wrong: the last rank of an odd number has a partner too
# is: slip
# says: last one has no partner|no partner|does not exist there
def exchange(tensor, group=None):
    rank = dist.get_rank(group)
    received = torch.empty_like(tensor)
    if rank % 2 == 0:
        dist.send(tensor.contiguous(), group=group, group_dst=rank + 1)
        dist.recv(received, group=group, group_src=rank + 1)
    else:
        dist.recv(received, group=group, group_src=rank - 1)
        dist.send(tensor.contiguous(), group=group, group_dst=rank - 1)
    tensor.copy_(received)


# %% wrong: the neighbour on the right instead of the partner
# is: slip
# says: partner of rank r is r \^ 1
def exchange(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    if n == 1:
        return
    sent, received = tensor.contiguous(), torch.empty(tensor.shape, dtype=tensor.dtype)
    handle = dist.isend(sent, group=group, group_dst=(rank + 1) % n)
    dist.recv(received, group=group, group_src=(rank - 1) % n)
    handle.wait()
    tensor.copy_(received)


# %% wrong: what came in never reaches the argument
# is: slip
# says: partner's value never arrived in `tensor`
def exchange(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    if rank ^ 1 >= n:
        return
    received = torch.empty(tensor.shape, dtype=tensor.dtype)
    handle = dist.isend(tensor.contiguous(), group=group, group_dst=rank ^ 1)
    dist.recv(received, group=group, group_src=rank ^ 1)
    handle.wait()
    tensor = received


# %% wrong: copied into the contiguous copy of the argument
# is: slip
# says: the name can stand for another tensor
def exchange(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    if rank ^ 1 >= n:
        return
    tensor = tensor.contiguous()
    received = torch.empty_like(tensor)
    handle = dist.isend(tensor, group=group, group_dst=rank ^ 1)
    dist.recv(received, group=group, group_src=rank ^ 1)
    handle.wait()
    tensor.copy_(received)


# %% wrong: added instead of swapped
# is: slip
# says: Swap, do not add
def exchange(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    if rank ^ 1 >= n:
        return
    received = torch.empty(tensor.shape, dtype=tensor.dtype)
    handle = dist.isend(tensor.contiguous(), group=group, group_dst=rank ^ 1)
    dist.recv(received, group=group, group_src=rank ^ 1)
    handle.wait()
    tensor += received


# %% wrong: received into the tensor that is being sent
# is: slip
# says: must not change|was changed before wait|arrives
def exchange(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    if rank ^ 1 >= n:
        return
    buffer = tensor.contiguous()
    handle = dist.isend(buffer, group=group, group_dst=rank ^ 1)
    dist.recv(buffer, group=group, group_src=rank ^ 1)
    handle.wait()
    tensor.copy_(buffer)


# %% wrong: a strided tensor handed to send
# is: detail
# says: not contiguous
def exchange(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    if rank ^ 1 >= n:
        return
    received = torch.empty_like(tensor)
    handle = dist.isend(tensor, group=group, group_dst=rank ^ 1)
    dist.recv(received, group=group, group_src=rank ^ 1)
    handle.wait()
    tensor.copy_(received)


# %% wrong: ranks of the world in a group
# is: slip
# says: count ranks within it|ranks of the whole world
def exchange(tensor, group=None):
    rank, n = dist.get_rank(), dist.get_world_size()
    if rank ^ 1 >= n:
        return
    received = torch.empty(tensor.shape, dtype=tensor.dtype)
    handle = dist.isend(tensor.contiguous(), rank ^ 1)
    dist.recv(received, rank ^ 1)
    handle.wait()
    tensor.copy_(received)


# %% wrong: everybody's tensors gathered
# is: idea
# says: only send, recv, isend, irecv and batch_isend_irecv count
def exchange(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    everything = [torch.empty(tensor.shape, dtype=tensor.dtype) for _ in range(n)]
    dist.all_gather(everything, tensor.contiguous(), group=group)
    if rank ^ 1 < n:
        tensor.copy_(everything[rank ^ 1])


# %% wrong: the tensor sent twice
# is: slip
# says: sends its tensor once
def exchange(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    if rank ^ 1 >= n:
        return
    sent, received = tensor.contiguous(), torch.empty(tensor.shape, dtype=tensor.dtype)
    for _ in range(2):
        handle = dist.isend(sent, group=group, group_dst=rank ^ 1)
        dist.recv(received, group=group, group_src=rank ^ 1)
        handle.wait()
    tensor.copy_(received)


# %% wrong: the buffer has the default dtype
# is: detail
# says: the same number of elements and the same dtype
# base: both posted together
-        theirs = torch.empty_like(mine)
+        theirs = torch.empty(mine.shape)


# %% wrong: a barrier behind the messages
# is: detail
# says: dist.barrier was called
# base: both posted together
-        tensor.copy_(theirs)
+        tensor.copy_(theirs)
+    dist.barrier(group)


# %% wrong: two sends, and no receive
# is: form
# says: Partners send to each other and receive from each other
# base: both posted together
-            dist.P2POp(dist.irecv, theirs, peer, group),
+            dist.P2POp(dist.isend, theirs, peer, group),


# %% wrong: the second of a pair sends what it has received
# is: slip
# says: and not what it has just received
def exchange(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    if rank ^ 1 >= n:
        return
    value = tensor.contiguous()
    if rank % 2 == 0:
        dist.send(value, group=group, group_dst=rank ^ 1)
        dist.recv(value, group=group, group_src=rank ^ 1)
    else:
        dist.recv(value, group=group, group_src=rank ^ 1)
        dist.send(value, group=group, group_dst=rank ^ 1)
    tensor.copy_(value)


# %% wrong: even ranks look to their left
# is: form
# says: The partner of rank r is r \^ 1
def exchange(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    if n == 1:
        return
    other = rank - 1 if rank % 2 == 0 else rank + 1
    value = tensor.contiguous()
    theirs = torch.empty_like(value)
    both = [
        dist.P2POp(dist.isend, value, group=group, group_peer=other),
        dist.P2POp(dist.irecv, theirs, group=group, group_peer=other),
    ]
    for handle in dist.batch_isend_irecv(both):
        handle.wait()
    tensor.copy_(theirs)



# %% right: even ranks send first
def exchange(tensor, group=None):
    world = group or dist.group.WORLD
    rank, n = dist.get_rank(world), dist.get_world_size(world)
    other = rank + 1 if rank % 2 == 0 else rank - 1
    if other >= n or tensor.numel() == 0:
        return
    peer = dist.get_global_rank(world, other)
    mine, theirs = tensor.contiguous(), tensor.new_empty(tensor.numel())
    if rank % 2 == 0:
        dist.send(mine, peer, group)
        dist.recv(theirs, peer, group)
    else:
        dist.recv(theirs, peer, group)
        dist.send(mine, peer, group)
    tensor.copy_(theirs.view(tensor.shape))


# %% right: both posted together
def exchange(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    if rank ^ 1 < n:
        mine = tensor.clone(memory_format=torch.contiguous_format)
        theirs = torch.empty_like(mine)
        peer = dist.get_global_rank(group or dist.group.WORLD, rank ^ 1)
        both = [
            dist.P2POp(dist.irecv, theirs, peer, group),
            dist.P2POp(dist.isend, mine, peer, group),
        ]
        for handle in dist.batch_isend_irecv(both):
            handle.wait()
        tensor.copy_(theirs)
