# %% base: rows of the ranks
@torch.no_grad()
def muon_step(params, momenta, owned, orthogonalize, lr=0.02, beta=0.95, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    longest = max(sum(params[k].numel() for k in own) for own in owned)
    rows = params[0].new_zeros(n, longest)
    for row, own in zip(rows, owned):
        if own:
            flat = torch.cat([params[k].grad.flatten() for k in own])
            row[: len(flat)] = flat
    mean = torch.empty_like(rows[0])
    dist.reduce_scatter_tensor(mean, rows.view(-1), group=group)
    mean /= n
    weights, begin = torch.zeros_like(mean), 0
    for k in owned[rank]:
        size = params[k].numel()
        g = mean[begin : begin + size].view_as(params[k])
        m = momenta.get(k, torch.zeros_like(g))
        momenta[k] = m = beta * m + g
        update = orthogonalize(g + beta * m)
        scale = max(1, g.shape[0] / g.shape[1]) ** 0.5
        weights[begin : begin + size] = (params[k] - lr * scale * update).flatten()
        begin += size
    dist.all_gather_into_tensor(rows.view(-1), weights, group=group)
    for row, own in zip(rows, owned):
        begin = 0
        for k in own:
            params[k].copy_(row[begin : begin + params[k].numel()].view_as(params[k]))
            begin += params[k].numel()


# %% wrong: every rank orthogonalizes all
# is: idea
# says: Every rank does the work of all
@torch.no_grad()
def muon_step(params, momenta, owned, orthogonalize, lr=0.02, beta=0.95, group=None):
    for k, p in enumerate(params):
        g = p.grad
        dist.all_reduce(g, group=group)
        g /= dist.get_world_size(group)
        momenta[k] = m = beta * momenta.get(k, torch.zeros_like(g)) + g
        update = orthogonalize(g + beta * m)
        p -= lr * max(1, p.shape[0] / p.shape[1]) ** 0.5 * update


# %% wrong: each rank orthogonalizes the rows that it holds
# is: idea
# says: But part of a matrix has other
@torch.no_grad()
def muon_step(params, momenta, owned, orthogonalize, lr=0.02, beta=0.95, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    for k, p in enumerate(params):
        g = p.grad
        dist.all_reduce(g, group=group)
        g /= n
        parts = list(g.chunk(n))
        scale = max(1, p.shape[0] / p.shape[1]) ** 0.5
        height = len(parts[0])
        piece = p.new_zeros(height, p.shape[1])
        if rank < len(parts):
            own = parts[rank]
            momenta[k] = m = beta * momenta.get(k, torch.zeros_like(own)) + own
            piece[: len(own)] = lr * scale * orthogonalize(own + beta * m)
        whole = p.new_empty(n * height, p.shape[1])
        dist.all_gather_into_tensor(whole, piece, group=group)
        p -= torch.cat([whole[r * height : r * height + len(part)] for r, part in enumerate(parts)])


# %% wrong: orthogonalized before the sum
# is: idea
# says: orthogonalized before their sum
# base: rows of the ranks
-            flat = torch.cat([params[k].grad.flatten() for k in own])
+            flat = torch.cat([orthogonalize(params[k].grad).flatten() for k in own])
@@
-        update = orthogonalize(g + beta * m)
+        update = g + beta * m


# %% wrong: the momentum of orthogonalized gradients
# is: slip
# says: The momentum is made of orthogonalized gradients
# base: rows of the ranks
-        momenta[k] = m = beta * m + g
-        update = orthogonalize(g + beta * m)
+        update = orthogonalize(g)
+        momenta[k] = m = beta * m + update
+        update = update + beta * m


# %% wrong: the scale is turned
# is: slip
# says: The scale is inverted
# base: rows of the ranks
-        scale = max(1, g.shape[0] / g.shape[1]) ** 0.5
+        scale = max(1, g.shape[1] / g.shape[0]) ** 0.5


# %% wrong: no scale
# is: slip
# says: is missing, so tall matrices move too little
# base: rows of the ranks
-        scale = max(1, g.shape[0] / g.shape[1]) ** 0.5
+        scale = 1


# %% wrong: the scale of wide matrices is below 1
# is: slip
# says: Wide matrices move too little
# base: rows of the ranks
-        scale = max(1, g.shape[0] / g.shape[1]) ** 0.5
+        scale = (g.shape[0] / g.shape[1]) ** 0.5


# %% wrong: the scale without its root
# is: slip
# says: without its square root
# base: rows of the ranks
-        scale = max(1, g.shape[0] / g.shape[1]) ** 0.5
+        scale = max(1, g.shape[0] / g.shape[1])


# %% wrong: momentum without Nesterov
# is: slip
# says: without Nesterov's look ahead
# base: rows of the ranks
-        update = orthogonalize(g + beta * m)
+        update = orthogonalize(m)


# %% wrong: the momentum from before the step
# is: slip
# says: with m after it has got g
# base: rows of the ranks
-        momenta[k] = m = beta * m + g
         update = orthogonalize(g + beta * m)
+        momenta[k] = beta * m + g


# %% wrong: the momentum begins anew
# is: slip
# says: There is no momentum
# base: rows of the ranks
-        m = momenta.get(k, torch.zeros_like(g))
+        m = torch.zeros_like(g)


# %% wrong: the momentum is kept under its place
# is: slip
# says: each step begins from nothing. Keep m in
# base: rows of the ranks
-        m = momenta.get(k, torch.zeros_like(g))
-        momenta[k] = m = beta * m + g
+        m = momenta.get(0, torch.zeros_like(g))
+        m = beta * (m if m.shape == g.shape else 0 * g) + g
+        momenta[0] = m


# %% wrong: the owner's own gradient
# is: slip
# says: used the gradient of its own samples
# base: rows of the ranks
-    dist.reduce_scatter_tensor(mean, rows.view(-1), group=group)
-    mean /= n
+    mean.copy_(rows[rank])


# %% wrong: the weights do not arrive
# is: slip
# says: The all-gather brings the owners' weights to all
# base: rows of the ranks
-    dist.all_gather_into_tensor(rows.view(-1), weights, group=group)
-    for row, own in zip(rows, owned):
+    for row, own in [(weights, owned[rank])]:


# %% wrong: uphill
# is: slip
# says: The update was added
# base: rows of the ranks
-        weights[begin : begin + size] = (params[k] - lr * scale * update).flatten()
+        weights[begin : begin + size] = (params[k] + lr * scale * update).flatten()


# %% wrong: an all-reduce where a reduce-scatter is enough
# is: slip
# says: An all-reduce gives every rank the sum of everything
# base: rows of the ranks
-    dist.reduce_scatter_tensor(mean, rows.view(-1), group=group)
-    mean /= n
+    dist.all_reduce(rows, group=group)
+    mean.copy_(rows[rank] / n)


# %% wrong: all gradients travel to all ranks
# is: slip
# says: All gradients travelled to all ranks
# base: rows of the ranks
-    dist.reduce_scatter_tensor(mean, rows.view(-1), group=group)
-    mean /= n
+    every = rows.new_empty(n, n, longest)
+    dist.all_gather_into_tensor(every.view(-1), rows.view(-1), group=group)
+    mean.copy_(every[:, rank].mean(0))


# %% wrong: momenta of all matrices
# is: slip
# says: A matrix's momentum belongs to its owner
# base: rows of the ranks
-    weights, begin = torch.zeros_like(mean), 0
+    weights, begin = torch.zeros_like(mean), 0
+    for k, p in enumerate(params):
+        momenta.setdefault(k, torch.zeros_like(p))


# %% wrong: the group is forgotten
# is: slip
# says: group
# base: rows of the ranks
-    rank, n = dist.get_rank(group), dist.get_world_size(group)
+    rank, n = dist.get_rank(), dist.get_world_size()


# %% wrong: the default's lr
# is: slip
# says: `lr` was not used
# base: rows of the ranks
-        weights[begin : begin + size] = (params[k] - lr * scale * update).flatten()
+        weights[begin : begin + size] = (params[k] - 0.02 * scale * update).flatten()


# %% wrong: the default's beta
# is: slip
# says: `beta` was not used
# base: rows of the ranks
-    rank, n = dist.get_rank(group), dist.get_world_size(group)
+    rank, n, beta = dist.get_rank(group), dist.get_world_size(group), 0.95


# %% wrong: every rank needs a matrix
# is: detail
# says: the row of a rank that owns nothing
# base: rows of the ranks
-        if own:
-            flat = torch.cat([params[k].grad.flatten() for k in own])
-            row[: len(flat)] = flat
+        flat = torch.cat([params[k].grad.flatten() for k in own])
+        row[: len(flat)] = flat


# %% wrong: the gradients of parameters are watched
# is: form
# says: Decorate the function with @torch.no_grad
# base: rows of the ranks
-@torch.no_grad()
-def muon_step(params, momenta, owned, orthogonalize, lr=0.02, beta=0.95, group=None):
+def muon_step(params, momenta, owned, orthogonalize, lr=0.02, beta=0.95, group=None):


# %% wrong: nothing changes
# is: form
# says: Nothing was changed
def muon_step(params, momenta, owned, orthogonalize, lr=0.02, beta=0.95, group=None):
    pass


# %% right: the sum in place of the mean
@torch.no_grad()
def muon_step(params, momenta, owned, orthogonalize, lr=0.02, beta=0.95, group=None):
    rank = dist.get_rank(group)
    sizes = [[params[k].numel() for k in own] for own in owned]
    longest = max(map(sum, sizes))

    def row(tensors):
        flat = [t.reshape(-1) for t in tensors]
        return torch.cat([*flat, params[0].new_zeros(longest - sum(map(len, flat)))])

    total = params[0].new_empty(longest)
    rows = torch.cat([row([params[k].grad for k in own]) for own in owned])
    dist.reduce_scatter_tensor(total, rows, group=group)
    news = []
    for k, g in zip(owned[rank], total.split([*sizes[rank], longest - sum(sizes[rank])])):
        p = params[k]
        m = momenta.setdefault(k, torch.zeros_like(p))
        m.mul_(beta).add_(g.view_as(p))  # Newton-Schulz does not see a factor
        update = orthogonalize(g.view_as(p) + beta * m)
        news.append(p - lr * math.sqrt(max(1, p.shape[0] / p.shape[1])) * update)
    every = [torch.empty_like(total) for _ in owned]
    dist.all_gather(every, row(news), group=group)
    for own, lengths, came in zip(owned, sizes, every):
        for k, new in zip(own, came.split([*lengths, longest - sum(lengths)])):
            params[k].data = new.view_as(params[k]).clone()


# %% right: a decaying mean as momentum
@torch.no_grad()
def muon_step(params, momenta, owned, orthogonalize, lr=0.02, beta=0.95, group=None):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    longest = max(sum(params[k].numel() for k in own) for own in owned)

    def cut(row, own):
        begin = 0
        for k in own:
            yield k, row[begin : begin + params[k].numel()].view(params[k].shape)
            begin += params[k].numel()

    rows = params[0].new_zeros(n, longest)
    for row, own in zip(rows, owned):
        for k, place in cut(row, own):
            place.copy_(params[k].grad / n)
    mine = torch.zeros_like(rows[0])
    dist.reduce_scatter(mine, list(rows), group=group)
    for k, g in cut(mine, owned[rank]):
        m = momenta.setdefault(k, torch.zeros_like(g))
        m.lerp_(g, 1 - beta)
        g.copy_(orthogonalize(g.lerp(m, beta)))
    dist.all_gather(list(rows), mine, group=group)
    for row, own in zip(rows, owned):
        for k, update in cut(row, own):
            rows_of, columns = update.shape
            params[k].sub_(update, alpha=lr * max(1, rows_of / columns) ** 0.5)
