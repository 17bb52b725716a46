# %% wrong: everybody receives first
# is: idea
# says: Post the send and the receive together
def ring_shift(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    if n == 1:
        return tensor.clone()
    received = torch.empty(tensor.shape, dtype=tensor.dtype)
    dist.recv(received, group=group, group_src=(rank - 1) % n)
    dist.send(tensor.contiguous(), group=group, group_dst=(rank + 1) % n)
    return received


# %% wrong: everybody sends first
# is: idea
# says: Post the send and the receive together
def ring_shift(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    if n == 1:
        return tensor.clone()
    received = torch.empty(tensor.shape, dtype=tensor.dtype)
    dist.send(tensor.contiguous(), group=group, group_dst=(rank + 1) % n)
    dist.recv(received, group=group, group_src=(rank - 1) % n)
    return received


# %% wrong: the wrong way round
# is: slip
# says: went around the wrong way
def ring_shift(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    if n == 1:
        return tensor.clone()
    received = torch.empty(tensor.shape, dtype=tensor.dtype)
    handle = dist.isend(tensor.contiguous(), group=group, group_dst=(rank - 1) % n)
    dist.recv(received, group=group, group_src=(rank + 1) % n)
    handle.wait()
    return received


# %% wrong: a line, not a ring
# is: slip
# says: the last rank sends to rank 0
def ring_shift(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    received = tensor.clone(memory_format=torch.contiguous_format)
    handle = None
    if rank + 1 < n:
        handle = dist.isend(tensor.contiguous(), group=group, group_dst=rank + 1)
    if rank > 0:
        dist.recv(received, group=group, group_src=rank - 1)
    if handle is not None:
        handle.wait()
    return received


# %% wrong: the last rank forgets that the ring closes
# is: slip
# says: circle must close|Invalid|invalid|range
def ring_shift(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    if n == 1:
        return tensor.clone()
    received = torch.empty(tensor.shape, dtype=tensor.dtype)
    handle = None
    if rank < n - 1:
        handle = dist.isend(tensor.contiguous(), group=group, group_dst=rank + 1)
    dist.recv(received, group=group, group_src=(rank - 1) % n)
    if handle is not None:
        handle.wait()
    return received


# %% wrong: its own tensor returned
# is: slip
# says: Return the tensor into which you received
def ring_shift(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    if n == 1:
        return tensor.clone()
    received = torch.empty(tensor.shape, dtype=tensor.dtype)
    handle = dist.isend(tensor.contiguous(), group=group, group_dst=(rank + 1) % n)
    dist.recv(received, group=group, group_src=(rank - 1) % n)
    handle.wait()
    return tensor.clone()


# %% wrong: nothing returned
# is: form
# says: Is there a `return`
def ring_shift(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    if n == 1:
        return
    received = torch.empty(tensor.shape, dtype=tensor.dtype)
    handle = dist.isend(tensor.contiguous(), group=group, group_dst=(rank + 1) % n)
    dist.recv(received, group=group, group_src=(rank - 1) % n)
    handle.wait()
    tensor.copy_(received)


# %% wrong: the argument overwritten and returned
# is: slip
# says: left alone
def ring_shift(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    if n == 1:
        return tensor.clone()
    received = torch.empty(tensor.shape, dtype=tensor.dtype)
    handle = dist.isend(tensor.contiguous(), group=group, group_dst=(rank + 1) % n)
    dist.recv(received, group=group, group_src=(rank - 1) % n)
    handle.wait()
    tensor.copy_(received)
    return received


# %% wrong: the receive is not waited for
# is: slip
# says: wait\(\)
def ring_shift(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    if n == 1:
        return tensor.clone()
    received = torch.zeros(tensor.shape, dtype=tensor.dtype)
    sending = dist.isend(tensor.contiguous(), group=group, group_dst=(rank + 1) % n)
    dist.irecv(received, group=group, group_src=(rank - 1) % n)
    sending.wait()
    return received


# %% wrong: everybody's tensors gathered
# is: idea
# says: dist.all_gather was called
def ring_shift(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    everything = [torch.empty(tensor.shape, dtype=tensor.dtype) for _ in range(n)]
    dist.all_gather(everything, tensor.contiguous(), group=group)
    return everything[(rank - 1) % n]


# %% wrong: neighbours of the world in a group
# is: slip
# says: count ranks within it
def ring_shift(tensor, group=None):
    rank, n = dist.get_rank(), dist.get_world_size()
    if n == 1:
        return tensor.clone()
    received = torch.empty(tensor.shape, dtype=tensor.dtype)
    handle = dist.isend(tensor.contiguous(), (rank + 1) % n)
    dist.recv(received, (rank - 1) % n)
    handle.wait()
    return received


# %% wrong: ours imported
# is: form
# says: write your own
def ring_shift(tensor, group=None):
    from course_lib.first_ranks import ring_shift as solved

    return solved(tensor, group)


# %% wrong: the buffer has the default dtype
# is: detail
# says: the same number of elements and the same dtype
# base: posted together
-    received = sent.clone()
+    received = torch.empty(sent.shape) if n > 1 else sent.clone()


# %% wrong: a single rank returns a view
# is: detail
# says: are in the same memory
# base: posted together
-    received = sent.clone()
+    received = sent.clone() if n > 1 else tensor.detach()


# %% wrong: sent to the right and received from the right
# is: form
# says: both messages of a rank must begin
# base: posted together
-            dist.P2POp(dist.irecv, received, left, group),
+            dist.P2POp(dist.irecv, received, right, group),


# %% wrong: ranks pass on what they receive
# is: slip
# says: they pass on what they receive
# base: rank 0 begins the other way round
-        dist.recv(received, left, group)
-        dist.send(tensor.contiguous(), right, group)
+        dist.recv(received, left, group)
+        dist.send(received, right, group)


# %% wrong: nothing is sent to rank 0, whose buffer is empty
# is: slip
# says: Only rank 0 of the group is wrong
def ring_shift(tensor, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    received = torch.zeros(tensor.shape, dtype=tensor.dtype)
    if rank > 0:
        dist.recv(received, group=group, group_src=rank - 1)
    if rank < n - 1:
        dist.send(tensor.contiguous(), group=group, group_dst=rank + 1)
    return received



# %% right: posted together
def ring_shift(tensor, group=None):
    world = group or dist.group.WORLD
    rank, n = dist.get_rank(world), dist.get_world_size(world)
    sent = tensor.contiguous()
    received = sent.clone()
    if n > 1:
        right = dist.get_global_rank(world, (rank + 1) % n)
        left = dist.get_global_rank(world, (rank - 1) % n)
        both = [
            dist.P2POp(dist.isend, sent, right, group),
            dist.P2POp(dist.irecv, received, left, group),
        ]
        for handle in dist.batch_isend_irecv(both):
            handle.wait()
    return received


# %% right: rank 0 begins the other way round
def ring_shift(tensor, group=None):
    world = group or dist.group.WORLD
    ranks = dist.get_process_group_ranks(world)
    rank, n = dist.get_rank(world), len(ranks)
    received = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    if n == 1:
        return received.copy_(tensor)
    right, left = ranks[(rank + 1) % n], ranks[rank - 1]
    if rank == 0:
        dist.send(tensor.contiguous(), right, group)
        dist.recv(received, left, group)
    else:
        dist.recv(received, left, group)
        dist.send(tensor.contiguous(), right, group)
    return received
