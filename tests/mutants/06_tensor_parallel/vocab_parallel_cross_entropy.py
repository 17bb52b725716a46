# %% base: what the wrong ones change
class CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, target, counts, start, group):
        wide = logits.float()
        largest = wide.amax(-1)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
        here = counts & (target >= start) & (target < start + wide.shape[-1])
        at = (target - start).masked_fill(~here, 0)
        total = (wide - largest[..., None]).exp().sum(-1)
        dist.all_reduce(total, group=group)
        of_target = wide.gather(-1, at[..., None])[..., 0].masked_fill(~here, 0)
        dist.all_reduce(of_target, group=group)
        lse = total.log() + largest
        ctx.save_for_backward(logits, lse, at, here)
        return lse - of_target

    @staticmethod
    def backward(ctx, grad):
        logits, lse, at, here = ctx.saved_tensors
        soft = (logits.float() - lse[..., None]).exp()
        soft.scatter_add_(-1, at[..., None], -here[..., None].to(soft.dtype))
        return (soft * grad[..., None]).to(logits.dtype), None, None, None, None


def vocab_parallel_cross_entropy(logits, target, group=None, *, vocab_size=None, ignore_index=-100):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    start = int(torch.arange(vocab_size).tensor_split(n)[rank][0])
    counts = target != ignore_index
    each = CrossEntropy.apply(logits, target, counts, start, group)
    return each[counts].sum() / counts.sum()


# %% wrong: the softmax over the rank's own logits
# is: idea
# says: softmax is only over the rank's own logits
# base: what the wrong ones change
-        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
@@
-        dist.all_reduce(total, group=group)


# %% wrong: each rank takes off its own largest logit
# is: slip
# says: Agree on the largest first
# base: what the wrong ones change
-        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)


# %% wrong: exponentials of 1,000
# is: detail
# says: exp\(1,000\) is infinite, and exp\(-1,000\)
# base: what the wrong ones change
-        largest = wide.amax(-1)
-        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
+        largest = wide.new_zeros(target.shape)


# %% wrong: the target's logit from every rank
# is: slip
# says: taken on ranks that do not have it
# base: what the wrong ones change
-        of_target = wide.gather(-1, at[..., None])[..., 0].masked_fill(~here, 0)
+        of_target = wide.gather(-1, at[..., None])[..., 0]


# %% wrong: the target's logit, less the largest, from every rank
# is: slip
# says: taken on ranks that do not have it
# base: what the wrong ones change
-        of_target = wide.gather(-1, at[..., None])[..., 0].masked_fill(~here, 0)
+        of_target = wide.gather(-1, at[..., None])[..., 0] - largest
@@
-        return lse - of_target
+        return total.log() - of_target


# %% wrong: the target's place modulo the part
# is: slip
# says: taken on ranks that do not have it
# base: what the wrong ones change
-        at = (target - start).masked_fill(~here, 0)
+        at = target % wide.shape[-1]
@@
-        of_target = wide.gather(-1, at[..., None])[..., 0].masked_fill(~here, 0)
+        of_target = wide.gather(-1, at[..., None])[..., 0]


# %% wrong: the target's logit is not summed
# is: slip
# says: went on with 0
# base: what the wrong ones change
-        dist.all_reduce(of_target, group=group)


# %% wrong: the largest logit is not put back
# is: slip
# says: not put back
# base: what the wrong ones change
-        return lse - of_target
+        return total.log() - of_target


# %% wrong: the largest logit is put back where it had cancelled
# is: slip
# says: so it has cancelled already
# base: what the wrong ones change
-        return lse - of_target
+        return lse - (of_target - largest)


# %% wrong: ignored targets in the mean
# is: detail
# says: Ignored targets were counted
# base: what the wrong ones change
-    return each[counts].sum() / counts.sum()
+    return each[counts].sum() / target.numel()


# %% wrong: ignored targets in the sum
# is: detail
# says: Ignored targets were counted
# base: what the wrong ones change
-    return each[counts].sum() / counts.sum()
+    return each.mean()


