# %% wrong: exchanges without a backward
# is: slip
# says: an all-to-all has no backward of its own
# base: rows sorted by expert
-    return Exchange.apply(rows, send, receive, group)
+    return all_to_all(rows.detach(), send, receive, group)


# %% wrong: only the way back has no backward
# is: slip
# says: Both exchanges of rows need one
# base: rows sorted by expert
-    out = exchange(out[sort.argsort()], receive, send, group)
+    out = all_to_all(out[sort.argsort()].detach(), receive, send, group)


# %% wrong: the reply has the splits of the way there
# is: form
# says: Input splits say how many rows go to each rank
# base: rows sorted by expert
-    out = exchange(out[sort.argsort()], receive, send, group)
+    out = exchange(out[sort.argsort()], send, receive, group)


# %% wrong: backward with forward's splits
# is: slip
# says: In backward the two lists change places
# base: rows sorted by expert
-        ctx.back = receive, send, group
+        ctx.back = send, receive, group


# %% wrong: results return in the order of the experts
# is: slip
# says: bring the results back into that order before they return
# base: rows sorted by expert
-    out = exchange(out[sort.argsort()], receive, send, group)
+    out = exchange(out, receive, send, group)


# %% wrong: rows are not sorted where they arrive
# is: slip
# says: sort all of them by expert before you cut them
# base: rows sorted by expert
-    parts = rows[sort].split(arriving.view(n, held).sum(0).tolist())
+    parts = rows.split(arriving.view(n, held).sum(0).tolist())
@@
-    out = exchange(out[sort.argsort()], receive, send, group)
+    out = exchange(out, receive, send, group)


# %% wrong: results are sorted once more
# is: slip
# says: The results were sorted once more
# base: rows sorted by expert
-    out = exchange(out[sort.argsort()], receive, send, group)
+    out = exchange(out[sort], receive, send, group)


# %% wrong: rows are not sorted, and results are sorted back
# is: slip
# says: sort all of them by expert before you cut them
# base: rows sorted by expert
-    parts = rows[sort].split(arriving.view(n, held).sum(0).tolist())
+    parts = rows.split(arriving.view(n, held).sum(0).tolist())


# %% wrong: rows are sent in the order of the tokens
# is: idea
# says: Rows went to the ranks of other rows
# base: rows sorted by expert
-    order = flat.argsort(stable=True)
+    order = torch.arange(len(flat))


# %% wrong: results are added as if tokens had kept their order
# is: slip
# says: add each to the token from which its row was taken
# base: rows sorted by expert
-    weighted = weights.flatten()[order, None] * out
-    return torch.zeros_like(x).index_add(0, token, weighted)
+    weighted = weights.flatten()[:, None] * out
+    return weighted.view(*experts.shape, -1).sum(1)


# %% wrong: weights keep their order
# is: slip
# says: bring the weights into that order as well
# base: rows sorted by expert
-    weighted = weights.flatten()[order, None] * out
+    weighted = weights.flatten()[:, None] * out


# %% wrong: no weights
# is: slip
# says: added without their weights
# base: rows sorted by expert
-    weighted = weights.flatten()[order, None] * out
+    weighted = out


# %% wrong: rows are weighted before the expert
# is: slip
# says: An expert is not linear
# base: rows sorted by expert
-    rows = exchange(x[token], send, receive, group)
+    rows = exchange(x[token] * weights.flatten()[order, None], send, receive, group)
@@
-    weighted = weights.flatten()[order, None] * out
-    return torch.zeros_like(x).index_add(0, token, weighted)
+    return torch.zeros_like(x).index_add(0, token, out)


# %% wrong: one of k results is left
# is: slip
# says: add with index_add
# base: rows sorted by expert
-    order = flat.argsort(stable=True)
-    token = order // experts.shape[1]
+    choice = torch.arange(len(flat), device=x.device) % experts.shape[1]
+    order = flat.argsort(stable=True)
+    token = order // experts.shape[1]
+    last = (choice == experts.shape[1] - 1)[order, None]
@@
-    return torch.zeros_like(x).index_add(0, token, weighted)
+    return torch.zeros_like(x).index_add(0, token, weighted * last)


