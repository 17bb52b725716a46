# %% wrong: the old accumulator is not rescaled
# is: slip
# says: old accumulator is not rescaled
# base: a maximum and a sum
-                out[:, I] *= old[..., None]


# %% wrong: scaled by the wrong dimension
# is: idea
# says: scaled by the wrong dimension.*not of the sequence
def tiled_attention(q, k, v, block=256, causal=False):
    scores = torch.einsum("bihd,bjhd->bhij", q, k.repeat_interleave(q.size(2) // k.size(2), 2))
    scores = scores * q.size(1) ** -0.5
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
    return torch.einsum(
        "bhij,bjhd->bihd", scores.softmax(-1), v.repeat_interleave(q.size(2) // v.size(2), 2)
    )


# %% wrong: not scaled
# is: slip
# says: not scaled\. Divide them by the root of head_dim
# base: a maximum and a sum
-        s *= q.shape[-1] ** -0.5
@@
-                ds = p * (dp - delta) * q.shape[-1] ** -0.5
+                ds = p * (dp - delta)


# %% wrong: a mask of positions within the tile
# is: slip
# says: counts positions within each tile
# base: a maximum and a sum
-        if causal and j > i + q.shape[1] - 1:
-            return None
@@
-            ahead = torch.arange(i, i + q.shape[1])[:, None] < torch.arange(j, j + k.shape[1])
+            ahead = torch.arange(q.shape[1])[:, None] < torch.arange(k.shape[1])


# %% wrong: the mean of the tiles
# is: idea
# says: and the mean was taken
def tiled_attention(q, k, v, block=256, causal=False):
    batch, tokens, heads, features = q.shape
    times = heads // k.shape[2]
    k = k[:, :, :, None].expand(-1, -1, -1, times, -1).flatten(2, 3)
    v = v[:, :, :, None].expand(-1, -1, -1, times, -1).flatten(2, 3)
    answers = []
    for start in range(0, tokens, block):
        stop = min(start + block, tokens)
        s = torch.einsum("bqhd,bkhd->bhqk", q, k[:, start:stop]).div(features**0.5)
        if causal:
            later = torch.arange(start, stop) > torch.arange(tokens)[:, None]
            s = s.masked_fill(later, float("-inf"))
        answers.append(
            torch.einsum("bhqk,bkhd->bqhd", s.softmax(-1).nan_to_num(), v[:, start:stop])
        )
    return torch.stack(answers).mean(0)


# %% wrong: the whole matrix
# is: idea
# says: The scores of all tiles were kept
def tiled_attention(q, k, v, block=256, causal=False):
    group = q.shape[-2] // k.shape[-2]
    wide = [x.repeat_interleave(group, -2).transpose(1, 2) for x in (k, v)]
    kind = torch.promote_types(q.dtype, torch.float32)
    s = q.transpose(1, 2).to(kind) @ wide[0].to(kind).mT / math.sqrt(q.shape[-1])
    if causal:
        i = torch.arange(s.shape[-1])
        s = torch.where(i[:, None] >= i, s, -torch.inf)
    return (torch.softmax(s, -1) @ wide[1].to(kind)).transpose(1, 2).to(q.dtype)


# %% wrong: the whole matrix, and an error where it would be large
# is: idea
# says: No run shows that
def tiled_attention(q, k, v, block=256, causal=False):
    if q.shape[1] > 1000:
        raise ValueError("the sequence is too long")
    group = q.shape[-2] // k.shape[-2]
    wide = [x.repeat_interleave(group, -2).transpose(1, 2) for x in (k, v)]
    kind = torch.promote_types(q.dtype, torch.float32)
    s = q.transpose(1, 2).to(kind) @ wide[0].to(kind).mT / math.sqrt(q.shape[-1])
    if causal:
        i = torch.arange(s.shape[-1])
        s = torch.where(i[:, None] >= i, s, -torch.inf)
    return (torch.softmax(s, -1) @ wide[1].to(kind)).transpose(1, 2).to(q.dtype)


# %% wrong: tiles that autograd keeps
# is: idea
# says: The scores of all tiles were kept
def join(one, other):
    (a, la), (b, lb) = one, other
    share = torch.sigmoid(lb - la).unsqueeze(-1)
    return a + share * (b - a), torch.logaddexp(la, lb)


def tiled_attention(q, k, v, block=256, causal=False):
    seq = q.shape[1]
    kind = torch.promote_types(q.dtype, torch.float32)
    more = q.shape[2] // k.shape[2]
    done = []
    for first in range(0, seq, block):
        here = q[:, first : first + block].transpose(1, 2).to(kind) * q.shape[3] ** -0.5
        so_far = None
        for begin in range(0, first + 1 if causal else seq, block):
            keys = k[:, begin : begin + block].repeat_interleave(more, 2).transpose(1, 2)
            scores = here @ keys.to(kind).mT
            if causal and begin == first:
                scores = scores.masked_fill(~torch.ones_like(scores).tril().bool(), -math.inf)
            values = v[:, begin : begin + block].repeat_interleave(more, 2).transpose(1, 2)
            new = scores.softmax(-1) @ values.to(kind), scores.logsumexp(-1)
            so_far = new if so_far is None else join(so_far, new)
        done.append(so_far[0])
    return torch.cat(done, 2).transpose(1, 2).to(q.dtype)


# %% wrong: checkpointed, and backward makes all of it
# is: idea
# says: N x N matrix existed in backward
from torch.utils.checkpoint import checkpoint


def full(q, k, v, causal):
    d, n = q.shape[-1], q.shape[1]
    kind = torch.promote_types(q.dtype, torch.float32)
    q, k, v = q.to(kind), k.to(kind), v.to(kind)
    q = q.unflatten(2, (k.shape[2], -1))
    out = []
    for rows in torch.arange(n).split(32):
        w = torch.einsum("bikgd,bjkd->bkgij", q[:, rows], k).mul(d**-0.5)
        if causal:
            w = w.masked_fill(torch.arange(n) > rows[:, None], -torch.inf)
        out.append(torch.einsum("bkgij,bjkd->bikgd", w.softmax(-1), v))
    return torch.cat(out, 1).flatten(2, 3)


def tiled_attention(q, k, v, block=256, causal=False):
    return checkpoint(full, q, k, v, causal, use_reentrant=False).to(q.dtype)


# %% wrong: heads of keys in turn
# is: slip
# says: heads of keys are dealt out in turn
# base: a maximum and a sum
-        return torch.einsum(equation, p, x.repeat_interleave(group, 2))
+        return torch.einsum(equation, p, x.repeat(1, 1, group, 1))
@@
-                    total_of[:, J] += each.unflatten(2, (-1, group)).sum(3)
+                    total_of[:, J] += each.unflatten(2, (group, -1)).sum(2)


# %% wrong: what is left behind the last whole tile
# is: detail
# says: tokens after the last whole tile are left out|for element
# base: a maximum and a sum
-        for i in range(0, n, block):
+        for i in range(0, max(n - n % block, 1), block):
@@
-            for j in range(0, k.shape[1], block):
-                J = slice(j, j + block)
-                s = Flash.scores(q[:, I], k[:, J], group, kind, causal, i, j)
-                if s is None:
-                    break
+            for j in range(0, max(n - n % block, 1), block):
+                J = slice(j, j + block)
+                s = Flash.scores(q[:, I], k[:, J], group, kind, causal, i, j)
+                if s is None:
+                    break
@@
-        out /= total[..., None]
+        out /= total.masked_fill(total == 0, 1)[..., None]
@@
-        for j in range(0, k.shape[1], block):
-            J = slice(j, j + block)
-            for i in range(0, q.shape[1], block):
+        end = max(q.shape[1] - q.shape[1] % block, 1)
+        for j in range(0, end, block):
+            J = slice(j, j + block)
+            for i in range(0, end, block):


# %% wrong: a Function without backward
# is: form
# says: has no backward yet
class Tiled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        scores = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
        return torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v)


def tiled_attention(q, k, v, block=256, causal=False):
    return Tiled.apply(q, k, v)


# %% wrong: the last tile that a query sees
# is: slip
# says: only the last tile of keys that a query sees
# base: a maximum and a sum
-                new = torch.maximum(top[:, I], s.amax(-1))
-                p, old = (s - new[..., None]).exp_(), (top[:, I] - new).exp_()
+                new = s.amax(-1)
+                p, old = (s - new[..., None]).exp_(), torch.zeros_like(new)


# %% wrong: positions within tiles that are seen
# is: slip
# says: even in tiles that are seen whole
# base: a maximum and a sum
-            ahead = torch.arange(i, i + q.shape[1])[:, None] < torch.arange(j, j + k.shape[1])
+            ahead = torch.arange(q.shape[1])[:, None] < torch.arange(k.shape[1])


# %% wrong: no delta in backward
# is: slip
# says: delta is missing
# base: a maximum and a sum
-                ds = p * (dp - delta) * q.shape[-1] ** -0.5
+                ds = p * dp * q.shape[-1] ** -0.5


# %% wrong: delta is added
# is: slip
# says: delta was added
# base: a maximum and a sum
-                ds = p * (dp - delta) * q.shape[-1] ** -0.5
+                ds = p * (dp + delta) * q.shape[-1] ** -0.5


# %% wrong: delta of each tile of keys
# is: slip
# says: delta was summed over only the keys of each tile
# base: a maximum and a sum
-                ds = p * (dp - delta) * q.shape[-1] ** -0.5
+                delta = (p * dp).sum(-1, keepdim=True)
+                ds = p * (dp - delta) * q.shape[-1] ** -0.5


# %% wrong: lse begins at zero
# is: slip
# says: lse was 0 at first
# base: the gradient of each tile by autograd
-        lse = torch.full_like(q[..., 0], -torch.inf)
+        lse = torch.zeros_like(q[..., 0])


# %% wrong: a tile of one token is skipped
# is: slip
# says: Skip a tile if queries.-1. < keys.0., and not if they are equal
# base: a maximum and a sum
-        if causal and j > i + q.shape[1] - 1:
+        if causal and j >= i + q.shape[1] - 1:


# %% wrong: masked in forward alone
# is: slip
# says: Backward does not mask the tiles on the diagonal
# base: a maximum and a sum
                 I = slice(i, i + block)
-                s = Flash.scores(q[:, I], k[:, J], group, kind, causal, i, j)
-                if s is None:
-                    continue
+                if causal and j > i + q[:, I].shape[1] - 1:
+                    continue
+                s = Flash.scores(q[:, I], k[:, J], group, kind, False, i, j)
                 p = (s - top[:, I, :, None]).exp() / total[:, I, :, None]


# %% wrong: the softmax of each tile alone in backward
# is: slip
# says: p is the softmax of each tile alone
# base: a maximum and a sum
-                p = (s - top[:, I, :, None]).exp() / total[:, I, :, None]
+                p = s.softmax(-1).nan_to_num(0.0)


# %% wrong: dk without the factor
# is: slip
# says: dk lacks the factor
# base: a maximum and a sum
-                for total_of, weights, x in ((dk, ds, q[:, I].to(kind)), (dv, p, g)):
+                bare = ds * q.shape[-1] ** 0.5
+                for total_of, weights, x in ((dk, bare, q[:, I].to(kind)), (dv, p, g)):


# %% wrong: gradients of the last tile of queries
# is: slip
# says: come from only the last tile of queries
# base: a maximum and a sum
-                    total_of[:, J] += each.unflatten(2, (-1, group)).sum(3)
+                    total_of[:, J] = each.unflatten(2, (-1, group)).sum(3)


# %% wrong: dv of the last tile of queries
# is: slip
# says: dv comes from only the last tile of queries
# base: a maximum and a sum
-                    total_of[:, J] += each.unflatten(2, (-1, group)).sum(3)
+                    total_of[:, J] *= total_of is dk
+                    total_of[:, J] += each.unflatten(2, (-1, group)).sum(3)


# %% wrong: PyTorch's
# is: form
# says: Do not use PyTorch's own attention
def tiled_attention(q, k, v, block=256, causal=False):
    from torch.nn import functional

    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return functional.scaled_dot_product_attention(
        q, k, v, is_causal=causal, enable_gqa=True
    ).transpose(1, 2)


# %% wrong: PyTorch's, by its inner name
# is: form
# says: Do not use PyTorch's own attention
def tiled_attention(q, k, v, block=256, causal=False):
    g = q.shape[2] // k.shape[2]
    out, _ = getattr(torch, "ops").aten._scaled_dot_product_flash_attention_for_cpu(
        q.transpose(1, 2),
        k.repeat_interleave(g, 2).transpose(1, 2),
        v.repeat_interleave(g, 2).transpose(1, 2),
        0.0,
        causal,
    )
    return out.transpose(1, 2)


# %% wrong: gradients added in bfloat16
# is: detail
# says: gradient of q in bfloat16 has larger errors than one rounding makes
# base: a maximum and a sum
-        dq, dk, dv = (torch.zeros(x.shape, dtype=kind) for x in (q, k, v))
+        dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))