# %% wrong: ignored targets leave a gradient
# is: detail
# says: Ignored targets have a gradient here
# base: what the wrong ones change
-        return lse - of_target
+        ctx.count = counts.sum()
+        return (lse - of_target)[counts].sum() / ctx.count
@@
-        return (soft * grad[..., None]).to(logits.dtype), None, None, None, None
+        return (soft * grad / ctx.count).to(logits.dtype), None, None, None, None
@@
-    each = CrossEntropy.apply(logits, target, counts, start, group)
-    return each[counts].sum() / counts.sum()
+    return CrossEntropy.apply(logits, target, counts, start, group)


# %% wrong: ignored targets as indices
# is: detail
# says: is not an index into the logits here
# base: what the wrong ones change
-        at = (target - start).masked_fill(~here, 0)
+        at = (target - start).masked_fill(counts & ~here, 0)


# %% wrong: the sum over the targets
# is: slip
# says: Return their mean
# base: what the wrong ones change
-    return each[counts].sum() / counts.sum()
+    return each[counts].sum()


# %% wrong: one taken off on every rank
# is: slip
# says: Every rank took 1 off
# base: what the wrong ones change
-        soft.scatter_add_(-1, at[..., None], -here[..., None].to(soft.dtype))
+        soft.scatter_add_(-1, at[..., None], -torch.ones_like(soft[..., :1]))


# %% wrong: the incoming gradient is left out
# is: slip
# says: Multiply by it
# base: what the wrong ones change
-        return (soft * grad[..., None]).to(logits.dtype), None, None, None, None
+        return (soft * (here.new_ones(()) / here.numel())).to(logits.dtype), None, None, None, None


# %% wrong: gradients summed over the ranks
# is: slip
# says: sum these copies again
# base: what the wrong ones change
     def forward(ctx, logits, target, counts, start, group):
+        ctx.group = group
@@
         soft.scatter_add_(-1, at[..., None], -here[..., None].to(soft.dtype))
+        grad = grad.contiguous()
+        dist.all_reduce(grad, group=ctx.group)


# %% wrong: without one taken off at the target
# is: slip
# says: without 1 taken off
# base: what the wrong ones change
-        soft.scatter_add_(-1, at[..., None], -here[..., None].to(soft.dtype))


# %% wrong: the first token of parts that are rounded down
# is: detail
# says: first token is counted wrong
# base: what the wrong ones change
-    start = int(torch.arange(vocab_size).tensor_split(n)[rank][0])
+    start = rank * (vocab_size // n)


# %% wrong: gathers the logits
# is: idea
# says: three numbers per token are enough|logits of the whole vocabulary
class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, vocab_size, group):
        n, rank = dist.get_world_size(group), dist.get_rank(group)
        ctx.sizes = [len(one) for one in torch.arange(vocab_size).tensor_split(n)]
        ctx.rank = rank
        padded = torch.zeros(*logits.shape[:-1], max(ctx.sizes), dtype=logits.dtype)
        padded[..., : logits.shape[-1]] = logits
        parts = [torch.empty_like(padded) for _ in range(n)]
        dist.all_gather(parts, padded, group=group)
        return torch.cat([one[..., :size] for one, size in zip(parts, ctx.sizes)], -1)

    @staticmethod
    def backward(ctx, grad):
        return grad.split(ctx.sizes, -1)[ctx.rank].contiguous(), None, None


def vocab_parallel_cross_entropy(logits, target, group=None, *, vocab_size=None, ignore_index=-100):
    whole = Gather.apply(logits, vocab_size, group).float()
    return torch.nn.functional.cross_entropy(
        whole.flatten(0, -2), target.flatten(), ignore_index=ignore_index
    )


# %% wrong: writes into the logits
# is: slip
# says: `logits` was changed
# base: what the wrong ones change
-        wide = logits.float()
+        wide = logits.detach().float()
@@
-        total = (wide - largest[..., None]).exp().sum(-1)
+        total = wide.sub_(largest[..., None]).exp().sum(-1)
@@
-        ctx.save_for_backward(logits, lse, at, here)
-        return lse - of_target
+        ctx.save_for_backward(logits, total.log(), at, here)
+        return total.log() - of_target


# %% wrong: a gradient through the largest logit
# is: slip
# says: A gradient went back through the largest logit
# base: composed of autograd's own operations
+    largest = logits.max(-1, keepdim=True).values
     with torch.no_grad():