# %% wrong: every n-th expert
# is: idea
# says: experts, from r E / n on
# base: rows sorted by expert
-    flat = experts.flatten()
+    flat = experts.flatten() % dist.get_world_size(group) * len(w1)
+    flat = flat + experts.flatten() // dist.get_world_size(group)


# %% wrong: own experts alone
# is: idea
# says: A token has only the results of its own rank's experts
def expert_parallel_moe(x, experts, weights, w1, w3, w2, group=None):
    first = dist.get_rank(group) * len(w1)
    y = x * 0
    for e in range(len(w1)):
        chosen = (experts == first + e) * weights
        out = torch.nn.functional.silu(x @ w1[e].T) * (x @ w3[e].T) @ w2[e].T
        y = y + chosen.sum(1, keepdim=True) * out
    return y


# %% wrong: all tokens to all ranks
# is: idea
# says: Every rank got every token
class Everywhere(torch.autograd.Function):
    """All ranks' rows, padded to the longest; backward, the sum of all ranks' gradients."""

    @staticmethod
    def forward(ctx, rows, longest, group):
        ctx.rest = len(rows), group
        padded = rows.new_zeros(longest, rows.shape[1])
        padded[: len(rows)] = rows
        whole = [torch.empty_like(padded) for _ in range(dist.get_world_size(group))]
        dist.all_gather(whole, padded, group=group)
        return torch.stack(whole)

    @staticmethod
    def backward(ctx, grad):
        size, group = ctx.rest
        grad = grad.clone()
        dist.all_reduce(grad, group=group)
        return grad[dist.get_rank(group), :size], None, None


class Summed(torch.autograd.Function):
    """The sum of all ranks' rows, of which a rank takes its own; backward, all ranks' gradients."""

    @staticmethod
    def forward(ctx, rows, size, group):
        ctx.rest = len(rows), rows.shape[1], group
        rows = rows.clone()
        dist.all_reduce(rows, group=group)
        return rows[dist.get_rank(group), :size]

    @staticmethod
    def backward(ctx, grad):
        n, longest, group = ctx.rest
        padded = grad.new_zeros(longest, grad.shape[1])
        padded[: len(grad)] = grad
        whole = [torch.empty_like(padded) for _ in range(n)]
        dist.all_gather(whole, padded, group=group)
        return torch.stack(whole), None, None


def expert_parallel_moe(x, experts, weights, w1, w3, w2, group=None):
    longest = torch.tensor([len(x)], device=x.device)
    dist.all_reduce(longest, op=dist.ReduceOp.MAX, group=group)
    everything = Everywhere.apply(x, int(longest), group)
    all_experts = Everywhere.apply((experts + 1).to(x.dtype), int(longest), group).detach()
    all_weights = Everywhere.apply(weights, int(longest), group)
    y = everything * 0
    for e in range(len(w1)):
        number = dist.get_rank(group) * len(w1) + e + 1
        chosen = ((all_experts == number) * all_weights).sum(-1, keepdim=True)
        out = torch.nn.functional.silu(everything @ w1[e].T) * (everything @ w3[e].T) @ w2[e].T
        y = y + chosen * out
    return Summed.apply(y, len(x), group)


# %% wrong: all matrices to all ranks
# is: idea
# says: They stay where they are, and the tokens come to them
class Everyone(torch.autograd.Function):
    """All ranks' matrices; backward, the sum of all ranks' gradients, of which a rank takes its own."""

    @staticmethod
    def forward(ctx, own, group):
        ctx.group = group
        parts = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, own.contiguous(), group=group)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad.chunk(dist.get_world_size(ctx.group))[dist.get_rank(ctx.group)], None


def expert_parallel_moe(x, experts, weights, w1, w3, w2, group=None):
    w1, w3, w2 = (Everyone.apply(w, group) for w in (w1, w3, w2))
    y = x * 0
    for e in range(len(w1)):
        chosen = ((experts == e) * weights).sum(1, keepdim=True)
        y = y + chosen * (torch.nn.functional.silu(x @ w1[e].T) * (x @ w3[e].T) @ w2[e].T)
    return y


