# %% wrong: gradients of keys stay one rank before home
# is: slip
# says: one more transfer brings them home
# base: blocks merged by their logarithms
-        dk, dv = shares.to(k.dtype)
+        dk, dv = dkv.to(k.dtype)


# %% wrong: gradients of keys from the rank's own queries
# is: slip
# says: Only the rank's own queries contributed
# base: blocks merged by their logarithms
                 dkv[0][:, columns] += torch.einsum("bikgj,bikgd->bjkd", ds, q5[:, rows])
+            own = dkv.clone() if step == 0 else own
@@
-        dk, dv = shares.to(k.dtype)
+        dk, dv = own.to(k.dtype)


# %% wrong: gradients sent in bfloat16
# is: detail
# says: belong in float32
# base: blocks merged by their logarithms
-            dkv = torch.zeros_like(kv, dtype=dtype)
+            dkv = torch.zeros_like(kv)


# %% wrong: the gradient of q added in bfloat16
# is: detail
# says: gradient of q is less exact than one rounding makes it
# base: blocks merged by their logarithms
-        dq = torch.zeros_like(q5)
+        dq = torch.zeros_like(q5, dtype=q.dtype)


# %% wrong: masked and not skipped
# is: detail
# says: Skip blocks that the mask hides whole
# base: blocks merged by their logarithms
-            if not causal or queries[-1] >= keys[0]:
+            if queries and keys:


# %% wrong: keeps what came by
# is: idea
# says: keys that passed by are sent again
# base: blocks merged by their logarithms
         kv = torch.stack([k, v])
+        ctx.seen = []
@@
                 lse[:, rows] = new
             wait(works)
+            ctx.seen.append(kv)
             kv = following


# %% wrong: keys that came by are kept to the end of backward
# is: idea
# says: more than one step needs
# base: blocks merged by their logarithms
         kv, shares, coming = torch.stack([k, v]), 0, []
+        came_by = []
@@
             shares, coming = shift(dkv, count(layout[(owner - 1) % n]), group)
+            came_by.append(kv)


# %% wrong: without a graph
# is: form
# says: Autograd does not see
# base: blocks merged by their logarithms
-    return Ring.apply(q, k, v, causal, group, layout)
+    return Ring.apply(q.detach(), k.detach(), v.detach(), causal, group, layout)


# %% wrong: neighbours in the world
# is: form
# says: are ranks of the whole world
# base: blocks merged by their logarithms
-        dist.P2POp(dist.isend, tensor, group=group, group_peer=(rank + 1) % n),
-        dist.P2POp(dist.irecv, got, group=group, group_peer=(rank - 1) % n),
+        dist.P2POp(dist.isend, tensor, group=group, peer=(rank + 1) % n),
+        dist.P2POp(dist.irecv, got, group=group, peer=(rank - 1) % n),


