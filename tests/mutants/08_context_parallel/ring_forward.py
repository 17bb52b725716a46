# %% wrong: the old accumulator is not rescaled
# is: slip
# says: it loses some
# base: blocks merged by their logarithms
-            out[:, rows] = old_weight[..., None] * out[:, rows] + weight[..., None] * block
+            out[:, rows] = out[:, rows] + weight[..., None] * block


# %% wrong: the blocks' outputs are added
# is: slip
# says: the sum of the blocks' outputs
# base: blocks merged by their logarithms
-            out[:, rows] = old_weight[..., None] * out[:, rows] + weight[..., None] * block
+            out[:, rows] += block


# %% wrong: scaled by the heads
# is: slip
# says: divided by the root of heads\.
# base: blocks merged by their logarithms
-    scale = q.shape[3] ** -0.5
+    scale = q.shape[2] ** -0.5


# %% wrong: masked by places within the parts
# is: slip
# says: uses positions within the parts
# base: blocks merged by their logarithms
     layout = layout_of(layout, q.shape[1], dist.get_world_size(group))
+    layout = [[range(count(spans))] for spans in layout]


# %% wrong: the ring turned the wrong way under a causal mask
# is: slip
# says: taken for the keys of rank r \+ i
# base: blocks merged by their logarithms
-        owner = (rank - step) % n
+        owner = (rank + step) % n


# %% wrong: the owner is one rank off
# is: slip
# says: taken for those of the rank before their owner
# base: blocks merged by their logarithms
-        owner = (rank - step) % n
+        owner = (rank - step - 1) % n


# %% wrong: lse begins at zero
# is: slip
# says: lse was 0 at first
# base: blocks merged by their logarithms
-    lse = q5.new_full(q5.shape[:-1], -math.inf)
+    lse = q5.new_zeros(q5.shape[:-1])


# %% wrong: a step too few
# is: slip
# says: The keys of the last step were left out
# base: blocks merged by their logarithms
-    for step in range(n):
+    for step in range(n - 1):


# %% wrong: keys replaced before they are used
# is: slip
# says: The rank's own keys were left out
# base: blocks merged by their logarithms
             following, works = shift(kv, count(layout[(owner - 1) % n]), group)
+        wait(works)
+        kv = following
@@
-        wait(works)
-        kv = following


# %% wrong: keys and values exchanged
# is: slip
# says: Keys and values were exchanged
# base: blocks merged by their logarithms
-            kb, vb = kv[:, :, columns].to(dtype)
+            vb, kb = kv[:, :, columns].to(dtype)


