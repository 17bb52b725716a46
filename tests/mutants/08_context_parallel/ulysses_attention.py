# %% wrong: all heads to all ranks
# is: idea
# says: an all-gather sends all heads to all
# base: all_to_all_single with the ranks in front
-    got = swap(x.unflatten(2, (n, -1)).movedim(2, 0), group)
-    return got.movedim(0, 1).flatten(1, 2)
+    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(n)]
+    dist.all_gather(parts, x.contiguous(), group=group)
+    return torch.cat(parts, 1).chunk(n, 2)[dist.get_rank(group)]


# %% wrong: heads of keys repeated before they are sent
# is: slip
# says: so send those, and repeat them, if at all, afterwards
# base: all_to_all_single with the ranks in front
     share = q.shape[2] // k.shape[2]
+    k, v = (x.repeat_interleave(share, 2) for x in (k, v))
@@
-    k, v = (x.repeat_interleave(share, 2) for x in (k, v))


# %% wrong: no look at the heads
# is: detail
# says: raise a ValueError
# base: all_to_all_single with the ranks in front
-    if q.shape[2] % n or k.shape[2] % n:
-        raise ValueError(f"{q.shape[2]} heads, {k.shape[2]} of keys, cannot be shared by {n} ranks")


# %% wrong: only the heads of queries are looked at
# is: detail
# says: raise a ValueError
# base: all_to_all_single with the ranks in front
-    if q.shape[2] % n or k.shape[2] % n:
+    if q.shape[2] % n:


# %% wrong: a refusal that names no number
# is: detail
# says: which numbers do not fit
# base: all_to_all_single with the ranks in front
-        raise ValueError(f"{q.shape[2]} heads, {k.shape[2]} of keys, cannot be shared by {n} ranks")
+        raise ValueError("the heads do not fit")


# %% wrong: heads come back in turn
# is: slip
# says: heads came back in another order
# base: all_to_all_single with the ranks in front
-    return got.movedim(0, 2).flatten(2, 3)
+    return got.movedim(0, 3).flatten(2, 3)


# %% wrong: heads of another rank
# is: slip
# says: heads came back in another order
# base: all_to_all_single with the ranks in front
-    return got.movedim(0, 2).flatten(2, 3)
+    return got.movedim(0, 2).roll(1, 2).flatten(2, 3)


# %% wrong: without an exchange
# is: idea
# says: Only the rank's own keys were seen
# base: all_to_all_single with the ranks in front
-    q, k, v = (Exchange.apply(x, to_heads, to_tokens, group) for x in (q, k, v))
@@
-    return Exchange.apply(out.transpose(1, 2), to_tokens, to_heads, group)
+    return out.transpose(1, 2)


# %% wrong: all scores at once
# is: idea
# says: attend with tiled_attention|Attend with tiled_attention
# base: all_to_all_single with the ranks in front
-    out = Tiled.apply(q, k, v, causal, q.shape[-1] ** -0.5)
+    s = q @ k.mT * q.shape[-1] ** -0.5
+    if causal:
+        s = s.masked_fill(torch.ones(s.shape[2:]).triu(1).bool(), -math.inf)
+    out = s.softmax(-1) @ v


# %% wrong: gradients as a mean
# is: slip
# says: the gradient of q is not what one process gets
# base: all_to_all_single with the ranks in front
-        return back(grad, group), None, None, None
+        return back(grad, group) / dist.get_world_size(group), None, None, None


# %% wrong: scores not divided
# is: slip
# says: here they were not divided
# base: all_to_all_single with the ranks in front
-    out = Tiled.apply(q, k, v, causal, q.shape[-1] ** -0.5)
+    out = Tiled.apply(q, k, v, causal, 1.0)


# %% wrong: scaled by the heads' share
# is: slip
# says: divided by the root of heads
# base: all_to_all_single with the ranks in front
-    out = Tiled.apply(q, k, v, causal, q.shape[-1] ** -0.5)
+    out = Tiled.apply(q, k, v, causal, (n * q.shape[1]) ** -0.5)