# %% wrong: keys of all ranks in a list, and autograd for the rest
# is: idea
# says: keys that passed by are sent again|more than one step needs|the next keys travel
class Pass(torch.autograd.Function):
    """To the next rank; gradients go to the previous one."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return Pass.moved(x, group, 1)

    @staticmethod
    def backward(ctx, grad):
        return Pass.moved(grad, ctx.group, -1), None

    @staticmethod
    def moved(x, group, by):
        me, size = dist.get_rank(group), dist.get_world_size(group)
        x, y = x.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format)
        sending = dist.isend(x, group=group, group_dst=(me + by) % size)
        dist.recv(y, group=group, group_src=(me - by) % size)
        sending.wait()
        return y


def ring_attention(q, k, v, causal=False, group=None, *, layout=None):
    me, size = dist.get_rank(group), dist.get_world_size(group)
    held, all_of_them = torch.cat([k, v], -1), {}
    for step in range(size):
        all_of_them[(me - step) % size] = held
        if step + 1 < size:
            held = Pass.apply(held, group)
    whole = torch.cat([all_of_them[r] for r in range(size)], 1)
    share = q.shape[2] // k.shape[2]
    k, v = whole.repeat_interleave(share, 2).chunk(2, -1)
    scores = torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(q.shape[-1])
    if causal:
        layout = layout or [range(r * q.shape[1], (r + 1) * q.shape[1]) for r in range(size)]
        at = [[t for s in ([p] if isinstance(p, range) else p) for t in s] for p in layout]
        mine, theirs = torch.tensor(at[me]), torch.tensor(sum(at, []))
        scores = scores.masked_fill(mine[:, None] < theirs, -math.inf)
    return torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v)


# %% wrong: PyTorch's attention
# is: form
# says: write the algorithm inside it yourself
def ring_attention(q, k, v, causal=False, group=None, *, layout=None):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return out.transpose(1, 2)


# %% wrong: ours imported
# is: form
# says: write your own
def ring_attention(q, k, v, causal=False, group=None, *, layout=None):
    from course_lib.context_parallel.ring import ring_attention as solved

    return solved(q, k, v, causal, group, layout=layout)


# %% wrong: gradients of keys divided by the ranks
# is: slip
# says: were divided by N\. They are sums
# base: blocks merged by their logarithms
-        dk, dv = shares.to(k.dtype)
+        dk, dv = (shares / n).to(k.dtype)


# %% wrong: the gradient of q divided by the ranks
# is: slip
# says: The gradient of q was divided by N
# base: blocks merged by their logarithms
-        return dq.flatten(2, 3).to(q.dtype), dk, dv, None, None, None
+        return dq.div(n).flatten(2, 3).to(q.dtype), dk, dv, None, None, None


# %% wrong: messages are awaited before the present keys are used
# is: slip
# says: the next keys travel
# base: blocks merged by their logarithms
                 following, works = shift(kv, count(layout[(owner - 1) % n]), group)
+            wait(works)
+            wait(coming)
             dkv = torch.zeros_like(kv, dtype=dtype)
@@
-            wait(coming)
@@
             shares, coming = shift(dkv, count(layout[(owner - 1) % n]), group)
-            wait(works)


# %% wrong: no delta in backward
# is: slip
# says: delta is missing
# base: blocks merged by their logarithms
-                ds.sub_(delta[:, rows]).mul_(p).mul_(scale)
+                ds.mul_(p).mul_(scale)


# %% wrong: delta of each block alone
# is: slip
# says: over only the keys of each block
# base: blocks merged by their logarithms
-                ds.sub_(delta[:, rows]).mul_(p).mul_(scale)
+                ds.sub_((ds * p).sum(-1, keepdim=True)).mul_(p).mul_(scale)


# %% wrong: delta is a mean
# is: slip
# says: delta was divided by head_dim
# base: blocks merged by their logarithms
-        delta = (g5 * o5).sum(-1, keepdim=True)
+        delta = (g5 * o5).mean(-1, keepdim=True)


# %% wrong: dk and dv swapped
# is: slip
# says: The gradients of k and v are swapped
# base: blocks merged by their logarithms
-        dk, dv = shares.to(k.dtype)
+        dv, dk = shares.to(k.dtype)


# %% wrong: masked in forward alone
# is: slip
# says: Backward does not mask the scores that forward hides
# base: blocks merged by their logarithms
                 kb, vb = kv[:, :, columns].to(dtype)
-                p = scores_of(q5[:, rows], kb, queries, keys, causal, scale)
+                p = scores_of(q5[:, rows], kb, queries, keys, False, scale)


# %% wrong: keys sent home in backward, too
# is: detail
# says: Keys and values go around again, in N - 1 transfers
# base: blocks merged by their logarithms
             owner = (rank - step) % n
             following, works = kv, []
-            if step < n - 1:
+            if n > 1:
                 following, works = shift(kv, count(layout[(owner - 1) % n]), group)
             dkv = torch.zeros_like(kv, dtype=dtype)


# %% wrong: an output that is wrong already
# is: slip
# says: The output of forward is not right yet
# base: blocks merged by their logarithms
-        return out
+        return 2 * out


# %% wrong: delta summed over the tokens
# is: form
# says: one number for each query and head
# base: blocks merged by their logarithms
-        delta = (g5 * o5).sum(-1, keepdim=True)
+        delta = (g5 * o5).sum(1)


# %% right: blocks merged by their logarithms
def layout_of(layout, tokens, n):
    return layout or [[range(r * tokens, (r + 1) * tokens)] for r in range(n)]


def pairs(mine, theirs, causal):
    """Slices of queries and keys that see each other, and their positions."""
    i = 0
    for queries in mine:
        j = 0
        for keys in theirs:
            if not causal or queries[-1] >= keys[0]:
                yield slice(i, i + len(queries)), slice(j, j + len(keys)), queries, keys
            j += len(keys)
        i += len(queries)


def shift(tensor, tokens, group):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    if n == 1:
        return tensor, []
    got = tensor.new_empty(2, tensor.shape[1], tokens, *tensor.shape[3:])
    ops = [
        dist.P2POp(dist.isend, tensor, group=group, group_peer=(rank + 1) % n),
        dist.P2POp(dist.irecv, got, group=group, group_peer=(rank - 1) % n),
    ]
    return got, dist.batch_isend_irecv(ops)


def wait(works):
    for work in works:
        work.wait()


def scores_of(q, k, queries, keys, causal, scale):
    s = torch.einsum("bikgd,bjkd->bikgj", q, k) * scale
    if causal:
        i, j = (torch.tensor(list(places), device=q.device) for places in (queries, keys))
        s = s.masked_fill((i[:, None] < j)[:, None, None], -math.inf)
    return s


def count(spans):
    return sum(len(span) for span in spans)


class Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal, group, layout):
        rank, n = dist.get_rank(group), dist.get_world_size(group)
        dtype = torch.promote_types(q.dtype, torch.float32)
        scale = q.shape[3] ** -0.5
        q5 = q.to(dtype).unflatten(2, (k.shape[2], -1))
        out = torch.zeros_like(q5)
        lse = q5.new_full(q5.shape[:-1], -math.inf)
        kv = torch.stack([k, v])
        for step in range(n):
            owner = (rank - step) % n
            following, works = kv, []
            if step < n - 1:
                following, works = shift(kv, count(layout[(owner - 1) % n]), group)
            for rows, columns, queries, keys in pairs(layout[rank], layout[owner], causal):
                kb, vb = kv[:, :, columns].to(dtype)
                s = scores_of(q5[:, rows], kb, queries, keys, causal, scale)
                block_lse = s.logsumexp(-1)
                s.sub_(block_lse.clamp_min(-1e30)[..., None]).exp_()
                block = torch.einsum("bikgj,bjkd->bikgd", s, vb)
                new = torch.logaddexp(lse[:, rows], block_lse)
                old_weight, weight = (lse[:, rows] - new).exp(), (block_lse - new).exp()
                out[:, rows] = old_weight[..., None] * out[:, rows] + weight[..., None] * block
                lse[:, rows] = new
            wait(works)
            kv = following
        out = out.flatten(2, 3).to(q.dtype)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.rest = causal, group, layout
        return out

    @staticmethod
    def backward(ctx, grad):
        q, k, v, out, lse = ctx.saved_tensors
        causal, group, layout = ctx.rest
        rank, n = dist.get_rank(group), dist.get_world_size(group)
        dtype, scale = lse.dtype, q.shape[3] ** -0.5
        q5, g5, o5 = (x.to(dtype).unflatten(2, (k.shape[2], -1)) for x in (q, grad, out))
        delta = (g5 * o5).sum(-1, keepdim=True)
        dq = torch.zeros_like(q5)
        kv, shares, coming = torch.stack([k, v]), 0, []
        for step in range(n):
            owner = (rank - step) % n
            following, works = kv, []
            if step < n - 1:
                following, works = shift(kv, count(layout[(owner - 1) % n]), group)
            dkv = torch.zeros_like(kv, dtype=dtype)
            for rows, columns, queries, keys in pairs(layout[rank], layout[owner], causal):
                kb, vb = kv[:, :, columns].to(dtype)
                p = scores_of(q5[:, rows], kb, queries, keys, causal, scale)
                p.sub_(lse[:, rows, ..., None]).exp_()
                dkv[1][:, columns] += torch.einsum("bikgj,bikgd->bjkd", p, g5[:, rows])
                ds = torch.einsum("bikgd,bjkd->bikgj", g5[:, rows], vb)
                ds.sub_(delta[:, rows]).mul_(p).mul_(scale)
                dq[:, rows] += torch.einsum("bikgj,bjkd->bikgd", ds, kb)
                dkv[0][:, columns] += torch.einsum("bikgj,bikgd->bjkd", ds, q5[:, rows])
            wait(coming)
            dkv += shares
            shares, coming = shift(dkv, count(layout[(owner - 1) % n]), group)
            wait(works)
            kv = following
        wait(coming)
        dk, dv = shares.to(k.dtype)
        return dq.flatten(2, 3).to(q.dtype), dk, dv, None, None, None


def ring_attention(q, k, v, causal=False, group=None, *, layout=None):
    layout = layout_of(layout, q.shape[1], dist.get_world_size(group))
    return Ring.apply(q, k, v, causal, group, layout)


# %% right: the other way round, keys and values apart
# on NCCL: so this run can hang there
def layout_of(layout, tokens, n):
    return layout or [[range(r * tokens, (r + 1) * tokens)] for r in range(n)]


def pairs(mine, theirs, causal):
    """Slices of queries and keys that see each other, and their positions."""
    i = 0
    for queries in mine:
        j = 0
        for keys in theirs:
            if not causal or queries[-1] >= keys[0]:
                yield slice(i, i + len(queries)), slice(j, j + len(keys)), queries, keys
            j += len(keys)
        i += len(queries)


def shift(tensor, tokens, group):
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    if n == 1:
        return tensor, []
    got = tensor.new_empty(2, tensor.shape[1], tokens, *tensor.shape[3:])
    works = []
    for mine, theirs in zip(tensor, got):
        works.append(dist.irecv(theirs, group=group, group_src=(rank + 1) % n))
        works.append(dist.isend(mine.contiguous(), group=group, group_dst=(rank - 1) % n))
    return got, works


def wait(works):
    for work in works:
        work.wait()


def scores_of(q, k, queries, keys, causal, scale):
    s = torch.einsum("bikgd,bjkd->bikgj", q, k) * scale
    if causal:
        i, j = (torch.tensor(list(span), device=q.device) for span in (queries, keys))
        s = s.masked_fill((i[:, None] < j)[:, None, None], -math.inf)
    return s


def count(spans):
    return sum(len(span) for span in spans)


class Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal, group, layout):
        rank, n = dist.get_rank(group), dist.get_world_size(group)
        dtype = torch.promote_types(q.dtype, torch.float32)
        scale = q.shape[3] ** -0.5
        q5 = q.to(dtype).unflatten(2, (k.shape[2], -1))
        out = torch.zeros_like(q5)
        lse = q5.new_full(q5.shape[:-1], -math.inf)
        kv = torch.stack([k, v])
        for step in range(n):
            owner = (rank + step) % n
            following, works = kv, []
            if step < n - 1:
                following, works = shift(kv, count(layout[(owner + 1) % n]), group)
            for rows, columns, queries, keys in pairs(layout[rank], layout[owner], causal):
                kb, vb = kv[:, :, columns].to(dtype)
                s = scores_of(q5[:, rows], kb, queries, keys, causal, scale)
                block_lse = s.logsumexp(-1)
                s.sub_(block_lse.clamp_min(-1e30)[..., None]).exp_()
                block = torch.einsum("bikgj,bjkd->bikgd", s, vb)
                new = torch.logaddexp(lse[:, rows], block_lse)
                old_weight, weight = (lse[:, rows] - new).exp(), (block_lse - new).exp()
                out[:, rows] = old_weight[..., None] * out[:, rows] + weight[..., None] * block
                lse[:, rows] = new
            wait(works)
            kv = following
        out = out.flatten(2, 3).to(q.dtype)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.rest = causal, group, layout
        return out

    @staticmethod
    def backward(ctx, grad):
        q, k, v, out, lse = ctx.saved_tensors
        causal, group, layout = ctx.rest
        rank, n = dist.get_rank(group), dist.get_world_size(group)
        dtype, scale = lse.dtype, q.shape[3] ** -0.5
        q5, g5, o5 = (x.to(dtype).unflatten(2, (k.shape[2], -1)) for x in (q, grad, out))
        delta = (g5 * o5).sum(-1, keepdim=True)
        dq = torch.zeros_like(q5)
        kv, shares, coming = torch.stack([k, v]), 0, []
        for step in range(n):
            owner = (rank + step) % n
            following, works = kv, []
            if step < n - 1:
                following, works = shift(kv, count(layout[(owner + 1) % n]), group)
            dkv = torch.zeros_like(kv, dtype=dtype)
            for rows, columns, queries, keys in pairs(layout[rank], layout[owner], causal):
                kb, vb = kv[:, :, columns].to(dtype)
                p = scores_of(q5[:, rows], kb, queries, keys, causal, scale)
                p.sub_(lse[:, rows, ..., None]).exp_()
                dkv[1][:, columns] += torch.einsum("bikgj,bikgd->bjkd", p, g5[:, rows])
                ds = torch.einsum("bikgd,bjkd->bikgj", g5[:, rows], vb)
                ds.sub_(delta[:, rows]).mul_(p).mul_(scale)
                dq[:, rows] += torch.einsum("bikgj,bjkd->bikgd", ds, kb)
                dkv[0][:, columns] += torch.einsum("bikgj,bikgd->bjkd", ds, q5[:, rows])
            wait(coming)
            dkv += shares
            shares, coming = shift(dkv, count(layout[(owner + 1) % n]), group)
            wait(works)
            kv = following
        wait(coming)
        dk, dv = shares.to(k.dtype)
        return dq.flatten(2, 3).to(q.dtype), dk, dv, None, None, None


def ring_attention(q, k, v, causal=False, group=None, *, layout=None):
    layout = layout_of(layout, q.shape[1], dist.get_world_size(group))
    return Ring.apply(q, k, v, causal, group, layout)


# %% right: a running maximum and an undivided sum
# base: blocks merged by their logarithms
-        lse = q5.new_full(q5.shape[:-1], -math.inf)
+        top, total = (q5.new_full((*q5.shape[:-1], 1), x) for x in (-1e30, 0.0))
@@
-                block_lse = s.logsumexp(-1)
-                s.sub_(block_lse.clamp_min(-1e30)[..., None]).exp_()
-                block = torch.einsum("bikgj,bjkd->bikgd", s, vb)
-                new = torch.logaddexp(lse[:, rows], block_lse)
-                old_weight, weight = (lse[:, rows] - new).exp(), (block_lse - new).exp()
-                out[:, rows] = old_weight[..., None] * out[:, rows] + weight[..., None] * block
-                lse[:, rows] = new
+                new = torch.maximum(top[:, rows], s.amax(-1, keepdim=True))
+                fade = (top[:, rows] - new).exp()
+                s.sub_(new).exp_()
+                total[:, rows] = fade * total[:, rows] + s.sum(-1, keepdim=True)
+                out[:, rows] *= fade
+                out[:, rows] += torch.einsum("bikgj,bjkd->bikgd", s, vb)
+                top[:, rows] = new
@@
+        out, lse = out / total, (top + total.log())[..., 0]
         out = out.flatten(2, 3).to(q.dtype)
