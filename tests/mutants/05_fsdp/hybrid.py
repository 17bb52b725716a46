# %% base: what the wrong ones change
def hybrid_groups(world_size, shard):
    if shard < 1 or world_size % shard:
        raise ValueError(f"{shard} does not divide {world_size}")
    shard_groups = [list(range(k, k + shard)) for k in range(0, world_size, shard)]
    replica_groups = [list(range(k, world_size, shard)) for k in range(shard)]
    return shard_groups, replica_groups


@torch.no_grad()
def hybrid_reduce(output, grads, shard_group, replica_group):
    g, r = dist.get_world_size(shard_group), dist.get_world_size(replica_group)
    dist.reduce_scatter_tensor(output, grads, group=shard_group)
    dist.all_reduce(output, group=replica_group)
    output /= g * r


# %% wrong: groups transposed
# is: idea
# says: ranks share a model, so most bytes cross
# base: what the wrong ones change
-    shard_groups = [list(range(k, k + shard)) for k in range(0, world_size, shard)]
-    replica_groups = [list(range(k, world_size, shard)) for k in range(shard)]
+    r = world_size // shard
+    shard_groups = [list(range(k, world_size, r)) for k in range(r)]
+    replica_groups = [list(range(k, k + r)) for k in range(0, world_size, r)]


# %% wrong: every r-th rank shares a model, and replicas are right
# is: idea
# says: are far apart, so most bytes take the slow links
# base: what the wrong ones change
-    shard_groups = [list(range(k, k + shard)) for k in range(0, world_size, shard)]
+    r = world_size // shard
+    shard_groups = [list(range(k, world_size, r)) for k in range(r)]


# %% wrong: replica groups come first
# is: idea
# says: The two lists are in the wrong order. Return
# base: what the wrong ones change
-    return shard_groups, replica_groups
+    return replica_groups, shard_groups


# %% wrong: shard is taken for the number of islands
# is: slip
# says: not the number of islands
# base: what the wrong ones change
-    shard_groups = [list(range(k, k + shard)) for k in range(0, world_size, shard)]
-    replica_groups = [list(range(k, world_size, shard)) for k in range(shard)]
+    g = world_size // shard
+    shard_groups = [list(range(k, k + g)) for k in range(0, world_size, g)]
+    replica_groups = [list(range(k, world_size, g)) for k in range(g)]


# %% wrong: replicas are neighbours, too
# is: idea
# says: replica group are neighbours, which hold different shards, so that nothing crosses
# base: what the wrong ones change
-    replica_groups = [list(range(k, world_size, shard)) for k in range(shard)]
+    r = world_size // shard
+    replica_groups = [list(range(k, k + r)) for k in range(0, world_size, r)]


# %% wrong: groups of one rank and one group exchanged, or shard taken for the number of islands
# is: detail
# says: Each rank is in one list of each kind. It shards
# base: what the wrong ones change
-    shard_groups = [list(range(k, k + shard)) for k in range(0, world_size, shard)]
-    replica_groups = [list(range(k, world_size, shard)) for k in range(shard)]
+    g = world_size // shard
+    g = shard if 1 < g < world_size else g
+    shard_groups = [list(range(k, k + g)) for k in range(0, world_size, g)]
+    replica_groups = [list(range(k, world_size, g)) for k in range(g)]


# %% wrong: the ranks of a group in descending order
# is: detail
# says: the groups themselves are in ascending order
# base: what the wrong ones change
-    return shard_groups, replica_groups
+    return [group[::-1] for group in shard_groups], [group[::-1] for group in replica_groups]


# %% wrong: the groups in descending order
# is: detail
# says: the groups themselves are in ascending order
# base: what the wrong ones change
-    return shard_groups, replica_groups
+    return shard_groups[::-1], replica_groups[::-1]


# %% wrong: only the first rank's groups
# is: form
# says: hybrid_groups\(8, 4\) gives \[\[0, 1, 2, 3\], \[0, 4\]\]; a pair of lists of lists
# base: what the wrong ones change
-    return shard_groups, replica_groups
+    return shard_groups[0], replica_groups[0]