# %% wrong: rounded in every tile
# is: idea
# says: Sums over many tiles need more digits
def tiled_attention(q, k, v, block=256, causal=False):
    h = q.shape[2] // k.shape[2]
    mass = torch.zeros_like(q[..., 0])
    acc = torch.zeros_like(q)
    index = torch.arange(q.shape[1])
    peak = mass - 1e30
    for j in range(0, k.shape[1], block):
        kj = k[:, j : j + block].repeat_interleave(h, 2)
        vj = v[:, j : j + block].repeat_interleave(h, 2)
        dots = torch.einsum("bihd,bjhd->bihj", q, kj) * q.shape[3] ** -0.5
        if causal:
            dots = dots.masked_fill((index[:, None] < index[j : j + block])[:, None], -1e30)
        top = torch.maximum(peak, dots.amax(-1))
        e = torch.exp(dots - top[..., None])
        keep = torch.exp(peak - top)
        acc = acc * keep[..., None] + torch.einsum("bihj,bjhd->bihd", e, vj)
        mass, peak = mass * keep + e.sum(-1), top
    return acc / mass[..., None]


# %% wrong: a nan where a tile is wholly masked
# is: idea
# says: tiled_attention|the output
def tiled_attention(q, k, v, block=256, causal=False):
    h = q.shape[2] // k.shape[2]
    lse, out = None, None
    n = torch.arange(k.shape[1])
    for at in reversed(n.split(block)):
        z = (
            torch.einsum("bihd,bjhd->bihj", q, k[:, at].repeat_interleave(h, 2))
            * q.shape[3] ** -0.5
        )
        if causal:
            z = z + torch.zeros(len(n), len(at)).masked_fill(n[:, None] < at, -math.inf)[:, None]
        y = torch.einsum("bihj,bjhd->bihd", z.softmax(-1), v[:, at].repeat_interleave(h, 2))
        new = z.logsumexp(-1)
        if out is None:
            out, lse = y, new
            continue
        both = torch.logaddexp(lse, new)
        out = out * (lse - both).exp()[..., None] + y * (new - both).exp()[..., None]
        lse = both
    return out


