# %% base: counts of all ranks
def load_balancing_loss(logits, experts, group=None):
    E, k = logits.shape[1], experts.shape[1]
    counts = experts.flatten().bincount(minlength=E).to(logits.dtype)
    dist.all_reduce(counts, group=group)
    tokens = counts.sum() / k
    f = counts / (k * tokens)
    p = logits.softmax(-1).sum(0) / tokens
    return E * (f * p).sum()


# %% wrong: the rank's own loss
# is: idea
# says: Your loss covers only this rank's tokens
# base: counts of all ranks
-    dist.all_reduce(counts, group=group)


# %% wrong: the rank's own loss, by means
# is: idea
# says: Your loss covers only this rank's tokens
def load_balancing_loss(logits, experts, group=None):
    E = logits.size(1)
    f = torch.nn.functional.one_hot(experts, E).to(logits.dtype).mean((0, 1))
    return E * torch.dot(f, torch.softmax(logits, -1).mean(0))


# %% wrong: f of the rank's own tokens
# is: idea
# says: f was counted only over this rank's tokens
# base: counts of all ranks
-    dist.all_reduce(counts, group=group)
-    tokens = counts.sum() / k
-    f = counts / (k * tokens)
+    f = counts / counts.sum().clamp(min=1)
+    tokens = torch.tensor(float(len(logits)), dtype=logits.dtype)
+    dist.all_reduce(tokens, group=group)


# %% wrong: the mean of the rank's own losses
# is: idea
# says: the mean of the ranks' own losses
# base: counts of all ranks
-    dist.all_reduce(counts, group=group)
-    tokens = counts.sum() / k
+    tokens = max(len(logits), 1)
@@
-    return E * (f * p).sum()
+    loss = E * (f * p).sum()
+    both = loss.detach().clone()
+    dist.all_reduce(both, group=group)
+    return loss + (both / dist.get_world_size(group) - loss.detach())


# %% wrong: p is a mean over the rank's own tokens
# is: slip
# says: p is the mean over this rank's tokens
# base: counts of all ranks
-    p = logits.softmax(-1).sum(0) / tokens
+    p = logits.softmax(-1).sum(0) / max(len(logits), 1)


# %% wrong: the whole loss on every rank
# is: slip
# says: the loss of the whole batch
# base: counts of all ranks
-    return E * (f * p).sum()
+    whole = p.detach().clone()
+    dist.all_reduce(whole, group=group)
+    return E * (f * (p + (whole - p.detach()))).sum()


# %% wrong: the whole loss, divided by the ranks
# is: slip
# says: divided by the number of ranks
# base: counts of all ranks
-    return E * (f * p).sum()
+    whole = p.detach().clone()
+    dist.all_reduce(whole, group=group)
+    n = dist.get_world_size(group)
+    return E * (f * (p + (whole - p.detach()))).sum() / n


# %% wrong: without the factor E
# is: slip
# says: The factor E is missing
# base: counts of all ranks
-    return E * (f * p).sum()
+    return (f * p).sum()


# %% wrong: counts divided by the tokens
# is: slip
# says: The loss is k times too large
# base: counts of all ranks
-    f = counts / (k * tokens)
+    f = counts / tokens


# %% wrong: a sum of probabilities
# is: slip
# says: not divided by the tokens of all ranks
# base: counts of all ranks
-    p = logits.softmax(-1).sum(0) / tokens
+    p = logits.softmax(-1).sum(0)


# %% wrong: f of probabilities
# is: slip
# says: f is made of probabilities
def load_balancing_loss(logits, experts, group=None):
    E = logits.shape[1]
    p = logits.softmax(-1).sum(0)
    sums = torch.cat([p.detach(), torch.tensor([len(logits)]).to(p)])
    dist.all_reduce(sums, group=group)
    return E * (sums[:E] / sums[E] * p / sums[E]).sum()


# %% wrong: f of the rank's own probabilities
# is: idea
# says: made of the probabilities of this rank's tokens
def load_balancing_loss(logits, experts, group=None):
    p = logits.softmax(-1).mean(0)
    return logits.shape[1] * (p * p).sum()


# %% wrong: the largest logits are counted
# is: slip
# says: f counts the largest logits
# base: counts of all ranks
-    counts = experts.flatten().bincount(minlength=E).to(logits.dtype)
+    counts = logits.topk(k, -1).indices.flatten().bincount(minlength=E).to(logits.dtype)


# %% wrong: first choices are counted
# is: slip
# says: f counts the first choice
# base: counts of all ranks
-    counts = experts.flatten().bincount(minlength=E).to(logits.dtype)
+    counts = experts[:, 0].bincount(minlength=E).to(logits.dtype) * k


# %% wrong: logits in place of probabilities
# is: slip
# says: p is made of logits
# base: counts of all ranks
-    p = logits.softmax(-1).sum(0) / tokens
+    p = logits.sum(0) / tokens


# %% wrong: softmax over the tokens
# is: slip
# says: The softmax is over the tokens
# base: counts of all ranks
-    p = logits.softmax(-1).sum(0) / tokens
+    p = logits.softmax(0).sum(0) / tokens


# %% wrong: no gradient
# is: idea
# says: No gradient reaches the logits
# base: counts of all ranks
-    p = logits.softmax(-1).sum(0) / tokens
+    p = logits.detach().softmax(-1).sum(0) / tokens


