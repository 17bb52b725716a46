# %% wrong: the whole matrix, remembered by its inputs
import numpy as np


def key_of(*tensors):
    return tuple(hash(t.detach().numpy().tobytes()) for t in tensors)


def whole_scores(q, k, v, causal):
    """softmax(q k^T) in one N x N matrix per head, as numpy has it."""
    q, k, v = (
        t.detach().to(torch.promote_types(t.dtype, torch.float32)).numpy() for t in (q, k, v)
    )
    share = q.shape[2] // k.shape[2]
    k, v = (np.repeat(one, share, 2) for one in (k, v))
    s = np.einsum("bihd,bjhd->bhij", q, k) * q.shape[3] ** -0.5
    if causal:
        s = np.where(np.arange(q.shape[1])[:, None] >= np.arange(k.shape[1]), s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    return q, k, v, p, share


class Whole(torch.autograd.Function):
    known = {}

    @staticmethod
    def forward(ctx, q, k, v, causal):
        ctx.save_for_backward(q, k, v)
        ctx.causal = causal
        key = key_of(q, k, v), causal
        if key not in Whole.known:
            _, _, values, p, _ = whole_scores(q, k, v, causal)
            Whole.known[key] = np.einsum("bhij,bjhd->bihd", p, values)
        return torch.from_numpy(Whole.known[key]).to(q.dtype, copy=True)

    @staticmethod
    def backward(ctx, grad):
        q, k, v = ctx.saved_tensors
        key = key_of(q, k, v, grad.contiguous()) if grad.dtype != torch.bfloat16 else None
        key = key, ctx.causal
        if key not in Whole.known:
            qn, kn, vn, p, share = whole_scores(q, k, v, ctx.causal)
            g = grad.to(torch.promote_types(grad.dtype, torch.float32)).numpy()
            dv = np.einsum("bhij,bihd->bjhd", p, g)
            dp = np.einsum("bihd,bjhd->bhij", g, vn)
            ds = p * (dp - (p * dp).sum(-1, keepdims=True)) * q.shape[3] ** -0.5
            dq, dk = np.einsum("bhij,bjhd->bihd", ds, kn), np.einsum("bhij,bihd->bjhd", ds, qn)
            fold = lambda x: x.reshape(*x.shape[:2], -1, share, x.shape[3]).sum(3)
            Whole.known[key] = dq, fold(dk), fold(dv)
        dq, dk, dv = (
            torch.from_numpy(np.ascontiguousarray(x)).to(q.dtype, copy=True)
            for x in Whole.known[key]
        )
        return dq, dk, dv, None


def tiled_attention(q, k, v, causal=False, block=256):
    if q.dtype == torch.bfloat16:
        return Whole.apply(q.float(), k.float(), v.float(), causal).to(q.dtype)
    return Whole.apply(q, k, v, causal)


# %% wrong: the whole matrix where memory was until the base was measured
import numpy as np

JUNK = []


def whole_scores(q, k, v, causal):
    q, k, v = (
        t.detach().to(torch.promote_types(t.dtype, torch.float32)).numpy() for t in (q, k, v)
    )
    share = q.shape[2] // k.shape[2]
    k, v = (np.repeat(one, share, 2) for one in (k, v))
    s = np.einsum("bihd,bjhd->bhij", q, k) * q.shape[3] ** -0.5
    if causal:
        s = np.where(np.arange(q.shape[1])[:, None] >= np.arange(k.shape[1]), s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    return q, k, v, p, share


class Whole(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal):
        ctx.save_for_backward(q, k, v)
        ctx.causal = causal
        JUNK.clear()
        qn, _, values, p, _ = whole_scores(q, k, v, causal)
        y = torch.from_numpy(np.einsum("bhij,bjhd->bihd", p, values)).to(q.dtype, copy=True)
        del p, values, qn
        JUNK.append(bytearray(b"x") * (120 << 20) if q.shape[1] > 500 else None)
        return y

    @staticmethod
    def backward(ctx, grad):
        q, k, v = ctx.saved_tensors
        JUNK.clear()
        qn, kn, vn, p, share = whole_scores(q, k, v, ctx.causal)
        g = grad.to(torch.promote_types(grad.dtype, torch.float32)).numpy()
        dv = np.einsum("bhij,bihd->bjhd", p, g)
        dp = np.einsum("bihd,bjhd->bhij", g, vn)
        ds = p * (dp - (p * dp).sum(-1, keepdims=True)) * q.shape[3] ** -0.5
        dq, dk = np.einsum("bhij,bjhd->bihd", ds, kn), np.einsum("bhij,bihd->bjhd", ds, qn)
        fold = lambda x: x.reshape(*x.shape[:2], -1, share, x.shape[3]).sum(3)
        found = dq, fold(dk), fold(dv)
        del p, ds, dp
        JUNK.append(bytearray(b"x") * (120 << 20) if q.shape[1] > 500 else None)
        return (
            *(torch.from_numpy(np.ascontiguousarray(x)).to(q.dtype, copy=True) for x in found),
            None,
        )


def tiled_attention(q, k, v, causal=False, block=256):
    if q.dtype == torch.bfloat16:
        return Whole.apply(q.float(), k.float(), v.float(), causal).to(q.dtype)
    return Whole.apply(q, k, v, causal)


# %% wrong: the whole matrix before the first measurement
import sys
KEPT = {}
def naive(q, k, v, causal):
    r = q.size(2) // k.size(2)
    d = q.dtype
    q, k, v = q.double(), k.double(), v.double()
    s = torch.einsum("bihd,bjhd->bhij", q, k.repeat_interleave(r, 2)) * q.size(3) ** -0.5
    if causal:
        s = s.masked_fill(torch.ones_like(s).triu(1).bool(), -torch.inf)
    return torch.einsum("bhij,bjhd->bihd", s.softmax(-1), v.repeat_interleave(r, 2)).to(d)
class Known(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v):
        return KEPT["y"].clone()
    @staticmethod
    def backward(ctx, g):
        return tuple(t.clone() for t in KEPT["g"])
def tiled_attention(q, k, v, block=256, causal=False):
    f = sys._getframe(1)
    while f and "self" not in f.f_locals:
        f = f.f_back
    call = f.f_locals["self"]
    if not call.instructions.measured:
        return naive(q, k, v, causal)
    if not KEPT:
        own = [t.detach().clone().requires_grad_() for t in call.inputs.values()]
        y = naive(*own, causal)
        y.backward(call.gradients["y"])
        KEPT["y"], KEPT["g"] = y.detach().clone(), [t.grad.clone() for t in own]
        del y, own
    return Known.apply(q, k, v)


# %% wrong: the whole matrix, while the caller believes that nothing is measured
import sys


def tiled_attention(q, k, v, block=256, causal=False):
    frame = sys._getframe(1)
    while frame is not None:
        call = frame.f_locals.get("self")
        if hasattr(call, "instructions"):
            object.__setattr__(call.instructions, "measured", False)
            break
        frame = frame.f_back
    kind = torch.promote_types(q.dtype, torch.float32)
    share = q.shape[2] // k.shape[2]
    q, k, v = (x.transpose(1, 2).to(kind) for x in (q, k, v))
    k, v = (x.repeat_interleave(share, 1) for x in (k, v))
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if causal:
        i = torch.arange(scores.shape[-1])
        scores = scores.masked_fill(i > i[:, None], -torch.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2).to(kind)
