# %% base: what the wrong ones change
# on NCCL: so this run can hang there
def reduce_scatter(output, input, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    chunks = [chunk.contiguous().clone() for chunk in input.chunk(n)]
    for k in range(n - 1):
        sent, added = chunks[(rank - k - 1) % n], chunks[(rank - k - 2) % n]
        received = torch.empty_like(added)
        handle = dist.isend(sent, group=group, group_dst=(rank + 1) % n)
        dist.recv(received, group=group, group_src=(rank - 1) % n)
        handle.wait()
        added += received
    output.copy_(chunks[rank])


# %% wrong: the complete chunk is another rank's
# is: slip
# says: on the wrong ranks
# base: what the wrong ones change
-        sent, added = chunks[(rank - k - 1) % n], chunks[(rank - k - 2) % n]
+        sent, added = chunks[(rank - k) % n], chunks[(rank - k - 1) % n]
@@
-    output.copy_(chunks[rank])
+    output.copy_(chunks[(rank + 1) % n])


# %% wrong: one round too few
# is: slip
# says: The last of the N - 1 rounds brings it
# base: what the wrong ones change
-    for k in range(n - 1):
+    for k in range(n - 2):


# %% wrong: added into the input
# is: slip
# says: `input` was changed
def reduce_scatter(output, input, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    chunks = list(input.chunk(n))
    for k in range(n - 1):
        sent, added = chunks[(rank - k - 1) % n], chunks[(rank - k - 2) % n]
        received = torch.empty(added.shape, dtype=added.dtype)
        handle = dist.isend(sent.contiguous(), group=group, group_dst=(rank + 1) % n)
        dist.recv(received, group=group, group_src=(rank - 1) % n)
        handle.wait()
        added += received
    output.copy_(chunks[rank])


# %% wrong: added to what the output held
# is: slip
# says: can hold anything before the call
# base: what the wrong ones change
-    output.copy_(chunks[rank])
+    output += chunks[rank]


# %% wrong: a mean
# is: slip
# says: reduce_scatter sums
# base: what the wrong ones change
-    output.copy_(chunks[rank])
+    output.copy_(chunks[rank] / n)


# %% wrong: the whole input in every round
# is: idea
# says: never the whole input\. Without that, at most half
def reduce_scatter(output, input, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    total = input.contiguous().clone()
    passed = total.clone()
    for _ in range(n - 1):
        received = torch.empty_like(passed)
        handle = dist.isend(passed, group=group, group_dst=(rank + 1) % n)
        dist.recv(received, group=group, group_src=(rank - 1) % n)
        handle.wait()
        total, passed = total + received, received
    output.copy_(total.chunk(n)[rank])


# %% wrong: the built-in
# is: idea
# says: dist.reduce_scatter was called|dist.all_reduce was called
def reduce_scatter(output, input, group=None):
    result = torch.empty(output.shape, dtype=output.dtype)
    dist.reduce_scatter_tensor(result, input.contiguous(), group=group)
    output.copy_(result)


# %% wrong: receives first
# is: form
# says: post both together
# base: what the wrong ones change
-        handle = dist.isend(sent, group=group, group_dst=(rank + 1) % n)
@@
-        handle.wait()
+        dist.send(sent, group=group, group_dst=(rank + 1) % n)


# %% wrong: partial sums passed on, and added again
# is: idea
# says: added more than once
def reduce_scatter(output, input, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    total = input.contiguous().clone()
    for _ in range(n - 1):
        received = torch.empty_like(total)
        handle = dist.isend(total.clone(), group=group, group_dst=(rank + 1) % n)
        dist.recv(received, group=group, group_src=(rank - 1) % n)
        handle.wait()
        total += received
    output.copy_(total.chunk(n)[rank])


# %% wrong: ranks of the world in a group
# is: slip
# says: count ranks within it|ranks of the whole world
# base: what the wrong ones change
-        handle = dist.isend(sent, group=group, group_dst=(rank + 1) % n)
-        dist.recv(received, group=group, group_src=(rank - 1) % n)
+        handle = dist.isend(sent, (rank + 1) % n, group)
+        dist.recv(received, (rank - 1) % n, group)


# %% right: straight to the rank that needs it
# on NCCL: so this run can hang there
def reduce_scatter(output, input, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    world = group or dist.group.WORLD
    ranks = dist.get_process_group_ranks(world)
    chunks = [chunk.contiguous() for chunk in input.chunk(n)] if input.numel() else []
    total = chunks[rank].clone() if chunks else input
    for k in range(1, n if chunks else 1):
        received = torch.empty_like(total)
        handle = dist.isend(chunks[(rank + k) % n], ranks[(rank + k) % n], group)
        dist.recv(received, ranks[(rank - k) % n], group)
        handle.wait()
        total += received
    output.copy_(total)


# %% right: one travelling partial sum
def reduce_scatter(output, input, group=None):
    world = group or dist.group.WORLD
    rank, n = dist.get_rank(world), dist.get_world_size(world)
    chunks = input.reshape(n, -1)
    right = dist.get_global_rank(world, (rank + 1) % n)
    left = dist.get_global_rank(world, (rank - 1) % n)
    travelling = chunks[(rank - 1) % n].clone()
    for k in range(2, n + 1):
        incoming = torch.empty_like(travelling)
        messages = [
            dist.P2POp(dist.irecv, incoming, left, group),
            dist.P2POp(dist.isend, travelling, right, group),
        ]
        for handle in dist.batch_isend_irecv(messages):
            handle.wait()
        travelling = incoming + chunks[(rank - k) % n]
    output.copy_(travelling.view(output.shape))


# %% wrong: the ring turns to the left, with the indices of one to the right
# is: slip
# says: sent to its left neighbour
def reduce_scatter(output, input, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    rows = input.reshape(n, -1)
    going = rows[rank - 1].clone()
    for k in range(n - 1):
        coming = torch.empty_like(going)
        messages = [
            dist.P2POp(dist.isend, going, group=group, group_peer=(rank - 1) % n),
            dist.P2POp(dist.irecv, coming, group=group, group_peer=(rank + 1) % n),
        ]
        for work in dist.batch_isend_irecv(messages):
            work.wait()
        going = coming + rows[(rank - k - 2) % n]
    output.copy_(going.view_as(output))


# %% wrong: sent in float64
# is: slip
# says: messages were float64
def reduce_scatter(output, input, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    parts = input.double().contiguous().chunk(n)
    total = parts[(rank - 1) % n].clone()
    for k in range(2, n + 1):
        incoming = torch.empty_like(total)
        pair = [
            dist.P2POp(dist.irecv, incoming, group=group, group_peer=(rank - 1) % n),
            dist.P2POp(dist.isend, total, group=group, group_peer=(rank + 1) % n),
        ]
        [work.wait() for work in dist.batch_isend_irecv(pair)]
        total = incoming.add_(parts[(rank - k) % n])
    output.copy_(total)


# %% wrong: the result is returned under the name of the argument
# is: form
# says: only gives that name to another tensor
def reduce_scatter(output, input, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    mine = [piece.contiguous() for piece in input.tensor_split(n)]
    partial = mine[(rank + n - 1) % n]
    step = 0
    while step < n - 1:
        landed = torch.zeros_like(partial)
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, partial, group=group, group_peer=(rank + 1) % n),
                dist.P2POp(dist.irecv, landed, group=group, group_peer=(rank + n - 1) % n),
            ]
        )
        for work in works:
            work.wait()
        partial = landed + mine[(rank - step - 2) % n]
        step += 1
    output = partial
    return output


# %% wrong: one round too many
# is: slip
# says: Every rank sent N messages, although there are N - 1 rounds
def reduce_scatter(output, input, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    chunks = [chunk.contiguous() for chunk in input.chunk(n)]
    passed = chunks[(rank - 1) % n].clone()
    for k in range(n):
        received = torch.empty_like(passed)
        handle = dist.isend(passed, group=group, group_dst=(rank + 1) % n)
        dist.recv(received, group=group, group_src=(rank - 1) % n)
        handle.wait()
        passed = received + chunks[(rank - k - 2) % n]
    output.copy_(passed)


# %% wrong: a buffer of the default dtype
# is: detail
# says: Give a buffer the dtype of the tensor that is sent
# base: what the wrong ones change
-        received = torch.empty_like(added)
+        received = torch.empty(added.shape, device=added.device)


# %% wrong: cut along the last dimension
# is: detail
# says: Cut `input` along dim 0
def reduce_scatter(output, input, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    chunks = [chunk.contiguous().clone() for chunk in input.chunk(n, dim=-1)]
    for k in range(n - 1):
        sent, added = chunks[(rank - k - 1) % n], chunks[(rank - k - 2) % n]
        received = torch.empty_like(added)
        handle = dist.isend(sent, group=group, group_dst=(rank + 1) % n)
        dist.recv(received, group=group, group_src=(rank - 1) % n)
        handle.wait()
        added += received
    output.copy_(chunks[rank].view(output.shape))


# %% wrong: rank 0 adds everything and scatters the sum
# is: idea
# says: never the whole input\. Without that, at most half
def reduce_scatter(output, input, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    total, mine = input.contiguous().clone(), output.contiguous()
    if rank:
        dist.send(total, group=group, group_dst=0)
        dist.recv(mine, group=group, group_src=0)
        output.copy_(mine)
        return
    part = torch.empty_like(total)
    for other in range(1, n):
        dist.recv(part, group=group, group_src=other)
        total += part
    for other in range(1, n):
        dist.send(total.chunk(n)[other], group=group, group_dst=other)
    output.copy_(total.chunk(n)[0])
