# %% base: what the wrong ones change
@torch.no_grad()
def topk_all_reduce(tensor, fraction, error, group=None):
    n = dist.get_world_size(group)
    k = max(1, round(fraction * tensor.numel()))
    asked = (tensor + error).flatten()
    indices = asked.abs().topk(k).indices
    values = asked[indices]
    all_indices = torch.empty(n * k, dtype=torch.int32)
    all_values = torch.empty(n * k)
    dist.all_gather_into_tensor(all_indices, indices.int(), group=group)
    dist.all_gather_into_tensor(all_values, values, group=group)
    asked[indices] = 0
    error.copy_(asked.view_as(error))
    mean = torch.zeros_like(asked).index_add_(0, all_indices.long(), all_values) / n
    tensor.copy_(mean.view_as(tensor))


# %% wrong: error feedback is forgotten
# is: idea
# says: Pick from tensor \+ error
# base: what the wrong ones change
-    asked = (tensor + error).flatten()
+    asked = tensor.clone().flatten()


# %% wrong: the error is added twice
# is: slip
# says: added twice
# base: what the wrong ones change
-    asked = (tensor + error).flatten()
+    asked = (tensor + 2 * error).flatten()


# %% wrong: the old error is added to the rest once more
# is: slip
# says: it already includes that
# base: what the wrong ones change
-    error.copy_(asked.view_as(error))
+    error.add_(asked.view_as(error))


# %% wrong: the sum, not the mean
# is: slip
# says: the sum over the
# base: what the wrong ones change
-    mean = torch.zeros_like(asked).index_add_(0, all_indices.long(), all_values) / n
+    mean = torch.zeros_like(asked).index_add_(0, all_indices.long(), all_values)


# %% wrong: the mean over the ranks that sent an element
# is: slip
# says: over the ranks that sent an element
# base: what the wrong ones change
-    mean = torch.zeros_like(asked).index_add_(0, all_indices.long(), all_values) / n
-    tensor.copy_(mean.view_as(tensor))
+    places = all_indices.long()
+    total = torch.zeros_like(asked).index_add_(0, places, all_values)
+    senders = torch.zeros_like(asked).index_add_(0, places, torch.ones_like(all_values))
+    tensor.copy_((total / senders.clamp(min=1)).view_as(tensor))


# %% wrong: an element that two ranks sent is overwritten
# is: slip
# says: one value was overwritten
# base: what the wrong ones change
-    mean = torch.zeros_like(asked).index_add_(0, all_indices.long(), all_values) / n
+    mean = torch.zeros_like(asked)
+    for places, sent in zip(all_indices.view(n, k), all_values.view(n, k), strict=True):
+        mean[places.long()] = sent / n


# %% wrong: a dense all-reduce sold as top-k
# is: idea
# says: An all-reduce carries the zeros
@torch.no_grad()
def topk_all_reduce(tensor, fraction, error, group=None):
    n = dist.get_world_size(group)
    k = max(1, round(fraction * tensor.numel()))
    asked = (tensor + error).flatten()
    indices = asked.abs().topk(k).indices
    values = asked[indices]
    mean = torch.zeros_like(asked)
    mean[indices] = values
    dist.all_reduce(mean, group=group)
    mean /= n
    asked[indices] = 0
    error.copy_(asked.view_as(error))
    tensor.copy_(mean.view_as(tensor))


# %% wrong: indices travel as int64
# is: detail
# says: 4 bytes each are enough
# base: what the wrong ones change
-    all_indices = torch.empty(n * k, dtype=torch.int32)
+    all_indices = torch.empty(n * k, dtype=torch.int64)
@@
-    dist.all_gather_into_tensor(all_indices, indices.int(), group=group)
+    dist.all_gather_into_tensor(all_indices, indices, group=group)


# %% wrong: the others' values at this rank's places
# is: slip
# says: their own indices must also travel
# base: what the wrong ones change
-    dist.all_gather_into_tensor(all_indices, indices.int(), group=group)
+    all_indices = indices.repeat(n)


# %% wrong: largest by value, not by magnitude
# is: slip
# says: Use abs
# base: what the wrong ones change
-    indices = asked.abs().topk(k).indices
+    indices = asked.topk(k).indices


# %% wrong: the error is not written
# is: idea
# says: `error` was left as it was
# base: what the wrong ones change
-    error.copy_(asked.view_as(error))


# %% wrong: what was sent is kept as well
# is: slip
# says: it would be sent again
# base: what the wrong ones change
-    asked[indices] = 0


# %% wrong: the mean is subtracted, not what was sent
# is: slip
# says: The mean was subtracted
# base: what the wrong ones change
-    asked[indices] = 0
-    error.copy_(asked.view_as(error))
     mean = torch.zeros_like(asked).index_add_(0, all_indices.long(), all_values) / n
+    error.copy_((asked - mean).view_as(error))


# %% wrong: the error is thrown away
# is: idea
# says: the part that was not sent is lost
# base: what the wrong ones change
-    error.copy_(asked.view_as(error))
+    error.zero_()


# %% wrong: the error goes in before the call and stays out after
# is: slip
# says: `tensor` was left as it was
# base: what the wrong ones change
-    tensor.copy_(mean.view_as(tensor))
+    return mean.view_as(tensor)


# %% wrong: rounds k down, to nothing for few elements
# is: detail
# says: of each rank|raised|topk|wrong
# base: what the wrong ones change
-    k = max(1, round(fraction * tensor.numel()))
+    k = max(1, round(fraction * tensor.numel()) - 1)