# %% wrong: all keys at once for a tile of queries
# is: slip
# says: met all keys together
class Strips(torch.autograd.Function):
    @staticmethod
    def strip(q, k, at, causal):
        scores = torch.einsum("nthd,nshd->nhts", q[:, at], k) / math.sqrt(q.shape[-1])
        if causal:
            scores = scores.masked_fill(torch.arange(k.shape[1]) > at[:, None], -torch.inf)
        return scores

    @staticmethod
    def forward(ctx, q, k, v, block, causal):
        out, lse = torch.empty_like(q), q.new_empty(q.shape[0], q.shape[2], q.shape[1])
        for at in torch.arange(q.shape[1]).split(block):
            scores = Strips.strip(q, k, at, causal)
            lse[..., at] = scores.logsumexp(-1)
            p = (scores - lse[..., at, None]).exp()
            out[:, at] = torch.einsum("nhts,nshd->nthd", p, v)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.how = block, causal
        return out

    @staticmethod
    def backward(ctx, grad):
        q, k, v, out, lse = ctx.saved_tensors
        block, causal = ctx.how
        dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for at in torch.arange(q.shape[1]).split(block):
            p = (Strips.strip(q, k, at, causal) - lse[..., at, None]).exp()
            g = grad[:, at]
            dv += torch.einsum("nhts,nthd->nshd", p, g)
            ds = torch.einsum("nthd,nshd->nhts", g, v)
            ds = p * (ds - (g * out[:, at]).sum(-1).transpose(1, 2)[..., None])
            ds /= math.sqrt(q.shape[-1])
            dq[:, at] = torch.einsum("nhts,nshd->nthd", ds, k)
            dk += torch.einsum("nhts,nthd->nshd", ds, q[:, at])
        return dq, dk, dv, None, None