# %% wrong: the mask is left out
# is: slip
# says: Later keys were seen
# base: all_to_all_single with the ranks in front
-        if causal:
+        if causal is None:


# %% wrong: a mask where none is wanted
# is: slip
# says: A mask was applied, although causal is False
# base: all_to_all_single with the ranks in front
-        if causal:
+        if causal is not None:


# %% wrong: without a graph
# is: form
# says: Autograd does not see
# base: all_to_all_single with the ranks in front
-    q, k, v = (Exchange.apply(x, to_heads, to_tokens, group) for x in (q, k, v))
+    q, k, v = (Exchange.apply(x.detach(), to_heads, to_tokens, group) for x in (q, k, v))


# %% wrong: heads of keys dealt out in turn
# is: slip
# says: with head h % kv_heads
# base: all_to_all_single with the ranks in front
-    k, v = (x.repeat_interleave(share, 2) for x in (k, v))
+    k, v = (x.repeat(1, 1, share, 1) for x in (k, v))


# %% wrong: all ranks, whatever the group
# is: form
# says: not in the group|are in the group|group
# base: all_to_all_single with the ranks in front
-    dist.all_to_all_single(got, x, group=group)
+    dist.all_to_all_single(got, x)


# %% wrong: an exchange for each head
# is: slip
# says: one all-to-all for all heads
# base: all_to_all_single with the ranks in front
-    got = torch.empty_like(x)
-    dist.all_to_all_single(got, x, group=group)
-    return got
+    got = []
+    for token in x.chunk(16, -2 if x.shape[-2] >= 16 else -3):
+        token = token.contiguous()
+        got.append(torch.empty_like(token))
+        dist.all_to_all_single(got[-1], token, group=group)
+    return torch.cat(got, -2 if x.shape[-2] >= 16 else -3)


# %% wrong: PyTorch's attention
# is: form
# says: write the algorithm inside it yourself
import torch.nn.functional as F


def ulysses_attention(q, k, v, causal=False, group=None):
    gathered = []
    for x in (q, k, v):
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, x, group=group)
        gathered.append(torch.cat(parts, 1).transpose(1, 2))
    out = F.scaled_dot_product_attention(*gathered, is_causal=causal, enable_gqa=True)
    return out.transpose(1, 2).tensor_split(dist.get_world_size(group), 1)[dist.get_rank(group)]


# %% wrong: ours by reference
# is: form
# says: write your own
from course_lib.context_parallel.ulysses import ulysses_attention


# %% wrong: PyTorch's kernel, in another thread
# is: form
# says: write the algorithm inside it yourself
from concurrent.futures import ThreadPoolExecutor


class Trade(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, cut, join, group):
        ctx.back = join, cut, group
        return Trade.go(x, cut, join, group)

    @staticmethod
    def go(x, cut, join, group):
        pieces = torch.stack(x.chunk(dist.get_world_size(group), cut))
        got = torch.empty_like(pieces)
        dist.all_to_all_single(got, pieces, group=group)
        return torch.cat(got.unbind(), join)

    @staticmethod
    def backward(ctx, grad):
        return Trade.go(grad, *ctx.back), None, None, None


def attend(q, k, v, causal):
    share = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(share, 2) for x in (k, v))
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(op, q, k, v, 0.0, causal).result()[0].transpose(1, 2)


def ulysses_attention(q, k, v, causal=False, group=None):
    n = dist.get_world_size(group)
    if q.shape[2] % n or k.shape[2] % n:
        raise ValueError(f"{q.shape[2]} heads, {k.shape[2]} of keys, cannot be shared by {n} ranks")
    q, k, v = (Trade.apply(x, 2, 1, group) for x in (q, k, v))
    return Trade.apply(attend(q, k, v, causal), 1, 2, group)


# %% wrong: the whole matrix of a rank's heads, in NumPy
# is: idea
# says: the scores of the whole sequence|the keys of all ranks
import numpy as np