# %% right: lists, and one addition for each rank
def topk_all_reduce(tensor, fraction, error, group=None):
    n = dist.get_world_size(group)
    asked = tensor.detach() + error
    k = max(1, int(fraction * tensor.numel() + 0.5))
    places = torch.argsort(asked.abs().reshape(-1), descending=True)[:k]
    pair = asked.reshape(-1)[places].contiguous(), places.to(torch.int32)
    gathered = [[torch.empty_like(part) for _ in range(n)] for part in pair]
    for parts, part in zip(gathered, pair):
        dist.all_gather(parts, part, group=group)
    result = torch.zeros(tensor.numel(), device=tensor.device)
    for value, place in zip(*gathered):
        result[place.long()] += value / n
    sent = torch.zeros(tensor.numel(), device=tensor.device)
    sent[places] = pair[0]
    tensor.copy_(result.reshape(tensor.shape))
    error.copy_(asked - sent.reshape(tensor.shape))


# %% right: pairs in one message
def topk_all_reduce(tensor, fraction, error, group=None):
    n = dist.get_world_size(group)
    asked = (tensor + error).reshape(-1)
    k = max(1, round(fraction * asked.numel()))
    indices = asked.abs().topk(k).indices
    pairs = torch.stack([indices.int(), asked[indices].view(torch.int32)])
    everything = torch.empty(n, 2, k, dtype=torch.int32, device=tensor.device)
    dist.all_gather_into_tensor(everything.view(-1), pairs.view(-1), group=group)
    mean = torch.zeros_like(asked)
    for place, bits in everything:
        mean.index_add_(0, place.long(), bits.contiguous().view(torch.float32))
    mean /= n
    tensor.copy_(mean.reshape(tensor.shape))
    asked[indices] = 0
    error.copy_(asked.reshape(error.shape))


# %% wrong: k is cut off, not rounded
# is: detail
# says: 7 elements of each rank were sent
def topk_all_reduce(tensor, fraction, error, group=None):
    n = dist.get_world_size(group)
    total = (tensor + error).reshape(-1)
    count = int(fraction * total.numel()) or 1
    _, chosen = torch.topk(total.abs(), count)
    pairs = [torch.empty(count, dtype=torch.int32) for _ in range(n)]
    numbers = [torch.empty(count) for _ in range(n)]
    dist.all_gather(pairs, chosen.to(torch.int32), group=group)
    dist.all_gather(numbers, total[chosen], group=group)
    mean = torch.zeros_like(total)
    for where, what in zip(pairs, numbers):
        mean[where.long()] += what
    total[chosen] = 0
    error.copy_(total.view_as(error))
    tensor.copy_((mean / n).view_as(tensor))


# %% wrong: the largest of the tensor, without the error
# is: slip
# says: pick the largest of tensor \+ error
def topk_all_reduce(tensor, fraction, error, group=None):
    size, n = tensor.numel(), dist.get_world_size(group)
    k = max(1, round(fraction * size))
    index = tensor.flatten().abs().argsort(descending=True)[:k].int()
    asked = tensor.flatten() + error.flatten()
    indices = torch.empty(n * k, dtype=torch.int32)
    values = torch.empty(n * k)
    dist.all_gather_into_tensor(indices, index, group=group)
    dist.all_gather_into_tensor(values, asked[index.long()], group=group)
    result = torch.zeros(size).index_add_(0, indices.flatten().long(), values.flatten())
    asked.index_fill_(0, index.long(), 0.0)
    error.copy_(asked.reshape(error.shape))
    tensor.copy_(result.div(n).reshape(tensor.shape))


# %% wrong: divided by those that sent
# is: slip
# says: over the ranks that sent an element
def topk_all_reduce(tensor, fraction, error, group=None):
    k = max(1, round(fraction * tensor.numel()))
    x = tensor.add(error).ravel()
    top = x.abs().sort(descending=True).indices[:k]
    sums, senders = torch.zeros_like(x), torch.zeros_like(x)
    members = dist.get_world_size(group)
    box = torch.empty(members * k), torch.empty(members * k, dtype=torch.int32)
    for landing, own in zip(box, (x[top], top.int())):
        dist.all_gather_into_tensor(landing, own.contiguous(), group=group)
    for r in range(members):
        here = box[1][r * k : (r + 1) * k].long()
        sums[here] += box[0][r * k : (r + 1) * k]
        senders[here] += 1
    kept = x.clone()
    kept[top] = 0
    error.copy_(kept.view_as(error))
    tensor.copy_((sums / senders.clamp(min=1)).view_as(tensor))


# %% wrong: computed and sent in float64
# is: detail
# says: The values travel as float64
# base: what the wrong ones change
-    asked = (tensor + error).flatten()
+    asked = (tensor.double() + error.double()).flatten()
@@
-    all_values = torch.empty(n * k)
+    all_values = torch.empty(n * k, dtype=torch.float64)


# %% wrong: magnitudes are sent, without their signs
# is: slip
# says: without their signs
# base: what the wrong ones change
-    indices = asked.abs().topk(k).indices
-    values = asked[indices]
+    values, indices = asked.abs().topk(k)


# %% wrong: the rest is 0 wherever any rank sent
# is: slip
# says: Elements that any rank sent are 0 in `error`
# base: what the wrong ones change
-    asked[indices] = 0
+    asked[all_indices.long()] = 0


# %% wrong: k is rounded up
# is: detail
# says: k = max\(1, round\(fraction \* size\)\)
# base: what the wrong ones change
-    k = max(1, round(fraction * tensor.numel()))
+    k = max(1, math.ceil(fraction * tensor.numel()))