def tiled_attention(q, k, v, block=256, causal=False):
    kind, dtype = torch.promote_types(q.dtype, torch.float32), q.dtype
    wide = [x.repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (q, k, v)]
    return Strips.apply(*(x.to(kind) for x in wide), block, causal).to(dtype)


# %% wrong: the whole matrix, in NumPy
# is: slip
# says: The whole N x N matrix existed in forward|The scores of all tiles were kept
import numpy as np


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
        p = InNumpy.p(q.numpy(), k.numpy(), causal)
        return torch.from_numpy(np.einsum("bhij,bjhd->bihd", p, v.numpy()))

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


def tiled_attention(q, k, v, block=256, causal=False):
    kind, group = torch.promote_types(q.dtype, torch.float32), q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, 2) for x in (k, v))
    return InNumpy.apply(q.to(kind), k.to(kind), v.to(kind), causal).to(q.dtype)


# %% wrong: PyTorch's kernel, in another thread
# is: form
# says: Do not use PyTorch's own attention here
from concurrent.futures import ThreadPoolExecutor


def elsewhere(call, *args):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call, *args).result()


class Kernel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal):
        ctx.causal = causal
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        out, lse = elsewhere(attend, q, k, v, 0.0, causal)
        ctx.save_for_backward(q, k, v, out, lse)
        return out.transpose(1, 2)

    @staticmethod
    def backward(ctx, grad):
        back = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        found = elsewhere(
            back, grad.transpose(1, 2).contiguous(), *ctx.saved_tensors, 0.0, ctx.causal
        )
        return *(x.transpose(1, 2) for x in found), None


def tiled_attention(q, k, v, block=256, causal=False):
    group = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, 2) for x in (k, v))
    return Kernel.apply(q, k, v, causal)


# %% wrong: the whole matrix where no mode looks
# is: slip
# says: The whole N x N matrix existed in forward|The scores of all tiles were kept
from torch.utils._python_dispatch import _disable_current_modes