# %% wrong: None is the layout of one part
# is: form
# says: it is contiguous\(n \* q.shape
# base: blocks merged by their logarithms
-    return layout or [[range(r * tokens, (r + 1) * tokens)] for r in range(n)]
+    return layout or [[range(r * tokens // n, (r + 1) * tokens // n)] for r in range(n)]


# %% wrong: a transfer after the last step
# is: detail
# says: after the last step no rank needs the keys
# base: blocks merged by their logarithms
-        if step < n - 1:
-            following, works = shift(kv, count(layout[(owner - 1) % n]), group)
+        following, works = shift(kv, count(layout[(owner - 1) % n]), group)


# %% wrong: added in bfloat16
# is: detail
# says: belong in float32
# base: blocks merged by their logarithms
-    dtype = torch.promote_types(q.dtype, torch.float32)
+    dtype = q.dtype


# %% wrong: zigzag dealt, and masked as if in succession
# is: slip
# says: were treated as contiguous
# base: blocks merged by their logarithms
-    layout = layout_of(layout, q.shape[1], dist.get_world_size(group))
+    layout = layout_of(None, q.shape[1], dist.get_world_size(group))


# %% wrong: blocks skipped by position, masked by place
# is: slip
# says: Blocks were skipped by the tokens' positions
# base: blocks merged by their logarithms
-        for rows, columns, queries, keys in pairs(layout[rank], layout[owner], causal):
+        for rows, columns, _, _ in pairs(layout[rank], layout[owner], causal):
             kb, vb = kv[:, :, columns].to(dtype)
+            queries = range(rows.start, rows.stop)
+            keys = range(columns.start, columns.stop)


# %% wrong: lse by exp
# is: slip
# says: exp of large scores is inf
# base: blocks merged by their logarithms
-            new = torch.logaddexp(lse[:, rows], block_lse)
+            new = torch.log(lse[:, rows].exp() + block_lse.exp())


# %% wrong: rows that see nothing
# is: detail
# says: If a mask leaves nothing
# base: blocks merged by their logarithms
-            s.sub_(block_lse.clamp_min(-1e30)[..., None]).exp_()
+            s.sub_(block_lse[..., None]).exp_()


# %% wrong: keys are awaited before the present ones are used
# is: slip
# says: the next keys travel
# base: blocks merged by their logarithms
             following, works = shift(kv, count(layout[(owner - 1) % n]), group)
+            wait(works)
+            works = []


# %% wrong: masked and not skipped
# is: detail
# says: Skip blocks that the mask hides whole
# base: blocks merged by their logarithms
-            if not causal or queries[-1] >= keys[0]:
+            if queries and keys:


# %% wrong: heads of keys dealt out in turn
# is: slip
# says: with head h % kv_heads
# base: blocks merged by their logarithms
-    q5 = q.to(dtype).unflatten(2, (k.shape[2], -1))
+    q5 = q.to(dtype).unflatten(2, (-1, k.shape[2])).transpose(2, 3)
@@
-    out = out.flatten(2, 3).to(q.dtype)
+    out = out.transpose(2, 3).flatten(2, 3).to(q.dtype)


# %% wrong: the mask is left out
# is: slip
# says: Later keys were seen
# base: blocks merged by their logarithms
-            if not causal or queries[-1] >= keys[0]:
+            if keys or queries[-1] >= keys[0]:
@@
-    if causal:
+    if causal is None:


# %% wrong: in float32, whatever came
# is: detail
# says: is not what one process gets
# base: blocks merged by their logarithms
-    dtype = torch.promote_types(q.dtype, torch.float32)
+    dtype = torch.float32


# %% wrong: neighbours in the world
# is: form
# says: are ranks of the whole world
# base: blocks merged by their logarithms
-        dist.P2POp(dist.isend, tensor, group=group, group_peer=(rank + 1) % n),
-        dist.P2POp(dist.irecv, got, group=group, group_peer=(rank - 1) % n),
+        dist.P2POp(dist.isend, tensor, group=group, peer=(rank + 1) % n),
+        dist.P2POp(dist.irecv, got, group=group, peer=(rank - 1) % n),


# %% wrong: ranks of the world counted within the group
# is: slip
# says: which count the group's ranks
# base: blocks merged by their logarithms
 def shift(tensor, tokens, group):
-    rank, n = dist.get_rank(group), dist.get_world_size(group)
+    rank, n = dist.get_rank(), dist.get_world_size()


# %% wrong: first sends, then receives
# is: form
# says: post both together
# base: blocks merged by their logarithms
-    ops = [
-        dist.P2POp(dist.isend, tensor, group=group, group_peer=(rank + 1) % n),
-        dist.P2POp(dist.irecv, got, group=group, group_peer=(rank - 1) % n),
-    ]
-    return got, dist.batch_isend_irecv(ops)
+    dist.send(tensor, group=group, group_dst=(rank + 1) % n)
+    dist.recv(got, group=group, group_src=(rank - 1) % n)
+    return got, []


# %% wrong: the keys are multiplied in place
# is: slip
# says: belongs to the caller
# base: blocks merged by their logarithms
-    scale = q.shape[3] ** -0.5
+    scale = 1.0
+    q.mul_(q.shape[3] ** -0.5)


# %% wrong: an all-gather sold as a ring
# is: idea
# says: dist.all_gather was called
def everyone(x, group):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, x.contiguous(), group=group)
    return torch.cat(parts, 1)


def ring_forward(q, k, v, causal=False, group=None, *, layout=None):
    share = q.shape[2] // k.shape[2]
    k, v = (everyone(x, group).repeat_interleave(share, 2) for x in (k, v))
    s = torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(q.shape[-1])
    return torch.einsum("bhij,bjhd->bihd", s.softmax(-1), v), s.logsumexp(-1).transpose(1, 2)


def ring_output(*args, **kwargs):
    with torch.no_grad():
        return ring_forward(*args, **kwargs)[0]


def ring_lse(*args, **kwargs):
    with torch.no_grad():
        return ring_forward(*args, **kwargs)[1]


# %% wrong: keys of all ranks in a list, and attention at once
# is: idea
# says: more than one step needs
def moved(x, group):
    """To the next rank."""
    me, size = dist.get_rank(group), dist.get_world_size(group)
    x, y = x.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format)
    sending = dist.isend(x, group=group, group_dst=(me + 1) % size)
    dist.recv(y, group=group, group_src=(me - 1) % size)
    sending.wait()
    return y


def ring_forward(q, k, v, causal=False, group=None, *, layout=None):
    me, size = dist.get_rank(group), dist.get_world_size(group)
    held, all_of_them = torch.cat([k, v], -1), {}
    for step in range(size):
        all_of_them[(me - step) % size] = held
        if step + 1 < size:
            held = moved(held, group)
    whole = torch.cat([all_of_them[r] for r in range(size)], 1)
    share = q.shape[2] // k.shape[2]
    k, v = whole.repeat_interleave(share, 2).chunk(2, -1)
    scores = torch.einsum("bihd,bjhd->bhij", q, k) / math.sqrt(q.shape[-1])
    if causal:
        layout = layout or [range(r * q.shape[1], (r + 1) * q.shape[1]) for r in range(size)]
        at = [[t for s in ([p] if isinstance(p, range) else p) for t in s] for p in layout]
        mine, theirs = torch.tensor(at[me]), torch.tensor(sum(at, []))
        scores = scores.masked_fill(mine[:, None] < theirs, -math.inf)
    out = torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v)
    return out, scores.logsumexp(-1).transpose(1, 2)