-        largest = logits.max(-1, keepdim=True).values
-        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
-    shifted = logits - largest
+        total = largest.clone()
+        dist.all_reduce(total, op=dist.ReduceOp.MAX, group=group)
+    shifted = logits - (largest + (total - largest).detach())


# %% wrong: the largest of all ranks is written into a tensor with a graph
# is: slip
# says: Take logits.detach\(\) before the maximum
# base: composed of autograd's own operations
-    with torch.no_grad():
-        largest = logits.max(-1, keepdim=True).values
-        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
-    shifted = logits - largest
+    largest = logits.amax(-1)
+    dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
+    shifted = logits - largest[..., None]


# %% wrong: the mask of the targets is turned around
# is: slip
# says: Turn the mask around
# base: composed of autograd's own operations
-    own = torch.where(here, shifted.gather(-1, index.unsqueeze(-1)).squeeze(-1), 0.0)
+    own = torch.where(~here, shifted.gather(-1, index.unsqueeze(-1)).squeeze(-1), 0.0)


# %% wrong: the loss is divided by the ranks
# is: slip
# says: the loss divided by 4 ranks
# base: composed of autograd's own operations
-    return loss.masked_fill(target == ignore_index, 0).sum() / (target != ignore_index).sum()
+    return loss.masked_fill(target == ignore_index, 0).sum() / (target != ignore_index).sum() / n


# %% wrong: each target's softmax over the logits of its rank
# is: idea
# says: softmax is only over the rank's own logits
class Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx, grad):
        return grad, None


def vocab_parallel_cross_entropy(logits, target, group=None, *, vocab_size=None, ignore_index=-100):
    first = sum(
        len(one)
        for one in torch.arange(vocab_size).tensor_split(dist.get_world_size(group))[
            : dist.get_rank(group)
        ]
    )
    place = target - first
    elsewhere = (place < 0) | (place >= logits.shape[-1]) | (target == ignore_index)
    logs = torch.log_softmax(logits.float(), dim=-1)
    found = torch.gather(logs, -1, place.masked_fill(elsewhere, 0)[..., None]).squeeze(-1)
    return (
        -Total.apply(found.masked_fill(elsewhere, 0), group).sum() / target.ne(ignore_index).sum()
    )


# %% wrong: the first token counted by the rank's own logits
# is: slip
# says: first token is counted wrong
# base: composed of autograd's own operations
-    rank, n = dist.get_rank(group), dist.get_world_size(group)
-    each, longer = divmod(vocab_size, n)
-    start = rank * each + min(rank, longer)
     logits = logits.float()
+    start = dist.get_rank(group) * logits.shape[-1]
     with torch.no_grad():


# %% wrong: ignore_index is not looked at
# is: detail
# says: Ignored targets were counted
# base: composed of autograd's own operations
-    here = (target >= start) & (target < start + logits.shape[-1]) & (target != ignore_index)
+    here = (target >= start) & (target < start + logits.shape[-1])
@@
-    return loss.masked_fill(target == ignore_index, 0).sum() / (target != ignore_index).sum()
+    return loss.mean()


# %% wrong: the sum is begun on a tensor with a graph
# is: form
# says: warned, because a collective has no backward
def vocab_parallel_cross_entropy(logits, target, group=None, *, vocab_size=None, ignore_index=-100):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    each, longer = divmod(vocab_size, n)
    start = rank * each + min(rank, longer)
    logits = logits.float()
    with torch.no_grad():
        largest = logits.max(-1, keepdim=True).values
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
    shifted = logits - largest
    here = (target >= start) & (target < start + logits.shape[-1]) & (target != ignore_index)
    index = torch.where(here, target - start, 0)
    own = torch.where(here, shifted.gather(-1, index.unsqueeze(-1)).squeeze(-1), 0.0)
    numbers = torch.stack([shifted.exp().sum(-1), own])
    dist.all_reduce(numbers, group=group)
    loss = numbers[0].log() - numbers[1]
    return loss.masked_fill(target == ignore_index, 0).sum() / (target != ignore_index).sum()


# %% right: composed of autograd's own operations
class Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx, grad):
        return grad, None