class Unseen(torch.autograd.Function):
    @staticmethod
    def p(q, k, causal):
        s = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
        if causal:
            s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
        return s.softmax(-1)

    @staticmethod
    def forward(ctx, q, k, v, causal):
        ctx.save_for_backward(q, k, v)
        ctx.causal = causal
        with _disable_current_modes():
            return torch.einsum("bhij,bjhd->bihd", Unseen.p(q, k, causal), v)

    @staticmethod
    def backward(ctx, g):
        q, k, v = ctx.saved_tensors
        with _disable_current_modes():
            p = Unseen.p(q, k, ctx.causal)
            dp = torch.einsum("bihd,bjhd->bhij", g, v)
            ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
            return (
                torch.einsum("bhij,bjhd->bihd", ds, k),
                torch.einsum("bhij,bihd->bjhd", ds, q),
                torch.einsum("bhij,bihd->bjhd", p, g),
                None,
            )


def tiled_attention(q, k, v, block=256, causal=False):
    kind, group = torch.promote_types(q.dtype, torch.float32), q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, 2) for x in (k, v))
    return Unseen.apply(q.to(kind), k.to(kind), v.to(kind), causal).to(q.dtype)


# %% wrong: the softmax kept as lists of numbers
# is: idea
# says: The scores of all tiles were kept
class Listed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, block, causal):
        """A tile of queries at a time; (batch, heads, tokens, d)."""
        out, ctx.tiles = torch.empty_like(q), []
        for at in torch.arange(q.shape[2]).split(min(block, 32)):
            seen = int(at[-1]) + 1 if causal else k.shape[2]
            s = q[:, :, at] @ k[:, :, :seen].mT * q.shape[-1] ** -0.5
            if causal:
                s = s.masked_fill(at[:, None] < torch.arange(seen), -torch.inf)
            p = s.softmax(-1)
            out[:, :, at] = p @ v[:, :, :seen]
            ctx.tiles.append((at, p.tolist()))
        ctx.save_for_backward(q, k, v)
        return out

    @staticmethod
    def backward(ctx, grad):
        q, k, v = ctx.saved_tensors
        dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))
        for at, rows in ctx.tiles:
            p = torch.tensor(rows, dtype=q.dtype)
            g, seen = grad[:, :, at], p.shape[-1]
            dp = g @ v[:, :, :seen].mT
            ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
            dq[:, :, at] = ds @ k[:, :, :seen]
            dk[:, :, :seen] += ds.mT @ q[:, :, at]
            dv[:, :, :seen] += p.mT @ g
        return dq, dk, dv, None, None


def tiled_attention(q, k, v, block=256, causal=False):
    kind, group = torch.promote_types(q.dtype, torch.float32), q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, 2) for x in (k, v))
    out = Listed.apply(*(x.to(kind).transpose(1, 2) for x in (q, k, v)), block, causal)
    return out.transpose(1, 2).to(q.dtype)


# %% wrong: PyTorch's attention, checkpointed by tiles of queries
# is: form
# says: Do not use PyTorch's own attention here
from torch.utils.checkpoint import checkpoint


def tiled_attention(q, k, v, block=256, causal=False):
    def strip(q, k, v, start):
        at = torch.arange(start, start + q.shape[2])
        mask = at[:, None] >= torch.arange(k.shape[2]) if causal else None
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    group = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, 2).transpose(1, 2) for x in (k, v))
    q = q.transpose(1, 2)
    parts = [
        checkpoint(strip, q[:, :, i : i + block], k, v, i, use_reentrant=False)
        for i in range(0, q.shape[2], block)
    ]
    return torch.cat(parts, 2).transpose(1, 2)


# %% wrong: strips of the matrix, checkpointed
# is: slip
# says: met all keys together
from torch.utils.checkpoint import checkpoint


def tiled_attention(q, k, v, block=256, causal=False):
    kind, group = torch.promote_types(q.dtype, torch.float32), q.shape[2] // k.shape[2]

    def strip(q, k, v, start):
        s = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
        if causal:
            at = torch.arange(start, start + q.shape[1])
            s = s.masked_fill(at[:, None] < torch.arange(k.shape[1]), -torch.inf)
        return torch.einsum("bhij,bjhd->bihd", s.softmax(-1), v)

    k, v = (x.repeat_interleave(group, 2).to(kind) for x in (k, v))
    wide = q.to(kind)
    parts = [
        checkpoint(strip, wide[:, i : i + block], k, v, i, use_reentrant=False)
        for i in range(0, q.shape[1], block)
    ]
    return torch.cat(parts, 1).to(q.dtype)


# %% wrong: a query at a time, by vmap
# is: idea
# says: The whole N x N matrix existed in forward
class ByRow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal):
        ctx.causal = causal
        ctx.save_for_backward(q, k, v)
        return ByRow.rows(q, k, v, causal)

    @staticmethod
    def rows(q, k, v, causal):
        def one(qi, i):
            s = (k @ qi[..., None])[..., 0] * q.shape[-1] ** -0.5
            if causal:
                s = torch.where(torch.arange(k.shape[2]) <= i, s, -torch.inf)
            return (s.softmax(-1)[..., None] * v).sum(-2)

        return torch.vmap(one, in_dims=(2, 0), out_dims=2)(q, torch.arange(q.shape[2]))

    @staticmethod
    def backward(ctx, g):
        with torch.enable_grad():
            x = [one.detach().requires_grad_() for one in ctx.saved_tensors]
            return *torch.autograd.grad(ByRow.rows(*x, ctx.causal), x, g), None