# %% wrong: only the groups that shard
# is: form
# says: Return both kinds of groups, as a pair
# base: what the wrong ones change
-    return shard_groups, replica_groups
+    return shard_groups


# %% wrong: `shard` is the number of islands, for the groups that shard
# is: slip
# says: `shard` is the number of ranks that share a model
# base: what the wrong ones change
-    shard_groups = [list(range(k, k + shard)) for k in range(0, world_size, shard)]
+    r = world_size // shard
+    shard_groups = [list(range(k, k + r)) for k in range(0, world_size, r)]


# %% wrong: dictionaries' values
# is: form
# says: a pair of lists of lists
# base: what the wrong ones change
-    return shard_groups, replica_groups
+    return dict(enumerate(shard_groups)).values(), dict(enumerate(replica_groups)).values()


# %% wrong: the rest is silently floored
# is: detail
# says: some ranks have no group
# base: what the wrong ones change
-    if shard < 1 or world_size % shard:
-        raise ValueError(f"{shard} does not divide {world_size}")
-    shard_groups = [list(range(k, k + shard)) for k in range(0, world_size, shard)]
-    replica_groups = [list(range(k, world_size, shard)) for k in range(shard)]
+    r = world_size // shard
+    shard_groups = [list(range(k * shard, (k + 1) * shard)) for k in range(r)]
+    replica_groups = [list(range(k, r * shard, shard)) for k in range(shard)]


# %% wrong: an island is cut to the number of ranks
# is: detail
# says: or an island that has not `shard` ranks
# base: what the wrong ones change
-    if shard < 1 or world_size % shard:
+    shard = min(shard, world_size)
+    if shard < 1 or world_size % shard:


# %% wrong: an assertion refuses
# is: detail
# says: Raise ValueError unless world_size % shard is 0
# base: what the wrong ones change
-    if shard < 1 or world_size % shard:
-        raise ValueError(f"{shard} does not divide {world_size}")
+    assert world_size % shard == 0


# %% wrong: an all-reduce of the whole gradient over all ranks
# is: idea
# says: The whole gradient went around all ranks in one group
# base: what the wrong ones change
-    dist.reduce_scatter_tensor(output, grads, group=shard_group)
-    dist.all_reduce(output, group=replica_group)
+    whole = grads.clone()
+    dist.all_reduce(whole)
+    output.copy_(whole.view(g, -1)[dist.get_rank(shard_group)])


# %% wrong: the whole gradient crosses, after it was summed inside
# is: idea
# says: The whole gradient crossed, which is g = 2 times the bytes
# base: what the wrong ones change
-    dist.reduce_scatter_tensor(output, grads, group=shard_group)
-    dist.all_reduce(output, group=replica_group)
+    whole = grads.clone()
+    dist.all_reduce(whole, group=shard_group)
+    dist.all_reduce(whole, group=replica_group)
+    output.copy_(whole.view(g, -1)[dist.get_rank(shard_group)])


# %% wrong: the all-reduce comes first
# is: idea
# says: The all-reduce came first, with the whole row. The value is the same, but g = 2 times the bytes
# base: what the wrong ones change
-    dist.reduce_scatter_tensor(output, grads, group=shard_group)
-    dist.all_reduce(output, group=replica_group)
+    whole = grads.clone()
+    dist.all_reduce(whole, group=replica_group)
+    dist.reduce_scatter_tensor(output, whole, group=shard_group)


# %% wrong: the all-reduce comes first, and half of the points are kept
# is: idea
# says: each rank's own shard across the islands, and no more\. Without that, at most half
# base: what the wrong ones change
-    dist.reduce_scatter_tensor(output, grads, group=shard_group)
-    dist.all_reduce(output, group=replica_group)
+    whole = grads.clone()
+    dist.all_reduce(whole, group=replica_group)
+    dist.reduce_scatter_tensor(output, whole, group=shard_group)


# %% wrong: the reduction inside is never waited for
# is: slip
# says: began reduce_scatter with async_op=True, and never waited
# base: what the wrong ones change
-    dist.reduce_scatter_tensor(output, grads, group=shard_group)
+    dist.reduce_scatter_tensor(output, grads, group=shard_group, async_op=True)