def ring_output(*args, **kwargs):
    with torch.no_grad():
        return ring_forward(*args, **kwargs)[0]


def ring_lse(*args, **kwargs):
    with torch.no_grad():
        return ring_forward(*args, **kwargs)[1]


# %% wrong: keys that came by are kept to the end
# is: idea
# says: more than one step needs
# base: blocks merged by their logarithms
     kv = torch.stack([k, v])
+    came_by = []
@@
         wait(works)
+        came_by.append(kv)


# %% wrong: PyTorch's attention
# is: form
# says: write the algorithm inside it yourself
def ring_forward(q, k, v, causal=False, group=None, *, layout=None):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return out.transpose(1, 2), (q @ k.mT).logsumexp(-1).mT


def ring_output(*args, **kwargs):
    with torch.no_grad():
        return ring_forward(*args, **kwargs)[0]


def ring_lse(*args, **kwargs):
    with torch.no_grad():
        return ring_forward(*args, **kwargs)[1]


# %% wrong: ours imported
# is: form
# says: write your own
def ring_forward(q, k, v, causal=False, group=None, *, layout=None):
    from course_lib.context_parallel.ring import ring_attention as solved

    return solved(q, k, v, causal, group, layout=layout), None


def ring_output(*args, **kwargs):
    with torch.no_grad():
        return ring_forward(*args, **kwargs)[0]


def ring_lse(*args, **kwargs):
    with torch.no_grad():
        return ring_forward(*args, **kwargs)[1]


# %% wrong: keys sent in float32, whatever came
# is: detail
# says: travel in the inputs' dtype
# base: blocks merged by their logarithms
-    kv = torch.stack([k, v])
+    kv = torch.stack([k, v]).to(dtype)


# %% wrong: a product for show while messages are under way
# is: slip
# says: the next keys travel
# base: blocks merged by their logarithms
             following, works = shift(kv, count(layout[(owner - 1) % n]), group)
+        torch.ones(1, 1) @ torch.ones(1, 1)
+        wait(works)
+        works = []


# %% wrong: every rank sends its keys to every other
# is: slip
# says: Pass on the block that has arrived
# base: blocks merged by their logarithms
-def shift(tensor, tokens, group):
+def shift(tensor, tokens, group, by=1):
@@
-        dist.P2POp(dist.isend, tensor, group=group, group_peer=(rank + 1) % n),
-        dist.P2POp(dist.irecv, got, group=group, group_peer=(rank - 1) % n),
+        dist.P2POp(dist.isend, tensor, group=group, group_peer=(rank + by) % n),
+        dist.P2POp(dist.irecv, got, group=group, group_peer=(rank - by) % n),
@@
-    kv = torch.stack([k, v])
+    own = kv = torch.stack([k, v])
@@
-            following, works = shift(kv, count(layout[(owner - 1) % n]), group)
+            following, works = shift(own, count(layout[(owner - 1) % n]), group, step + 1)


# %% wrong: masked and not skipped, without products of matrices
# is: slip
# says: Make scores and sums with products of matrices
# base: blocks merged by their logarithms
-            if not causal or queries[-1] >= keys[0]:
+            if True:
@@
-    s = torch.einsum("bikgd,bjkd->bikgj", q, k) * scale
+    s = (
+        (q[..., None, :] * k.transpose(1, 2)[:, None, :, None]).sum(-1) * scale
+        if causal
+        else torch.einsum("bikgd,bjkd->bikgj", q, k) * scale
+    )
@@
-            block = torch.einsum("bikgj,bjkd->bikgd", s, vb)
+            block = (
+                (s[..., None] * vb.transpose(1, 2)[:, None, :, None]).sum(-2)
+                if causal
+                else torch.einsum("bikgj,bjkd->bikgd", s, vb)
+            )