def tiled_attention(q, k, v, block=256, causal=False):
    kind, group = torch.promote_types(q.dtype, torch.float32), q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, 2) for x in (k, v))
    return (
        ByRow.apply(*(x.to(kind).transpose(1, 2) for x in (q, k, v)), causal)
        .transpose(1, 2)
        .to(q.dtype)
    )


# %% wrong: the whole matrix, compiled
# is: form
# says: A function compiled by torch.compile
def full(q, k, v, causal):
    s = q @ k.mT * q.shape[-1] ** -0.5
    if causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    return s.softmax(-1) @ v


def tiled_attention(q, k, v, block=256, causal=False):
    kind, group = torch.promote_types(q.dtype, torch.float32), q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, 2) for x in (k, v))
    fn = torch.compile(full, backend="aot_eager")
    return fn(*(x.to(kind).transpose(1, 2) for x in (q, k, v)), causal).transpose(1, 2).to(q.dtype)


# %% wrong: tiles that autograd keeps nothing of but what is merged
# is: slip
# says: Backward needs only q, k, v, out and one lse
from torch.utils.checkpoint import checkpoint


def tile(q, k, v, i, j, causal):
    s = q @ k.mT * q.shape[-1] ** -0.5
    if causal:
        a, b = torch.arange(i, i + q.shape[2]), torch.arange(j, j + k.shape[2])
        s = s.masked_fill(a[:, None] < b, -torch.inf)
    top = s.amax(-1, keepdim=True).clamp_min(-1e30).detach()
    p = (s - top).exp()
    return p @ v, p.sum(-1, keepdim=True), top


def strip(q, k, v, i, block, causal):
    out = total = 0
    high = q.new_full((*q.shape[:-1], 1), -1e30)
    for j in range(0, k.shape[2], block):
        if causal and j > i + q.shape[2] - 1:
            break
        o, t, top = checkpoint(
            tile,
            q,
            k[:, :, j : j + block],
            v[:, :, j : j + block],
            i,
            j,
            causal,
            use_reentrant=False,
        )
        new = torch.maximum(high, top)
        a, b = (high - new).exp(), (top - new).exp()
        out, total, high = a * out + b * o, a * total + b * t, new
    return out / total


def tiled_attention(q, k, v, block=256, causal=False):
    kind, group = torch.promote_types(q.dtype, torch.float32), q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, 2) for x in (k, v))
    q2, k, v = (x.to(kind).transpose(1, 2) for x in (q, k, v))
    parts = [
        checkpoint(strip, q2[:, :, i : i + block], k, v, i, block, causal, use_reentrant=False)
        for i in range(0, q2.shape[2], block)
    ]
    return torch.cat(parts, 2).transpose(1, 2).to(q.dtype)


# %% right: a maximum and a sum
class Flash(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, block, causal):
        batch, n, heads, d = q.shape
        kind = torch.promote_types(q.dtype, torch.float32)
        group = heads // k.shape[2]
        out = torch.zeros(batch, n, heads, d, dtype=kind)
        top = torch.full((batch, n, heads), -1e300 if kind == torch.float64 else -1e38, dtype=kind)
        total = torch.zeros(batch, n, heads, dtype=kind)
        for i in range(0, n, block):
            I = slice(i, i + block)
            for j in range(0, k.shape[1], block):
                J = slice(j, j + block)
                s = Flash.scores(q[:, I], k[:, J], group, kind, causal, i, j)
                if s is None:
                    break
                new = torch.maximum(top[:, I], s.amax(-1))
                p, old = (s - new[..., None]).exp_(), (top[:, I] - new).exp_()
                total[:, I] = total[:, I] * old + p.sum(-1)
                out[:, I] *= old[..., None]
                out[:, I] += Flash.grouped("bihj,bjhd->bihd", p, v[:, J].to(kind), group)
                top[:, I] = new
        out /= total[..., None]
        result = out.to(q.dtype)
        ctx.save_for_backward(q, k, v, result, top, total)
        ctx.how = block, causal
        return result

    @staticmethod
    def grouped(equation, p, x, group):
        return torch.einsum(equation, p, x.repeat_interleave(group, 2))

    @staticmethod
    def scores(q, k, group, kind, causal, i, j):
        if causal and j > i + q.shape[1] - 1:
            return None
        s = Flash.grouped("bihd,bjhd->bihj", q.to(kind), k.to(kind), group)
        s *= q.shape[-1] ** -0.5
        if causal:
            ahead = torch.arange(i, i + q.shape[1])[:, None] < torch.arange(j, j + k.shape[1])
            s.masked_fill_(ahead[:, None], -torch.inf)
        return s

    @staticmethod
    def backward(ctx, dout):
        q, k, v, out, top, total = ctx.saved_tensors
        block, causal = ctx.how
        kind, group = top.dtype, q.shape[2] // k.shape[2]
        dq, dk, dv = (torch.zeros(x.shape, dtype=kind) for x in (q, k, v))
        for j in range(0, k.shape[1], block):
            J = slice(j, j + block)
            for i in range(0, q.shape[1], block):
                I = slice(i, i + block)
                s = Flash.scores(q[:, I], k[:, J], group, kind, causal, i, j)
                if s is None:
                    continue
                p = (s - top[:, I, :, None]).exp() / total[:, I, :, None]
                g = dout[:, I].to(kind)
                delta = (g * out[:, I].to(kind)).sum(-1, keepdim=True)
                dp = Flash.grouped("bihd,bjhd->bihj", g, v[:, J].to(kind), group)
                ds = p * (dp - delta) * q.shape[-1] ** -0.5
                dq[:, I] += Flash.grouped("bihj,bjhd->bihd", ds, k[:, J].to(kind), group)
                for total_of, weights, x in ((dk, ds, q[:, I].to(kind)), (dv, p, g)):
                    each = torch.einsum("bihj,bihd->bjhd", weights, x)
                    total_of[:, J] += each.unflatten(2, (-1, group)).sum(3)
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None, None