# %% wrong: parts padded to the largest
# is: slip
# says: without padding
# base: rows sorted by expert
-    came = rows.new_empty(sum(receive), *rows.shape[1:])
-    dist.all_to_all_single(came, rows.contiguous(), receive, send, group=group)
-    return came
+    most = torch.tensor([max(send)], device=rows.device)
+    dist.all_reduce(most, op=dist.ReduceOp.MAX, group=group)
+    padded = rows.new_zeros(len(send), int(most), *rows.shape[1:])
+    for place, part in zip(padded, rows.split(send)):
+        place[: len(part)] = part
+    came = torch.empty_like(padded)
+    dist.all_to_all_single(came, padded, group=group)
+    return torch.cat([part[:size] for part, size in zip(came, receive)])


# %% wrong: the experts' gradients are summed over the ranks
# is: slip
# says: summed over the ranks once more
# base: rows sorted by expert
-    n, held = dist.get_world_size(group), len(w1)
+    n, held = dist.get_world_size(group), len(w1)
+
+    def summed(grad):
+        grad = grad.clone()
+        dist.all_reduce(grad, group=group)
+        return grad
+
+    for w in (w1, w3, w2):
+        w.register_hook(summed)


# %% wrong: gradients as a mean
# is: slip
# says: so divide it by nothing
# base: rows sorted by expert
-    n, held = dist.get_world_size(group), len(w1)
+    n, held = dist.get_world_size(group), len(w1)
+    for w in (w1, w3, w2):
+        w.register_hook(lambda grad: grad / n)


# %% wrong: a rank without tokens returns early
# is: slip
# says: A rank without tokens also holds experts, and
# base: rows sorted by expert
-    n, held = dist.get_world_size(group), len(w1)
+    if len(x) == 0:
+        return x * 0
+    n, held = dist.get_world_size(group), len(w1)


# %% wrong: results of idle experts have no graph
# is: slip
# says: A rank whose experts get no rows takes part in backward
# base: rows sorted by expert
-    out = torch.cat([through(part, w1[e], w3[e], w2[e]) for e, part in enumerate(parts)])
+    out = [through(part, w1[e], w3[e], w2[e]) for e, part in enumerate(parts) if len(part)]
+    out = torch.cat(out) if out else x.new_zeros(0, x.shape[1])


# %% wrong: all ranks, whatever the group
# is: slip
# says: Do you pass the group everywhere
# base: rows sorted by expert
-    dist.all_to_all_single(came, rows.contiguous(), receive, send, group=group)
+    dist.all_to_all_single(came, rows.contiguous(), receive, send)


# %% wrong: the size of the world in place of the group's
# is: slip
# says: Do you pass the group everywhere
# base: rows sorted by expert
-    n, held = dist.get_world_size(group), len(w1)
+    n, held = dist.get_world_size(), len(w1)


# %% wrong: experts counted over all ranks
# is: form
# says: Experts are counted over all ranks
# base: rows sorted by expert
-    out = torch.cat([through(part, w1[e], w3[e], w2[e]) for e, part in enumerate(parts)])
+    first = dist.get_rank(group) * held
+    parts = list(enumerate(parts, start=first))
+    out = torch.cat([through(part, w1[e], w3[e], w2[e]) for e, part in parts])


# %% wrong: weights without their gradient
# is: slip
# says: Backward did not reach the weights
# base: rows sorted by expert
-    weighted = weights.flatten()[order, None] * out
+    weighted = weights.detach().flatten()[order, None] * out


# %% wrong: only the result, and not each row's, in another shape
# is: form
# says: one row for each token
# base: rows sorted by expert
-    return torch.zeros_like(x).index_add(0, token, weighted)
+    return weighted


# %% wrong: nothing is returned
# is: form
# says: Is there a `return`
# base: rows sorted by expert
-    return torch.zeros_like(x).index_add(0, token, weighted)
+    torch.zeros_like(x).index_add(0, token, weighted)