def vocab_parallel_cross_entropy(logits, target, group=None, *, vocab_size=None, ignore_index=-100):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    each, longer = divmod(vocab_size, n)
    start = rank * each + min(rank, longer)
    logits = logits.float()
    with torch.no_grad():
        largest = logits.max(-1, keepdim=True).values
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
    shifted = logits - largest
    here = (target >= start) & (target < start + logits.shape[-1]) & (target != ignore_index)
    index = torch.where(here, target - start, 0)
    own = torch.where(here, shifted.gather(-1, index.unsqueeze(-1)).squeeze(-1), 0.0)
    numbers = Total.apply(torch.stack([shifted.exp().sum(-1), own]), group)
    loss = numbers[0].log() - numbers[1]
    return loss.masked_fill(target == ignore_index, 0).sum() / (target != ignore_index).sum()


# %% wrong: autograd keeps a row of zeros and ones for each target
# is: detail
# says: Forward keeps several tensors as large
# base: composed of autograd's own operations
-    own = torch.where(here, shifted.gather(-1, index.unsqueeze(-1)).squeeze(-1), 0.0)
+    one = torch.nn.functional.one_hot(index, logits.shape[-1]) * here[..., None]
+    own = (shifted * one).sum(-1)


# %% right: each rank's logsumexp gathered
class Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, target, start, ignore_index, group):
        rows, goals = logits.float().flatten(0, -2), target.flatten()
        own = rows.logsumexp(-1)
        parts = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, own, group=group)
        lse = torch.stack(parts).logsumexp(0)
        kept = goals != ignore_index
        here = kept & (goals >= start) & (goals < start + rows.shape[1])
        which = here.nonzero()[:, 0]
        logit = torch.zeros_like(lse)
        logit[which] = rows[which, goals[which] - start]
        dist.all_reduce(logit, group=group)
        ctx.save_for_backward(logits, lse, goals, kept, which)
        ctx.start = start
        return ((lse - logit) * kept).sum() / kept.sum()

    @staticmethod
    def backward(ctx, grad):
        logits, lse, goals, kept, which = ctx.saved_tensors
        soft = (logits.float().flatten(0, -2) - lse[:, None]).exp()
        soft[which, goals[which] - ctx.start] -= 1
        soft *= (grad * kept / kept.sum())[:, None]
        return soft.to(logits.dtype).view_as(logits), None, None, None, None


def vocab_parallel_cross_entropy(logits, target, group=None, *, vocab_size=None, ignore_index=-100):
    parts = torch.arange(vocab_size).tensor_split(dist.get_world_size(group))
    start = int(parts[dist.get_rank(group)][0])
    return Loss.apply(logits, target, start, ignore_index, group)


# %% wrong: the probabilities of the whole vocabulary lie on ctx, where PyTorch does not see them
# is: idea
# says: backward needs only its own part
class Everywhere(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, target, ignore_index, group, vocab_size):
        n, me = dist.get_world_size(group), dist.get_rank(group)
        sizes = [len(chunk) for chunk in torch.arange(vocab_size).tensor_split(n)]
        mine = torch.nn.functional.pad(logits.flatten(0, -2), (0, sizes[0] - sizes[me]))
        parts = [torch.empty_like(mine) for _ in sizes]
        dist.all_gather(parts, mine, group=group)
        lines = torch.cat([part[:, :size] for part, size in zip(parts, sizes)], 1).double()
        wanted = target.flatten()
        keep = (wanted != ignore_index).double() / (wanted != ignore_index).sum()
        at = wanted.clamp(min=0)[:, None]
        ctx.whole = (lines.softmax(1).scatter_add(1, at, -torch.ones_like(at).double())) * keep[
            :, None
        ]
        ctx.columns, ctx.like = slice(sum(sizes[:me]), sum(sizes[: me + 1])), logits
        return -(lines.log_softmax(1).gather(1, at)[:, 0] * keep).sum().to(logits.dtype)

    @staticmethod
    def backward(ctx, grad):
        found = ctx.whole[:, ctx.columns] * grad
        return found.to(ctx.like.dtype).view_as(ctx.like), None, None, None, None


def vocab_parallel_cross_entropy(logits, target, group=None, *, vocab_size=None, ignore_index=-100):
    return Everywhere.apply(logits, target, ignore_index, group, vocab_size)