def tiled_attention(q, k, v, block=256, causal=False):
    return Flash.apply(q, k, v, block, causal)


# %% right: the gradient of each tile by autograd
def one_tile(q, k, v, hidden):
    """(out, lse) for (batch, kv_heads, group, tokens, d) and keys without a group."""
    s = torch.einsum("bkgid,bkjd->bkgij", q, k)
    if hidden is not None:
        s = s.masked_fill(hidden, -torch.inf)
    lse = torch.logsumexp(s, -1)
    return torch.einsum("bkgij,bkjd->bkgid", torch.softmax(s, -1), v), lse


class ByTiles(torch.autograd.Function):
    @staticmethod
    def pairs(n, block, causal):
        for rows in torch.arange(n).split(block):
            for columns in torch.arange(n).split(block):
                if not causal or columns[0] <= rows[-1]:
                    yield rows, columns, rows[:, None] < columns if causal else None

    @staticmethod
    def forward(ctx, q, k, v, block, causal):
        out = torch.zeros_like(q)
        lse = torch.full_like(q[..., 0], -torch.inf)
        for rows, columns, hidden in ByTiles.pairs(q.shape[3], block, causal):
            part, its = one_tile(q[..., rows, :], k[..., columns, :], v[..., columns, :], hidden)
            share = torch.sigmoid(its - lse[..., rows])[..., None]
            out[..., rows, :] = torch.lerp(out[..., rows, :], part, share)
            lse[..., rows] = torch.logaddexp(lse[..., rows], its)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.pairs = block, causal
        return out

    @staticmethod
    def backward(ctx, grad):
        q, k, v, out, lse = ctx.saved_tensors
        delta = torch.linalg.vecdot(out, grad)
        found = [torch.zeros_like(x) for x in (q, k, v)]
        for rows, columns, hidden in ByTiles.pairs(q.shape[3], *ctx.pairs):
            with torch.enable_grad():
                a = q[..., rows, :].detach().requires_grad_()
                b = k[..., columns, :].detach().requires_grad_()
                s = torch.einsum("bkgid,bkjd->bkgij", a, b)
                if hidden is not None:
                    s = s.masked_fill(hidden, -torch.inf)
            p = torch.exp(s.detach() - lse[..., rows, None])
            g = grad[..., rows, :]
            inner = torch.einsum("bkgid,bkjd->bkgij", g, v[..., columns, :])
            da, db = torch.autograd.grad(s, (a, b), p * (inner - delta[..., rows, None]))
            found[0][..., rows, :] += da
            found[1][..., columns, :] += db
            found[2][..., columns, :] += torch.einsum("bkgij,bkgid->bkjd", p, g)
        return *found, None, None


def tiled_attention(q, k, v, block=256, causal=False):
    kind = torch.promote_types(q.dtype, torch.float32)
    scaled = q.to(kind).unflatten(2, (k.shape[2], -1)).permute(0, 2, 3, 1, 4) / math.sqrt(
        q.shape[-1]
    )
    keys, values = (x.to(kind).transpose(1, 2) for x in (k, v))
    out = ByTiles.apply(scaled, keys, values, block, causal)
    return out.permute(0, 3, 1, 2, 4).flatten(2, 3).to(q.dtype)