# %% wrong: ours by reference
# is: form
# says: write your own
from course_lib.experts.parallel import expert_parallel_moe


# %% wrong: counts of the own experts alone
# is: form
# says: Each rank has a count for every one of the E experts
# base: rows sorted by expert
-    counts = flat.bincount(minlength=n * held)
+    counts = flat.bincount(minlength=held)


# %% wrong: counts in float
# is: form
# says: Sizes are whole numbers
# base: rows sorted by expert
-def exchange(rows, send, receive, group):
-    return Exchange.apply(rows, send, receive, group)
+from course_lib.experts import exchange
@@
-    counts = flat.bincount(minlength=n * held)
+    counts = flat.bincount(minlength=n * held).double()


# %% wrong: the reply has the splits of the way there, with the library's exchange
# is: form
# says: on the way back receive\[i\] results do
# base: rows sorted by expert
-def exchange(rows, send, receive, group):
-    return Exchange.apply(rows, send, receive, group)
+from course_lib.experts import exchange
@@
-    out = exchange(out[sort.argsort()], receive, send, group)
+    out = exchange(out[sort.argsort()], send, receive, group)


# %% wrong: empty parts are left out
# is: slip
# says: Let an empty part go through its expert
# base: rows sorted by expert
-    out = torch.cat([through(part, w1[e], w3[e], w2[e]) for e, part in enumerate(parts)])
+    out = torch.cat([through(part, w1[e], w3[e], w2[e]) for e, part in enumerate(parts) if len(part)])


# %% wrong: written in place of added
# is: slip
# says: add with index_add
# base: rows sorted by expert
-    return torch.zeros_like(x).index_add(0, token, weighted)
+    y = torch.zeros_like(x)
+    y[token] = weighted
+    return y


# %% wrong: the residual is added
# is: slip
# says: x was added to the result
# base: rows sorted by expert
-    return torch.zeros_like(x).index_add(0, token, weighted)
+    return x.index_add(0, token, weighted)


# %% wrong: divided by the ranks
# is: slip
# says: The result was divided by the number of ranks
# base: rows sorted by expert
-    return torch.zeros_like(x).index_add(0, token, weighted)
+    return torch.zeros_like(x).index_add(0, token, weighted) / n


# %% wrong: rows are detached
# is: slip
# says: rows were detached
# base: rows sorted by expert
-    rows = exchange(x[token], send, receive, group)
+    rows = exchange(x[token].detach(), send, receive, group)


# %% right: rows sorted by expert
def all_to_all(rows, send, receive, group):
    came = rows.new_empty(sum(receive), *rows.shape[1:])
    dist.all_to_all_single(came, rows.contiguous(), receive, send, group=group)
    return came


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, send, receive, group):
        ctx.back = receive, send, group
        return all_to_all(rows, send, receive, group)

    @staticmethod
    def backward(ctx, grad):
        return all_to_all(grad, *ctx.back), None, None, None


def exchange(rows, send, receive, group):
    return Exchange.apply(rows, send, receive, group)


def through(rows, w1, w3, w2):
    return (torch.nn.functional.silu(rows @ w1.T) * (rows @ w3.T)) @ w2.T


def expert_parallel_moe(x, experts, weights, w1, w3, w2, group=None):
    n, held = dist.get_world_size(group), len(w1)
    flat = experts.flatten()
    order = flat.argsort(stable=True)
    token = order // experts.shape[1]
    counts = flat.bincount(minlength=n * held)
    arriving = torch.empty_like(counts)
    dist.all_to_all_single(arriving, counts, group=group)
    send, receive = (rows.view(n, held).sum(1).tolist() for rows in (counts, arriving))

    rows = exchange(x[token], send, receive, group)
    expert = torch.arange(held, device=x.device).repeat(n).repeat_interleave(arriving)
    sort = expert.argsort(stable=True)
    parts = rows[sort].split(arriving.view(n, held).sum(0).tolist())
    out = torch.cat([through(part, w1[e], w3[e], w2[e]) for e, part in enumerate(parts)])
    out = exchange(out[sort.argsort()], receive, send, group)

    weighted = weights.flatten()[order, None] * out
    return torch.zeros_like(x).index_add(0, token, weighted)