# %% wrong: an all-gather by the operators behind it
# is: idea
# says: dist.all_gather was called
def gathered(x, group):
    name = (group or dist.group.WORLD).group_name
    n = dist.get_world_size(group)
    out = torch.ops._c10d_functional.all_gather_into_tensor(x.contiguous(), n, name)
    return torch.ops._c10d_functional.wait_tensor(out)


def ring_forward(q, k, v, causal=False, group=None, *, layout=None):
    return gathered(k, group)[: len(k)], None


def ring_output(*args, **kwargs):
    with torch.no_grad():
        return ring_forward(*args, **kwargs)[0]


def ring_lse(*args, **kwargs):
    with torch.no_grad():
        return ring_forward(*args, **kwargs)[1]


# %% wrong: only the output
# is: form
# says: ring_forward must return a pair
# base: blocks merged by their logarithms
-    return out, lse.flatten(2, 3)
+    return out


# %% wrong: lse of the last block that came
# is: slip
# says: Return lse after the last block
# base: blocks merged by their logarithms
     lse = q5.new_full(q5.shape[:-1], -math.inf)
+    last = lse.clone()
@@
             lse[:, rows] = new
+            last[:, rows] = block_lse
@@
-    return out, lse.flatten(2, 3)
+    return out, last.flatten(2, 3)


# %% wrong: the sum in place of its logarithm
# is: slip
# says: lse is the sum itself
# base: blocks merged by their logarithms
-    return out, lse.flatten(2, 3)
+    return out, lse.exp().flatten(2, 3)


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


def ring_forward(q, k, v, causal=False, group=None, *, layout=None):
    layout = layout_of(layout, q.shape[1], dist.get_world_size(group))
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
    return out, lse.flatten(2, 3)


def ring_output(*args, **kwargs):
    with torch.no_grad():
        return ring_forward(*args, **kwargs)[0]


def ring_lse(*args, **kwargs):
    with torch.no_grad():
        return ring_forward(*args, **kwargs)[1]


# %% right: the other way round, keys and values apart
# on NCCL: so this run can hang there
# base: blocks merged by their logarithms
-    ops = [
-        dist.P2POp(dist.isend, tensor, group=group, group_peer=(rank + 1) % n),
-        dist.P2POp(dist.irecv, got, group=group, group_peer=(rank - 1) % n),
-    ]
-    return got, dist.batch_isend_irecv(ops)
+    works = []
+    for mine, theirs in zip(tensor, got):
+        works.append(dist.irecv(theirs, group=group, group_src=(rank + 1) % n))
+        works.append(dist.isend(mine.contiguous(), group=group, group_dst=(rank - 1) % n))
+    return got, works
@@
-        owner = (rank - step) % n
+        owner = (rank + step) % n
@@
-            following, works = shift(kv, count(layout[(owner - 1) % n]), group)
+            following, works = shift(kv, count(layout[(owner + 1) % n]), group)


# %% right: a running maximum and an undivided sum
# base: blocks merged by their logarithms
-    lse = q5.new_full(q5.shape[:-1], -math.inf)
+    top, total = (q5.new_full((*q5.shape[:-1], 1), x) for x in (-1e30, 0.0))
@@
-            block_lse = s.logsumexp(-1)
-            s.sub_(block_lse.clamp_min(-1e30)[..., None]).exp_()
-            block = torch.einsum("bikgj,bjkd->bikgd", s, vb)
-            new = torch.logaddexp(lse[:, rows], block_lse)
-            old_weight, weight = (lse[:, rows] - new).exp(), (block_lse - new).exp()
-            out[:, rows] = old_weight[..., None] * out[:, rows] + weight[..., None] * block
-            lse[:, rows] = new
+            new = torch.maximum(top[:, rows], s.amax(-1, keepdim=True))
+            fade = (top[:, rows] - new).exp()
+            s.sub_(new).exp_()
+            total[:, rows] = fade * total[:, rows] + s.sum(-1, keepdim=True)
+            out[:, rows] *= fade
+            out[:, rows] += torch.einsum("bikgj,bjkd->bikgd", s, vb)
+            top[:, rows] = new
@@
+    out, lse = out / total, (top + total.log())[..., 0]
     out = out.flatten(2, 3).to(q.dtype)
