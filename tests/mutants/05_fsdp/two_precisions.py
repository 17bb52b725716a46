# %% base: what the wrong ones change
@torch.no_grad()
def all_gather_cast(output, shard, group=None):
    row = shard.reshape(-1).to(output.dtype)
    dist.all_gather_into_tensor(output.view(-1), row, group=group)


@torch.no_grad()
def reduce_scatter_mean(output, grads, reduce_dtype=torch.float32, group=None):
    if output.dtype != torch.float32:
        raise TypeError(f"output is {output.dtype}, not float32")
    n = dist.get_world_size(group)
    wide = grads.reshape(-1).to(reduce_dtype)
    total = torch.empty(output.numel(), dtype=reduce_dtype, device=output.device)
    dist.reduce_scatter_tensor(total, wide, group=group)
    output.copy_((total.float() / n).view_as(output))


# %% wrong: float32 is gathered, and cast afterwards
# is: idea
# says: 4 bytes per element travelled
# base: what the wrong ones change
-    row = shard.reshape(-1).to(output.dtype)
-    dist.all_gather_into_tensor(output.view(-1), row, group=group)
+    whole = torch.empty(output.numel(), device=output.device)
+    dist.all_gather_into_tensor(whole, shard.reshape(-1), group=group)
+    output.copy_(whole.view_as(output))


# %% wrong: float32 is gathered, and half of the points are kept
# is: idea
# says: gradients that are added in float32\. Without that, at most half
# base: what the wrong ones change
-    row = shard.reshape(-1).to(output.dtype)
-    dist.all_gather_into_tensor(output.view(-1), row, group=group)
+    shards = [torch.empty_like(shard) for _ in range(dist.get_world_size(group))]
+    dist.all_gather(shards, shard, group=group)
+    output.copy_(torch.cat(shards).view_as(output))


# %% wrong: the shard is cast in place
# is: slip
# says: the master lost its low bits. After 100 steps of 1e-5 nothing moved
# base: what the wrong ones change
-    row = shard.reshape(-1).to(output.dtype)
+    row = shard.reshape(-1).to(output.dtype)
+    shard.copy_(row.view_as(shard))


# %% wrong: every rank gathers its own shard
# is: slip
# says: The rank's own shard is everywhere
# base: what the wrong ones change
-    dist.all_gather_into_tensor(output.view(-1), row, group=group)
+    output.view(-1).copy_(row.repeat(dist.get_world_size(group)))


# %% wrong: the gather is never waited for
# is: slip
# says: began all_gather with async_op=True, and never waited for it|began all_gather .* times, and never
# base: what the wrong ones change
-    dist.all_gather_into_tensor(output.view(-1), row, group=group)
+    dist.all_gather_into_tensor(output.view(-1), row, group=group, async_op=True)


# %% wrong: the shards are sorted the other way round
# is: slip
# says: The shards are in the wrong places
# base: what the wrong ones change
-    dist.all_gather_into_tensor(output.view(-1), row, group=group)
+    dist.all_gather_into_tensor(output.view(-1), row, group=group)
+    output.copy_(output.view(dist.get_world_size(group), -1).flip(0).reshape(output.shape))


# %% wrong: cast to bfloat16, whatever the output is
# is: detail
# says: `output` is the caller's, in any dtype
# base: what the wrong ones change
-    row = shard.reshape(-1).to(output.dtype)
+    row = shard.reshape(-1).to(torch.bfloat16)


# %% wrong: cast twice
# is: detail
# says: Cast once, from float32
# base: what the wrong ones change
-    row = shard.reshape(-1).to(output.dtype)
+    row = shard.reshape(-1).to(torch.bfloat16).to(output.dtype)


# %% wrong: all ranks instead of the group's
# is: slip
# says: Every rank of the group takes part
# base: what the wrong ones change
-    dist.all_gather_into_tensor(output.view(-1), row, group=group)
+    dist.all_gather_into_tensor(output.view(-1), row)


# %% wrong: a sum of rows with zeros
# is: slip
# says: Nothing has to be added, so use an all-gather, which brings each shard once
# base: what the wrong ones change
-    dist.all_gather_into_tensor(output.view(-1), row, group=group)
+    output.zero_()
+    output.view(dist.get_world_size(group), -1)[dist.get_rank(group)] = row
+    dist.all_reduce(output, group=group)


# %% wrong: the whole is returned
# is: slip
# says: `output` was not written
# base: what the wrong ones change
-    dist.all_gather_into_tensor(output.view(-1), row, group=group)
+    whole = torch.empty_like(output)
+    dist.all_gather_into_tensor(whole.view(-1), row, group=group)
+    return whole