# %% wrong: all logits to all ranks
# is: slip
# says: no logits or experts have to be sent
# base: counts of all ranks
-    counts = experts.flatten().bincount(minlength=E).to(logits.dtype)
-    dist.all_reduce(counts, group=group)
+    n, rank = dist.get_world_size(group), dist.get_rank(group)
+    most = torch.tensor(len(experts))
+    dist.all_reduce(most, op=dist.ReduceOp.MAX, group=group)
+    hot = torch.zeros(n, int(most), E, dtype=logits.dtype)
+    hot[rank, : len(experts)] = torch.nn.functional.one_hot(experts, E).sum(1).to(hot)
+    dist.all_reduce(hot, group=group)
+    counts = hot.sum((0, 1))


# %% wrong: backward sends the probabilities
# is: slip
# says: the loss of the whole batch
class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        y = x.clone()
        dist.all_reduce(y, group=group)
        return y

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


def load_balancing_loss(logits, experts, group=None):
    E, k = logits.shape[1], experts.shape[1]
    counts = experts.flatten().bincount(minlength=E).to(logits.dtype)
    dist.all_reduce(counts, group=group)
    p = Sum.apply(logits.softmax(-1).sum(0), group)
    return E * (counts * p).sum() * k / counts.sum() ** 2


# %% wrong: the group is forgotten
# is: slip
# says: not in the group .1, 3.
# base: counts of all ranks
-    dist.all_reduce(counts, group=group)
+    dist.all_reduce(counts)


# %% wrong: the mean of no tokens
# is: detail
# says: The mean of no tokens is nan
# base: counts of all ranks
-    p = logits.softmax(-1).sum(0) / tokens
+    p = logits.softmax(-1).mean(0) * len(logits) / tokens


# %% wrong: a rank without tokens takes no part
# is: detail
# says: A rank without tokens takes part as well
# base: counts of all ranks
-    E, k = logits.shape[1], experts.shape[1]
+    if len(logits) == 0:
+        return logits.sum()
+    E, k = logits.shape[1], experts.shape[1]


# %% wrong: counts that end at the largest number
# is: form
# says: bincount without minlength=E
# base: counts of all ranks
-    counts = experts.flatten().bincount(minlength=E).to(logits.dtype)
+    counts = experts.flatten().bincount().to(logits.dtype)


# %% wrong: a number of Python's
# is: form
# says: Return one number, without dimensions
# base: counts of all ranks
-    return E * (f * p).sum()
+    return E * (f * p).sum().item()


# %% wrong: one number per expert
# is: form
# says: Return one number, without dimensions
# base: counts of all ranks
-    return E * (f * p).sum()
+    return E * f * p


# %% wrong: counts averaged over the ranks
# is: slip
# says: as if counts had been averaged over the n ranks
# base: counts of all ranks
-    dist.all_reduce(counts, group=group)
+    dist.all_reduce(counts, group=group)
+    counts = counts / dist.get_world_size(group)


# %% wrong: the mean of the own tokens, divided by the ranks
# is: slip
# says: Ranks have unequally many
# base: counts of all ranks
-    p = logits.softmax(-1).sum(0) / tokens
+    p = logits.softmax(-1).mean(0) / dist.get_world_size(group)


# %% wrong: p divided by the assignments
# is: slip
# says: The share is k times too small
# base: counts of all ranks
-    p = logits.softmax(-1).sum(0) / tokens
+    p = logits.softmax(-1).sum(0) / counts.sum()


# %% wrong: f of probabilities, and tokens of their sum
# is: slip
# says: f is made of probabilities
# base: counts of all ranks
-    counts = experts.flatten().bincount(minlength=E).to(logits.dtype)
+    counts = logits.softmax(-1).sum(0).detach()


# %% wrong: the sign is reversed
# is: slip
# says: more tokens to the popular experts
# base: counts of all ranks
-    return E * (f * p).sum()
+    return -E * (f * p).sum()


# %% wrong: divided by k once more
# is: slip
# says: Nothing else is divided by k
# base: counts of all ranks
-    return E * (f * p).sum()
+    return E / k * (f * p).sum()


# %% right: counts and tokens in one tensor of integers
def load_balancing_loss(logits, experts, group=None):
    T, E = logits.shape
    row = torch.zeros(E + 1, dtype=torch.int64, device=logits.device)
    row[:E].scatter_add_(0, experts.reshape(-1), torch.ones_like(experts.reshape(-1)))
    row[E] = T
    dist.all_reduce(row, group=group)
    f = row[:E] / (row[E] * experts.shape[1])
    soft = torch.softmax(logits, dim=1)
    return (soft @ f.to(soft.dtype)).sum() * E / row[E]


# %% right: all counts on every rank
def load_balancing_loss(logits, experts, group=None):
    E = logits.shape[-1]
    own = torch.nn.functional.one_hot(experts.flatten(), E).sum(0)
    rows = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    dist.all_gather(rows, own, group=group)
    counts = torch.stack(rows).sum(0)
    total = counts.sum().item()
    p = torch.exp(logits - logits.logsumexp(-1, keepdim=True)).sum(0)
    loss = logits.new_zeros(())
    for e in range(E):
        loss = loss + E * counts[e] * p[e] * experts.shape[1] / total**2
    return loss.to(logits.dtype)


# %% right: two messages, of float32
def load_balancing_loss(logits, experts, group=None):
    E, k = logits.shape[1], experts.shape[1]
    counts = torch.stack([(experts == e).sum() for e in range(E)]).float()
    tokens = torch.tensor([float(len(logits))], device=logits.device)
    dist.all_reduce(counts, group=group)
    dist.all_reduce(tokens, group=group)
    factor = (counts / tokens).to(logits.dtype) * (E / k)
    return (logits.softmax(-1) * factor).sum() / tokens[0].to(logits.dtype)