# %% right: counts by an all-gather, the library's exchange, and a loop over parts
from course_lib.experts.all_to_all import exchange


def expert_parallel_moe(x, experts, weights, w1, w3, w2, group=None):
    n, rank, held = dist.get_world_size(group), dist.get_rank(group), len(w1)
    mine = experts.flatten().bincount(minlength=n * held)
    counts = [torch.empty_like(mine) for _ in range(n)]
    dist.all_gather(counts, mine, group=group)
    counts = [row.tolist() for row in counts]

    def between(a, b):
        return sum(counts[a][held * b : held * (b + 1)])

    send = [between(rank, other) for other in range(n)]
    receive = [between(other, rank) for other in range(n)]
    pairs = sorted((e, t, c) for t, row in enumerate(experts.tolist()) for c, e in enumerate(row))
    token = torch.tensor([t for _, t, _ in pairs], dtype=torch.int64, device=x.device)
    choice = torch.tensor([c for _, _, c in pairs], dtype=torch.int64, device=x.device)
    rows = exchange(x[token], send, receive, group)
    sizes = [counts[other][held * rank + e] for other in range(n) for e in range(held)]
    out = []
    for place, part in enumerate(rows.split(sizes)):
        e = place % held
        out.append((torch.nn.functional.silu(part @ w1[e].T) * (part @ w3[e].T)) @ w2[e].T)
    back = exchange(torch.cat(out), receive, send, group)
    return torch.zeros_like(x).index_add(0, token, weights[token, choice][:, None] * back)


# %% right: each row travels with the number of its expert, and its weight
def swap(rows, send, receive, group):
    came = rows.new_empty(sum(receive), *rows.shape[1:])
    dist.all_to_all_single(came, rows.contiguous(), receive, send, group=group)
    return came


class Swap(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, send, receive, group):
        ctx.rest = receive, send, group
        return swap(rows, send, receive, group)

    @staticmethod
    def backward(ctx, grad):
        return swap(grad, *ctx.rest), None, None, None


def expert_parallel_moe(x, experts, weights, w1, w3, w2, group=None):
    n, held, k = dist.get_world_size(group), len(w1), experts.shape[1]
    order = (experts.flatten() // held).argsort(stable=True)
    number, weight, token = experts.flatten()[order], weights.flatten()[order], order // k
    send = (number // held).bincount(minlength=n)
    receive = torch.empty_like(send)
    dist.all_to_all_single(receive, send, group=group)
    send, receive = send.tolist(), receive.tolist()
    number = swap(number % held, send, receive, group)
    rows = Swap.apply(x[token], send, receive, group)
    weight = Swap.apply(weight, send, receive, group)
    out = rows * 0
    for e in range(held):
        here = (number == e).nonzero().flatten()
        part = rows[here]
        part = (torch.nn.functional.silu(part @ w1[e].T) * (part @ w3[e].T)) @ w2[e].T
        out = out.index_add(0, here, part * weight[here, None])
    out = Swap.apply(out, receive, send, group)
    return torch.zeros_like(x).index_add(0, token, out)


# %% right: sends and receives in one batch
# base: rows sorted by expert
-    came = rows.new_empty(sum(receive), *rows.shape[1:])
-    dist.all_to_all_single(came, rows.contiguous(), receive, send, group=group)
-    return came
+    me = dist.get_rank(group)
+    outgoing = rows.contiguous().split(send)
+    parts = [rows.new_empty(size, *rows.shape[1:]) for size in receive]
+    batch = []
+    for i in range(len(send)):
+        if i == me:
+            parts[i].copy_(outgoing[i])
+            continue
+        if send[i]:
+            batch.append(dist.P2POp(dist.isend, outgoing[i], group=group, group_peer=i))
+        if receive[i]:
+            batch.append(dist.P2POp(dist.irecv, parts[i], group=group, group_peer=i))
+    if batch:
+        for work in dist.batch_isend_irecv(batch):
+            work.wait()
+    return torch.cat(parts)