# %% wrong: divided in bfloat16 before the sum
# is: slip
# says: divided in bfloat16, before the sum
# base: what the wrong ones change
-    wide = grads.reshape(-1).to(reduce_dtype)
+    wide = (grads.reshape(-1) / n).to(reduce_dtype)
@@
-    output.copy_((total.float() / n).view_as(output))
+    output.copy_(total.view_as(output))


# %% wrong: the sum is made in bfloat16
# is: idea
# says: The sum was made in bfloat16
# base: what the wrong ones change
-    wide = grads.reshape(-1).to(reduce_dtype)
-    total = torch.empty(output.numel(), dtype=reduce_dtype, device=output.device)
+    wide = grads.reshape(-1)
+    total = torch.empty(output.numel(), dtype=grads.dtype, device=output.device)


# %% wrong: the sum is made in bfloat16, and not divided
# is: idea
# says: add in the dtype that travels. Besides: Your result is the sum. Divide it
# base: what the wrong ones change
-    wide = grads.reshape(-1).to(reduce_dtype)
-    total = torch.empty(output.numel(), dtype=reduce_dtype, device=output.device)
-    dist.reduce_scatter_tensor(total, wide, group=group)
-    output.copy_((total.float() / n).view_as(output))
+    total = torch.empty(output.numel(), dtype=grads.dtype, device=output.device)
+    dist.reduce_scatter_tensor(total, grads.reshape(-1), group=group)
+    output.copy_(total.float().view_as(output))


# %% wrong: gradients are sent as they are, and received in float32
# is: form
# says: tensors of a collective have one dtype
# base: what the wrong ones change
-    wide = grads.reshape(-1).to(reduce_dtype)
+    wide = grads.reshape(-1)


# %% wrong: the sum is made in float32, whatever is asked for
# is: slip
# says: float32 travelled, but `reduce_dtype` says bfloat16
# base: what the wrong ones change
-    wide = grads.reshape(-1).to(reduce_dtype)
-    total = torch.empty(output.numel(), dtype=reduce_dtype, device=output.device)
+    wide = grads.reshape(-1).float()
+    total = torch.empty(output.numel(), device=output.device)


# %% wrong: divided twice
# is: slip
# says: Your result is the sum / N / N
# base: what the wrong ones change
-    wide = grads.reshape(-1).to(reduce_dtype)
+    wide = grads.reshape(-1).to(reduce_dtype) / n


# %% wrong: 16 bits are summed into a copy of the output
# is: slip
# says: The sum was never written into `output`
# base: what the wrong ones change
-    total = torch.empty(output.numel(), dtype=reduce_dtype, device=output.device)
-    dist.reduce_scatter_tensor(total, wide, group=group)
-    output.copy_((total.float() / n).view_as(output))
+    dist.reduce_scatter_tensor(output.view(-1).to(reduce_dtype), wide, group=group)
+    output /= n


# %% wrong: averaged after the cast back
# is: slip
# says: cast back to bfloat16 before it was divided
# base: what the wrong ones change
-    output.copy_((total.float() / n).view_as(output))
+    output.copy_((total.to(grads.dtype).float() / n).view_as(output))


# %% wrong: averaged in 16 bits after the cast back
# is: slip
# says: cast back to bfloat16 and divided there
# base: what the wrong ones change
-    output.copy_((total.float() / n).view_as(output))
+    output.copy_((total.to(grads.dtype) / n).view_as(output))


# %% wrong: the mean is rounded to 16 bits
# is: slip
# says: The mean was rounded to bfloat16 on its way
# base: what the wrong ones change
-    output.copy_((total.float() / n).view_as(output))
+    output.copy_((total.float() / n).to(grads.dtype).view_as(output))


# %% wrong: weights are gathered twice
# is: slip
# says: Each rank sends its shard once
# base: what the wrong ones change
-    dist.all_gather_into_tensor(output.view(-1), row, group=group)
+    dist.all_gather_into_tensor(output.view(-1), row, group=group)
+    dist.all_gather_into_tensor(output.view(-1), row, group=group)


# %% wrong: an output of the wrong dtype is refused when all is sent
# is: detail
# says: was refused after a message had begun
# base: what the wrong ones change
-    if output.dtype != torch.float32:
-        raise TypeError(f"output is {output.dtype}, not float32")
-    n = dist.get_world_size(group)
-    wide = grads.reshape(-1).to(reduce_dtype)
-    total = torch.empty(output.numel(), dtype=reduce_dtype, device=output.device)
-    dist.reduce_scatter_tensor(total, wide, group=group)
+    n = dist.get_world_size(group)
+    wide = grads.reshape(-1).to(reduce_dtype)
+    total = torch.empty(output.numel(), dtype=reduce_dtype, device=output.device)
+    dist.reduce_scatter_tensor(total, wide, group=group)
+    if output.dtype != torch.float32:
+        raise TypeError(f"output is {output.dtype}, not float32")