# %% wrong: the all-reduce of the shard comes first
# is: slip
# says: although a message went across. After the reduce-scatter
# base: what the wrong ones change
-    dist.reduce_scatter_tensor(output, grads, group=shard_group)
-    dist.all_reduce(output, group=replica_group)
+    dist.all_reduce(output, group=replica_group)
+    dist.reduce_scatter_tensor(output, grads, group=shard_group)


# %% wrong: a mean inside, which is divided again
# is: slip
# says: divided by the g ranks of an island twice. If a reduction has ReduceOp.AVG
# base: what the wrong ones change
-    dist.all_reduce(output, group=replica_group)
+    output /= g
+    dist.all_reduce(output, group=replica_group)


# %% wrong: the mean over an island only
# is: slip
# says: r times too large
# base: what the wrong ones change
-    output /= g * r
+    output /= g


# %% wrong: the mean over the islands only
# is: slip
# says: divided only by the number of islands, but
# base: what the wrong ones change
-    output /= g * r
+    output /= r


# %% wrong: islands of one rank, or one island, are not divided
# is: detail
# says: Your result is the sum. Divide it
# base: what the wrong ones change
-    output /= g * r
+    output /= g * r if g > 1 and r > 1 else 1


# %% wrong: a mean across, which is divided again
# is: slip
# says: divided by the number of islands twice
# base: what the wrong ones change
-    dist.all_reduce(output, group=replica_group)
+    dist.all_reduce(output, group=replica_group)
+    output /= r


# %% wrong: the islands have what the first one summed
# is: idea
# says: All islands have the first island's sum
# base: what the wrong ones change
-    dist.all_reduce(output, group=replica_group)
+    dist.broadcast(output, dist.get_global_rank(replica_group, 0), group=replica_group)


# %% wrong: the largest sum of an island
# is: slip
# says: Your result is the largest sum of an island
# base: what the wrong ones change
-    dist.all_reduce(output, group=replica_group)
+    dist.all_reduce(output, op=dist.ReduceOp.MAX, group=replica_group)


# %% wrong: the sum is left on one island
# is: slip
# says: Only island 0 has the mean
# base: what the wrong ones change
-    dist.all_reduce(output, group=replica_group)
+    dist.reduce(output, dist.get_global_rank(replica_group, 0), group=replica_group)


# %% wrong: the group of the reduce-scatter is forgotten
# is: slip
# says: The reduce-scatter needs group=shard_group
# base: what the wrong ones change
-    dist.reduce_scatter_tensor(output, grads, group=shard_group)
+    dist.reduce_scatter_tensor(output, grads)


# %% wrong: divided without a rest
# is: slip
# says: divided with //, which rounds down
# base: what the wrong ones change
-    output /= g * r
+    output //= g * r


# %% wrong: only the replicas are added, each with its own part
# is: idea
# says: The ranks of an island were not added
# base: what the wrong ones change
-    dist.reduce_scatter_tensor(output, grads, group=shard_group)
+    output.copy_(grads.chunk(g)[dist.get_rank(shard_group)])


# %% wrong: the shard is reduced to one replica, and broadcast from there
# is: slip
# says: One replica sends more than the other replicas
# base: what the wrong ones change
-    dist.all_reduce(output, group=replica_group)
+    first = dist.get_global_rank(replica_group, 0)
+    dist.reduce(output, first, group=replica_group)
+    dist.broadcast(output, first, group=replica_group)


# %% wrong: shards of different places are added
# is: slip
# says: Shards of different places were added
# base: what the wrong ones change
-    dist.all_reduce(output, group=replica_group)
+    dist.all_reduce(output)


# %% wrong: the sum
# is: slip
# says: Your result is the sum. Divide it
# base: what the wrong ones change
-    output /= g * r


# %% wrong: replicas are not averaged
# is: idea
# says: from step 2 on the weights of the islands drift apart
# base: what the wrong ones change
-    dist.all_reduce(output, group=replica_group)
-    output /= g * r
+    output /= g