class Trade(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, cut, join, group):
        ctx.back = join, cut, group
        return Trade.go(x, cut, join, group)

    @staticmethod
    def go(x, cut, join, group):
        pieces = torch.stack(x.chunk(dist.get_world_size(group), cut))
        got = torch.empty_like(pieces)
        dist.all_to_all_single(got, pieces, group=group)
        return torch.cat(got.unbind(), join)

    @staticmethod
    def backward(ctx, grad):
        return Trade.go(grad, *ctx.back), None, None, None


class InNumpy(torch.autograd.Function):
    @staticmethod
    def p(q, k, causal):
        s = np.einsum("bihd,bjhd->bhij", q, k) / np.sqrt(q.shape[-1])
        if causal:
            s[..., np.triu(np.ones(s.shape[-2:], bool), 1)] = -np.inf
        s = np.exp(s - s.max(-1, keepdims=True))
        return s / s.sum(-1, keepdims=True)

    @staticmethod
    def forward(ctx, q, k, v, causal):
        ctx.save_for_backward(q, k, v)
        ctx.causal = causal
        return torch.from_numpy(
            np.einsum("bhij,bjhd->bihd", InNumpy.p(q.numpy(), k.numpy(), causal), v.numpy())
        )

    @staticmethod
    def backward(ctx, grad):
        q, k, v = (x.numpy() for x in ctx.saved_tensors)
        g, p = grad.numpy(), InNumpy.p(q, k, ctx.causal)
        dp = np.einsum("bihd,bjhd->bhij", g, v)
        ds = p * (dp - (p * dp).sum(-1, keepdims=True)) / np.sqrt(q.shape[-1])
        found = (
            np.einsum("bhij,bjhd->bihd", ds, k),
            np.einsum("bhij,bihd->bjhd", ds, q),
            np.einsum("bhij,bihd->bjhd", p, g),
        )
        return *(torch.from_numpy(x) for x in found), None


def ulysses_attention(q, k, v, causal=False, group=None):
    n = dist.get_world_size(group)
    if q.shape[2] % n or k.shape[2] % n:
        raise ValueError(f"{q.shape[2]} heads, {k.shape[2]} of keys, cannot be shared by {n} ranks")
    q, k, v = (Trade.apply(x, 2, 1, group) for x in (q, k, v))
    share = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(share, 2) for x in (k, v))
    return Trade.apply(InNumpy.apply(q, k, v, causal), 1, 2, group)


# %% wrong: slices of all heads are kept
# is: detail
# says: A slice of a larger tensor keeps all of that tensor
# base: all_to_all_single with the ranks in front
-    got = swap(x.unflatten(2, (n, -1)).movedim(2, 0), group)
-    return got.movedim(0, 1).flatten(1, 2)
+    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(n)]
+    dist.all_gather(parts, x.contiguous(), group=group)
+    return torch.cat(parts, 1).chunk(n, 2)[dist.get_rank(group)]


# %% wrong: gradients by an all-reduce of the whole
# is: slip
# says: An all-reduce brings the sum of all heads
# base: all_to_all_single with the ranks in front
-        return back(grad, group), None, None, None
+        rank, n = dist.get_rank(group), dist.get_world_size(group)
+        heads, tokens = (2, 1) if back is to_tokens else (1, 2)
+        whole = grad.new_zeros([s * (n if d == heads else 1) for d, s in enumerate(grad.shape)])
+        size = grad.shape[heads]
+        whole.narrow(heads, rank * size, size).copy_(grad)
+        dist.all_reduce(whole, group=group)
+        return whole.chunk(n, tokens)[rank].clone(), None, None, None


# %% wrong: an error in backward
# is: form
# says: raised AttributeError: .* object has no attribute 'rets'
# base: all_to_all_single with the ranks in front
-        back, group = ctx.rest
+        back, group = ctx.rets


# %% right: all_to_all_single with the ranks in front
BLOCK = 128