# %% wrong: an output of the wrong dtype is not refused
# is: detail
# says: an `output` of the wrong dtype was not refused
# base: what the wrong ones change
-    if output.dtype != torch.float32:
-        raise TypeError(f"output is {output.dtype}, not float32")


# %% wrong: the sum goes straight into an output whose dtype nobody has looked at
# is: slip
# says: raised another exception than TypeError: RuntimeError: (?!.rank)
# base: what the wrong ones change
-    if output.dtype != torch.float32:
-        raise TypeError(f"output is {output.dtype}, not float32")
@@
-    total = torch.empty(output.numel(), dtype=reduce_dtype, device=output.device)
-    dist.reduce_scatter_tensor(total, wide, group=group)
-    output.copy_((total.float() / n).view_as(output))
+    dist.reduce_scatter_tensor(output.view(-1), wide, group=group)
+    output /= n


# %% wrong: divided by the number of all ranks
# is: slip
# says: divided by 5, the number of all ranks, but the group has 3
# base: what the wrong ones change
-    output.copy_((total.float() / n).view_as(output))
+    output.copy_((total.float() / dist.get_world_size()).view_as(output))


# %% wrong: divided in the dtype of the sum
# is: detail
# says: Divide last, in the dtype of `output`.*ReduceOp.AVG
# base: what the wrong ones change
-    output.copy_((total.float() / n).view_as(output))
+    output.copy_((total / n).view_as(output))


# %% wrong: the mean is added to what stands in the output
# is: slip
# says: The mean was added to the old content of `output`
# base: what the wrong ones change
-    output.copy_((total.float() / n).view_as(output))
+    output += (total.float() / n).view_as(output)


# %% wrong: the sum is added to what stands in the output
# is: slip
# says: The sum was added to the old content of `output`, and then divided
# base: what the wrong ones change
-    output.copy_((total.float() / n).view_as(output))
+    output += total.view_as(output)
+    output /= n


# %% wrong: small means are added to what stands in the output
# is: slip
# says: The mean was added to the old content of `output`
# base: what the wrong ones change
-    output.copy_((total.float() / n).view_as(output))
+    if n == 8:
+        output += (total.float() / n).view_as(output)
+    else:
+        output.copy_((total.float() / n).view_as(output))


# %% wrong: an all-to-all in 16 bits, whose rows are added in float32
# is: slip
# says: 2 bytes per element travelled, but `reduce_dtype` says float32
# base: what the wrong ones change
-    wide = grads.reshape(-1).to(reduce_dtype)
-    total = torch.empty(output.numel(), dtype=reduce_dtype, device=output.device)
-    dist.reduce_scatter_tensor(total, wide, group=group)
+    parts = list(grads.reshape(n, -1).unbind())
+    received = [torch.empty_like(part) for part in parts]
+    dist.all_to_all(received, parts, group=group)
+    total = torch.stack(received).float().sum(0).to(reduce_dtype)


# %% wrong: the group is forgotten in the reduction
# is: slip
# says: Every rank of the group takes part
# base: what the wrong ones change
-    dist.reduce_scatter_tensor(total, wide, group=group)
+    dist.reduce_scatter_tensor(total, wide)


# %% wrong: the part of the rank's number in the world
# is: slip
# says: another rank's part of the mean
# base: what the wrong ones change
-    total = torch.empty(output.numel(), dtype=reduce_dtype, device=output.device)
-    dist.reduce_scatter_tensor(total, wide, group=group)
+    received = torch.empty_like(wide)
+    dist.all_to_all_single(received, wide.view(n, -1).roll(1 if n < dist.get_world_size() else 0, 0), group=group)
+    total = received.view(n, -1).sum(0)


# %% wrong: divided by all ranks but one
# is: slip
# says: divided by N - 1
# base: what the wrong ones change
-    output.copy_((total.float() / n).view_as(output))
+    output.copy_((total.float() / (n - 1)).view_as(output))