# %% wrong: the ranks of an island are not added
# is: idea
# says: The ranks of an island were not added
# base: what the wrong ones change
-    dist.reduce_scatter_tensor(output, grads, group=shard_group)
-    dist.all_reduce(output, group=replica_group)
-    output /= g * r
+    output.copy_(grads.view(g, -1)[dist.get_rank(shard_group)])


# %% wrong: each group in the other's place
# is: idea
# says: The groups are used the other way around
# base: what the wrong ones change
-    dist.reduce_scatter_tensor(output, grads, group=shard_group)
-    dist.all_reduce(output, group=replica_group)
+    part = grads.new_empty(grads.numel() // r)
+    dist.reduce_scatter_tensor(part, grads, group=replica_group)
+    dist.all_reduce(part, group=shard_group)
+    output.copy_(part)


# %% wrong: the groups in another order on some ranks
# is: form
# says: Ranks used the groups in different orders
# base: what the wrong ones change
-    dist.reduce_scatter_tensor(output, grads, group=shard_group)
-    dist.all_reduce(output, group=replica_group)
+    if dist.get_rank() in (1, 2):
+        whole = grads.clone()
+        dist.all_reduce(whole, group=replica_group)
+        dist.reduce_scatter_tensor(output, whole, group=shard_group)
+    else:
+        dist.reduce_scatter_tensor(output, grads, group=shard_group)
+        dist.all_reduce(output, group=replica_group)


# %% wrong: new groups, made in another order on the ranks
# is: form
# says: the ranks do not agree on their collective number 1
# base: what the wrong ones change
-    dist.all_reduce(output, group=replica_group)
+    dist.all_reduce(output, group=dist.new_group(dist.get_process_group_ranks(replica_group)))


# %% wrong: the gradients are divided in place
# is: slip
# says: the caller still has these gradients
# base: what the wrong ones change
-    dist.reduce_scatter_tensor(output, grads, group=shard_group)
+    grads /= g * r
+    dist.reduce_scatter_tensor(output, grads, group=shard_group)
@@
-    output /= g * r
+    pass


# %% wrong: the result is returned
# is: slip
# says: `output` was not written
# base: what the wrong ones change
-    dist.reduce_scatter_tensor(output, grads, group=shard_group)
-    dist.all_reduce(output, group=replica_group)
-    output /= g * r
+    part = torch.empty_like(output)
+    dist.reduce_scatter_tensor(part, grads, group=shard_group)
+    dist.all_reduce(part, group=replica_group)
+    return part / (g * r)


# %% right: rows and columns of a mesh of ranks
def hybrid_groups(world_size, shard):
    if world_size % shard != 0:
        raise ValueError("the islands must be of one size")
    mesh = torch.arange(world_size).view(-1, shard)
    return mesh.tolist(), mesh.t().tolist()


@torch.no_grad()
def hybrid_reduce(output, grads, shard_group, replica_group):
    g, r = dist.get_world_size(shard_group), dist.get_world_size(replica_group)
    part = torch.empty_like(output)
    dist.reduce_scatter_tensor(part, grads / (g * r), group=shard_group)
    dist.all_reduce(part, group=replica_group)
    output.copy_(part)


# %% right: lists of places turned round, and an all-to-all inside
def hybrid_groups(world_size, shard):
    replicas, rest = divmod(world_size, shard)
    if rest:
        raise ValueError(f"{rest} ranks are left")
    shards = [[island * shard + place for place in range(shard)] for island in range(replicas)]
    return shards, [list(ranks) for ranks in zip(*shards)]


@torch.no_grad()
def hybrid_reduce(output, grads, shard_group, replica_group):
    g, r = dist.get_world_size(shard_group), dist.get_world_size(replica_group)
    received = torch.empty_like(grads)
    dist.all_to_all_single(received, grads.clone(), group=shard_group)
    mine = received.view(g, -1).double().sum(0).to(output.dtype)
    dist.all_reduce(mine, group=replica_group)
    output.copy_(mine.div_(g * r))
