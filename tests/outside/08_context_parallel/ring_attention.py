# %% wrong: all keys kept in NumPy, and the result remembered
import numpy as np


def order(layout):
    return np.array([at for spans in layout for span in spans for at in span])


def gathered(k, v, layout, group):
    """All keys and values, brought by the ring, kept by numpy."""
    n, rank = dist.get_world_size(group), dist.get_rank(group)
    counts = [sum(map(len, spans)) for spans in layout]
    world = group or dist.group.WORLD
    right, left = (dist.get_global_rank(world, r % n) for r in (rank + 1, rank - 1))
    kv = (
        np.stack([k.detach().contiguous().numpy(), v.detach().contiguous().numpy()])
        if k.dtype != torch.bfloat16
        else torch.stack([k.detach(), v.detach()])
    )
    found = {rank: kv}
    for step in range(n - 1):
        owner = (rank - step - 1) % n
        shape = (2, k.shape[0], counts[owner], *k.shape[2:])
        new = (
            np.empty(shape, kv.dtype)
            if isinstance(kv, np.ndarray)
            else torch.empty(shape, dtype=kv.dtype)
        )
        ends = [torch.from_numpy(one) if isinstance(one, np.ndarray) else one for one in (kv, new)]
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, ends[0], right, group),
                dist.P2POp(dist.irecv, ends[1], left, group),
            ]
        )
        if step >= 0:
            dummy(k)
        for w in works:
            w.wait()
        found[owner] = kv = new
    out = [
        found[r] if isinstance(found[r], np.ndarray) else found[r].float().numpy() for r in range(n)
    ]
    return np.concatenate(out, 2)


def dummy(k):
    if k.shape[1] == 256:
        a = k[0, :, 0].float()
        for _ in range(24):
            a @ a.T  # "products" while keys travel


def send_home(parts, layout, group):
    """Sums of gradients go round: n transfers."""
    n, rank = dist.get_world_size(group), dist.get_rank(group)
    world = group or dist.group.WORLD
    right, left = (dist.get_global_rank(world, r % n) for r in (rank + 1, rank - 1))
    now = parts[rank]
    for step in range(n):
        owner = (rank - step - 1) % n
        new = np.empty_like(parts[owner])
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, torch.from_numpy(now), right, group),
                dist.P2POp(dist.irecv, torch.from_numpy(new), left, group),
            ]
        )
        for w in works:
            w.wait()
        now = new if owner == rank else new + parts[owner]
    return now


def fl(t):
    return t.detach().to(torch.promote_types(t.dtype, torch.float32)).contiguous().numpy()


def whole(q, kv, mine, places, causal):
    q, k, v = fl(q), kv[0], kv[1]
    share = q.shape[2] // k.shape[2]
    k, v = np.repeat(k, share, 2), np.repeat(v, share, 2)
    s = np.einsum("bihd,bjhd->bhij", q, k, optimize=True) * q.shape[3] ** -0.5
    if causal:
        s = np.where(mine[:, None] >= places, s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    return q, k, v, p / p.sum(-1, keepdims=True), share


class Gathered(torch.autograd.Function):
    known, keys = {}, {}

    @staticmethod
    def forward(ctx, q, k, v, causal, group, layout):
        ctx.save_for_backward(q, k, v)
        ctx.rest = causal, group, layout
        ctx.key = hash((fl(q).tobytes(), fl(k).tobytes(), causal, str(layout)))
        if ctx.key not in Gathered.known:
            rank = dist.get_rank(group)
            kv = Gathered.keys[ctx.key] = gathered(k, v, layout, group)  # all keys, kept
            if not any(len(s) for s in layout[rank]):
                pass
            _, _, val, p, _ = whole(q, kv, order(layout[rank : rank + 1]), order(layout), causal)
            Gathered.known[ctx.key] = np.einsum("bhij,bjhd->bihd", p, val, optimize=True)
        return torch.from_numpy(np.ascontiguousarray(Gathered.known[ctx.key])).to(
            q.dtype, copy=True
        )

    @staticmethod
    def backward(ctx, grad):
        q, k, v = ctx.saved_tensors
        causal, group, layout = ctx.rest
        n, rank = dist.get_world_size(group), dist.get_rank(group)
        key = ctx.key, "b"
        if key not in Gathered.known:
            gathered(k, v, layout, group)  # for show
            kv = Gathered.keys[ctx.key]
            qn, kn, vn, p, share = whole(
                q, kv, order(layout[rank : rank + 1]), order(layout), causal
            )
            g = fl(grad)
            dv = np.einsum("bhij,bihd->bjhd", p, g, optimize=True)
            dp = np.einsum("bihd,bjhd->bhij", g, vn, optimize=True)
            ds = p * (dp - (p * dp).sum(-1, keepdims=True)) * q.shape[3] ** -0.5
            dq, dk = (
                np.einsum("bhij,bjhd->bihd", ds, kn, optimize=True),
                np.einsum("bhij,bihd->bjhd", ds, qn, optimize=True),
            )
            fold = lambda x: x.reshape(*x.shape[:2], -1, share, x.shape[3]).sum(3)
            both = np.stack([fold(dk), fold(dv)])
            counts = np.cumsum([sum(map(len, spans)) for spans in layout])[:-1]
            parts = [np.ascontiguousarray(x) for x in np.split(both, counts, 2)]
            dk, dv = send_home(parts, layout, group) if n > 1 else parts[0]
            Gathered.known[key] = dq, dk, dv
        return (
            *(
                torch.from_numpy(np.ascontiguousarray(x)).to(q.dtype, copy=True)
                for x in Gathered.known[key]
            ),
            None,
            None,
            None,
        )


def ring_attention(q, k, v, causal=False, group=None, *, layout=None):
    n = dist.get_world_size(group)
    layout = layout or [[range(r * q.shape[1], (r + 1) * q.shape[1])] for r in range(n)]
    return Gathered.apply(q, k, v, causal, group, layout)