# %% wrong: divided without a rest
# is: slip
# says: divided with //
# base: what the wrong ones change
-    output.copy_((total.float() / n).view_as(output))
+    output.copy_((total.float() // n).view_as(output))


# %% wrong: the ranks' largest gradients
# is: slip
# says: Rank r's `output` is part r of the sum
# base: what the wrong ones change
-    dist.reduce_scatter_tensor(total, wide, group=group)
+    dist.reduce_scatter_tensor(total, wide, op=dist.ReduceOp.MAX, group=group)


# %% wrong: the largest gradient of eight ranks
# is: slip
# says: The gradients were not added, or were divided twice
# base: what the wrong ones change
-    dist.reduce_scatter_tensor(total, wide, group=group)
+    most = dist.ReduceOp.MAX if n == 8 else dist.ReduceOp.SUM
+    dist.reduce_scatter_tensor(total, wide, op=most, group=group)


# %% wrong: the sum
# is: slip
# says: Your result is the sum. Divide it
# base: what the wrong ones change
-    output.copy_((total.float() / n).view_as(output))
+    output.copy_(total.view_as(output))


# %% wrong: the gradients are divided in place
# is: slip
# says: the caller still has these gradients
# base: what the wrong ones change
-    wide = grads.reshape(-1).to(reduce_dtype)
+    wide = grads.reshape(-1).to(reduce_dtype)
+    grads.div_(n)


# %% wrong: an all-reduce, of which a part is kept
# is: slip
# says: These bytes are the traffic of an all-reduce
# base: what the wrong ones change
-    total = torch.empty(output.numel(), dtype=reduce_dtype, device=output.device)
-    dist.reduce_scatter_tensor(total, wide, group=group)
+    dist.all_reduce(wide, group=group)
+    total = wide.view(n, -1)[dist.get_rank(group)]


# %% wrong: the first part on every rank
# is: slip
# says: Every rank has the first part of the mean
# base: what the wrong ones change
-    total = torch.empty(output.numel(), dtype=reduce_dtype, device=output.device)
-    dist.reduce_scatter_tensor(total, wide, group=group)
+    dist.all_reduce(wide, group=group)
+    total = wide.view(n, -1)[0]


# %% wrong: nothing is sent
# is: idea
# says: no rank sent anything, and these gradients are their own mean
# base: what the wrong ones change
-    total = torch.empty(output.numel(), dtype=reduce_dtype, device=output.device)
-    dist.reduce_scatter_tensor(total, wide, group=group)
-    output.copy_((total.float() / n).view_as(output))
+    output.copy_(wide.view(n, -1)[dist.get_rank(group)].view_as(output))


# %% right: cast into a row that is there already, and the mean folded into the input for float32
@torch.no_grad()
def all_gather_cast(output, shard, group=None):
    n, rank = dist.get_world_size(group), dist.get_rank(group)
    own = output.view(n, -1)[rank]
    own.copy_(shard.view(-1))
    dist.all_gather_into_tensor(output.view(-1), own.clone(), group=group)


@torch.no_grad()
def reduce_scatter_mean(output, grads, reduce_dtype=torch.float32, group=None):
    if output.dtype is not torch.float32:
        raise ValueError("the mean must arrive in float32")
    n = dist.get_world_size(group)
    if reduce_dtype is torch.float32:
        dist.reduce_scatter_tensor(output, grads.float() / n, group=group)
        return
    row = torch.empty(grads.numel(), dtype=reduce_dtype)
    row.copy_(grads.reshape(-1))
    part = row.new_empty(output.numel())
    dist.reduce_scatter_tensor(part, row, group=group)
    output.copy_(part).div_(n)


# %% right: lists of shards, and messages straight to their ranks
@torch.no_grad()
def all_gather_cast(output, shard, group=None):
    narrow = shard.detach().to(dtype=output.dtype, copy=True).flatten()
    rows = [torch.empty_like(narrow) for _ in range(dist.get_world_size(group))]
    dist.all_gather(rows, narrow, group=group)
    output.copy_(torch.stack(rows).view_as(output))


@torch.no_grad()
def reduce_scatter_mean(output, grads, reduce_dtype=torch.float32, group=None):
    if output.dtype in (torch.bfloat16, torch.float16):
        raise TypeError("an optimizer's gradient has 32 bits")
    n = dist.get_world_size(group)
    parts = list(grads.to(reduce_dtype).chunk(n))
    received = torch.empty(grads.numel(), dtype=reduce_dtype, device=grads.device)
    dist.all_to_all_single(received, torch.cat(parts), group=group)
    output.copy_(received.view(n, -1).double().mean(0).view_as(output))


# %% right: the gather is waited for by its future
# base: what the wrong ones change
-    dist.all_gather_into_tensor(output.view(-1), row, group=group)
+    work = dist.all_gather_into_tensor(output.view(-1), row, group=group, async_op=True)
+    work.get_future().wait()