class Tiled(torch.autograd.Function):
    """Rows of scores, some at a time; (batch, heads, tokens, d)."""

    @staticmethod
    def scores(q, k, start, causal, scale):
        s = q[:, :, start : start + BLOCK] @ k.mT * scale
        if causal:
            at = torch.arange(start, start + s.shape[2], device=s.device)
            s.masked_fill_(at[:, None] < torch.arange(k.shape[2], device=s.device), -math.inf)
        return s

    @staticmethod
    def forward(ctx, q, k, v, causal, scale):
        out, lse = torch.empty_like(q), q.new_empty(*q.shape[:-1], 1)
        for start in range(0, q.shape[2], BLOCK):
            s = Tiled.scores(q, k, start, causal, scale)
            rows = slice(start, start + BLOCK)
            lse[:, :, rows] = s.logsumexp(-1, keepdim=True)
            out[:, :, rows] = s.sub_(lse[:, :, rows]).exp_() @ v
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.rest = causal, scale
        return out

    @staticmethod
    def backward(ctx, grad):
        q, k, v, out, lse = ctx.saved_tensors
        dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        delta = (out * grad).sum(-1, keepdim=True)
        for start in range(0, q.shape[2], BLOCK):
            rows = slice(start, start + BLOCK)
            p = Tiled.scores(q, k, start, *ctx.rest).sub_(lse[:, :, rows]).exp_()
            dv += p.mT @ grad[:, :, rows]
            ds = (grad[:, :, rows] @ v.mT).sub_(delta[:, :, rows]).mul_(p).mul_(ctx.rest[1])
            dq[:, :, rows] = ds @ k
            dk += ds.mT @ q[:, :, rows]
        return dq, dk, dv, None, None


def swap(x, group):
    """The r-th of x (ranks first) to rank r."""
    x = x.contiguous()
    got = torch.empty_like(x)
    dist.all_to_all_single(got, x, group=group)
    return got


def to_heads(x, group):
    n = dist.get_world_size(group)
    got = swap(x.unflatten(2, (n, -1)).movedim(2, 0), group)
    return got.movedim(0, 1).flatten(1, 2)


def to_tokens(x, group):
    n = dist.get_world_size(group)
    got = swap(x.unflatten(1, (n, -1)).movedim(1, 0), group)
    return got.movedim(0, 2).flatten(2, 3)


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, there, back, group):
        ctx.rest = back, group
        return there(x, group)

    @staticmethod
    def backward(ctx, grad):
        back, group = ctx.rest
        return back(grad, group), None, None, None


def ulysses_attention(q, k, v, causal=False, group=None):
    n = dist.get_world_size(group)
    if q.shape[2] % n or k.shape[2] % n:
        raise ValueError(f"{q.shape[2]} heads, {k.shape[2]} of keys, cannot be shared by {n} ranks")
    share = q.shape[2] // k.shape[2]
    q, k, v = (Exchange.apply(x, to_heads, to_tokens, group) for x in (q, k, v))
    k, v = (x.repeat_interleave(share, 2) for x in (k, v))
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = Tiled.apply(q, k, v, causal, q.shape[-1] ** -0.5)
    return Exchange.apply(out.transpose(1, 2), to_tokens, to_heads, group)


# %% right: messages to every other rank
# on NCCL: so this run can hang there
# base: all_to_all_single with the ranks in front
-    got = torch.empty_like(x)
-    dist.all_to_all_single(got, x, group=group)
+    got, me = x.clone(), dist.get_rank(group)
+    works = []
+    for other in range(len(x)):
+        if other != me:
+            works.append(dist.isend(x[other], group=group, group_dst=other))
+            works.append(dist.irecv(got[other], group=group, group_src=other))
+    for work in works:
+        work.wait()


# %% right: one exchange for queries, keys and values
# base: all_to_all_single with the ranks in front
-    q, k, v = (Exchange.apply(x, to_heads, to_tokens, group) for x in (q, k, v))
+    heads = [x.shape[2] // n for x in (q, k, v)]
+    all_three = [x.unflatten(2, (n, -1)) for x in (q, k, v)]
+    all_three = Exchange.apply(torch.cat(all_three, 3).flatten(2, 3), to_heads, to_tokens, group)
+    q, k, v = all_three.split(heads, 2)