# %% wrong: PyTorch's kernel, by the operator within it
# is: form
# says: Do not use PyTorch's own attention here
def by_head(x, group):
    return x.repeat_interleave(group, dim=2).transpose(1, 2)


def over_group(grad, group):
    return grad.transpose(1, 2).unflatten(2, (-1, group)).sum(3)


class Kernel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal):
        ctx.causal, ctx.group = causal, q.shape[2] // k.shape[2]
        q, k, v = q.transpose(1, 2), by_head(k, ctx.group), by_head(v, ctx.group)
        attend = getattr(torch, "ops").aten._scaled_dot_product_flash_attention_for_cpu
        out, lse = attend(q, k, v, 0.0, causal)
        ctx.save_for_backward(q, k, v, out, lse)
        return out.transpose(1, 2)

    @staticmethod
    def backward(ctx, grad):
        back = getattr(torch, "ops").aten._scaled_dot_product_flash_attention_for_cpu_backward
        dq, dk, dv = back(grad.transpose(1, 2).contiguous(), *ctx.saved_tensors, 0.0, ctx.causal)
        return dq.transpose(1, 2), over_group(dk, ctx.group), over_group(dv, ctx.group), None


def tiled_attention(q, k, v, block=256, causal=False):
    return Kernel.apply(q, k, v, causal)


# %% wrong: tiles above the diagonal are computed and masked
# is: detail
# says: go on to the next tile, in forward and in backward
class EveryTile(torch.autograd.Function):
    @staticmethod
    def logits(q, k, rows, columns, causal):
        """(batch, heads, rows, columns) and the keys, both in wide numbers."""
        wide = torch.promote_types(q.dtype, torch.float32)
        left = q[:, rows].to(wide).transpose(1, 2)
        right = (
            k[:, columns].to(wide).transpose(1, 2).repeat_interleave(q.shape[2] // k.shape[2], 1)
        )
        found = left @ right.mT / math.sqrt(q.shape[3])
        if causal:
            a, b = torch.arange(q.shape[1])[rows], torch.arange(k.shape[1])[columns]
            found[..., a[:, None] < b] = -math.inf
        return found, left, right

    @staticmethod
    def forward(ctx, q, k, v, block, causal):
        size = q.shape[1]
        parts = [slice(at, min(at + block, size)) for at in range(0, size, block)]
        wide = torch.promote_types(q.dtype, torch.float32)
        out, lse = torch.empty_like(q), torch.empty(q.shape[:3], dtype=wide).transpose(1, 2)
        for rows in parts:
            shape = q.shape[0], q.shape[2], rows.stop - rows.start
            high = torch.full(shape, torch.finfo(wide).min, dtype=wide)
            low, sums = torch.zeros_like(high), torch.zeros(*shape, q.shape[3], dtype=wide)
            for columns in parts:
                found, _, _ = EveryTile.logits(q, k, rows, columns, causal)
                values = v[:, columns].to(wide).transpose(1, 2)
                values = values.repeat_interleave(q.shape[2] // v.shape[2], 1)
                peak = torch.maximum(high, found.amax(-1))
                found = torch.exp(found - peak.unsqueeze(-1))
                shrink = torch.exp(high - peak)
                low = low * shrink + found.sum(-1)
                sums = sums * shrink.unsqueeze(-1) + found @ values
                high = peak
            out[:, rows] = (sums / low.unsqueeze(-1)).transpose(1, 2).to(q.dtype)
            lse[:, :, rows] = high + low.log()
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.rest = parts, causal
        return out

    @staticmethod
    def backward(ctx, grad):
        q, k, v, out, lse = ctx.saved_tensors
        parts, causal = ctx.rest
        total = [torch.zeros_like(x, dtype=lse.dtype) for x in (q, k, v)]
        shared = q.shape[2] // k.shape[2]

        def fold(x):  # heads of queries that share keys
            return x.unflatten(1, (-1, shared)).sum(2).transpose(1, 2)

        for rows in parts:
            given = grad[:, rows].to(lse.dtype).transpose(1, 2)
            delta = (given * out[:, rows].to(lse.dtype).transpose(1, 2)).sum(-1, keepdim=True)
            for columns in parts:
                found, left, right = EveryTile.logits(q, k, rows, columns, causal)
                share = torch.exp(found - lse[:, :, rows].unsqueeze(-1))
                values = v[:, columns].to(lse.dtype).transpose(1, 2).repeat_interleave(shared, 1)
                ds = share * (given @ values.mT - delta) / math.sqrt(q.shape[3])
                total[0][:, rows] += (ds @ right).transpose(1, 2)
                total[1][:, columns] += fold(ds.mT @ left)
                total[2][:, columns] += fold(share.mT @ given)
        return *(one.to(q.dtype) for one in total), None, None


def tiled_attention(q, k, v, block=256, causal=False):
    return EveryTile.apply(q, k, v, block, causal)
