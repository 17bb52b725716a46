"""The results of usual mistakes in tiled attention, computed from the whole."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from course_lib.checks.kit import Slip
from course_lib.checks.notebooks.context_parallel.whole import AT_ZERO, Whole, over_all_keys

LOST = (
    "The old accumulator is not rescaled when a larger score arrives, so its weights belong to another "
    "maximum."
)


def output_slips(whole: Whole, block: int) -> list[Slip]:
    seq, heads, head_dim = whole.q.shape[1], whole.q.shape[2], whole.q.shape[3]
    causal, group = whole.mask is not None, heads // whole.k.shape[2]
    wrong_dimension = (
        "The scores are scaled by the wrong dimension. Use one over the root of head_dim, not of {}."
    )
    scales = {
        1.0: "The scores are not scaled. Divide them by the root of head_dim.",
        1 / head_dim: "The scores are divided by head_dim instead of its root.",
        seq**-0.5: wrong_dimension.format("the sequence"),
        block**-0.5: wrong_dimension.format("the tile"),
        heads**-0.5: wrong_dimension.format("the number of heads"),
        (heads * head_dim) ** -0.5: wrong_dimension.format("the width of all heads"),
    }
    slips = [
        Slip(says, lambda scale=scale: {"y": whole.but(scale=scale).y})
        for scale, says in scales.items()
        if abs(scale - whole.factor) > 1e-12
    ]
    of_y = [
        Slip("Each tile's softmax was divided by the tile's own sum before the tiles were added up. All "
             "tiles must share one denominator.",
             lambda: each_tile(whole, block).sum(0)),
        Slip("Each tile's softmax was divided by its own sum, and the mean was taken, but a tile counts "
             "by its lse.",
             lambda: each_tile(whole, block).mean(0)),
        Slip("The output comes from only the last tile of keys. Merge it with the tiles before it.",
             lambda: each_tile(whole, block)[-1]),
        Slip(AT_ZERO, lambda: whole.begun_at_zero),
        Slip(LOST, lambda: without_rescaling(whole, block, True)),
        Slip(LOST, lambda: without_rescaling(whole, block, False)),
        Slip("The tokens after the last whole tile are left out, although the last tile can be shorter.",
             lambda: whole_tiles(whole, block)),
    ]  # fmt: skip
    if group > 1:
        says = (
            "The heads of keys are dealt out in turn, but heads / kv_heads adjacent heads of queries share "
            "one, so head h has h // (heads / kv_heads)."
        )
        count = whole.k.shape[2]
        of_y.append(Slip(says, lambda: whole.but(head_of=lambda h: h % count).y))
    if causal:
        of_y += [Slip(says, lambda m=mask: whole.but(mask=m).y) for says, mask in masks(block).items()]
    return [*slips, *(Slip(slip.says, lambda slip=slip: {"y": slip.gives()}) for slip in of_y)]


def masks(block: int) -> dict[str, Callable[[Tensor, Tensor], Tensor] | None]:
    """Causal masks as they should not be."""
    return {
        "There is no mask, although under causal=True query i sees only the keys 0 .. i.": None,
        "Query i must also see itself, so hide only the keys after it.": lambda i, j: i > j,
        "The mask is the wrong way round. Query i must see the keys before it.": lambda i, j: i <= j,
        "The mask counts positions within each tile, so add the positions at which the tiles of queries "
        "and of keys begin in the sequence.": lambda i, j: i % block >= j % block,
        "The mask counts positions within each tile, even in tiles that are seen whole. Instead, compare "
        "positions in the sequence, with the ranges from `tiles`.": (
            lambda i, j: (i // block >= j // block) & (i % block >= j % block)
        ),
        "The output comes from only the last tile of keys that a query sees. Merge it with the tiles "
        "before it.": lambda i, j: (i // block == j // block) & (i >= j),
        "The tile on the diagonal is not masked, although it also has keys that come after queries.": (
            lambda i, j: i // block >= j // block
        ),
        "The tile of one last token is skipped, although its query sees its key. Skip a tile if queries[-1] "
        "< keys[0], and not if they are equal.": (
            lambda i, j: (i >= j) & (((i // block + 1) * block - 1).minimum(i.max()) > j // block * block)
        ),
        "The tiles on the diagonal are skipped, although they are seen in part.": (
            lambda i, j: i // block > j // block
        ),
    }


def each_tile(whole: Whole, block: int) -> Tensor:
    """The softmax of each tile of keys, times its values: (tiles, batch, seq, heads, head_dim)."""
    parts = zip(whole.scores.split(block, -1), whole.values.split(block, 1), strict=True)
    return torch.stack([torch.einsum("bhij,bjhd->bihd", s.softmax(-1).nan_to_num(0.0), v) for s, v in parts])


def without_rescaling(whole: Whole, block: int, total_is: bool) -> Tensor:
    """The accumulator keeps the weights of an older maximum; total_is: the sum beside it is rescaled."""
    acc, total = torch.zeros_like(whole.y), torch.zeros(whole.scores.shape[:-1]).double()
    top = torch.full_like(total, torch.finfo(torch.float64).min)
    for s, v in zip(whole.scores.split(block, -1), whole.values.split(block, 1), strict=True):
        newer = torch.maximum(top, s.amax(-1))
        p = (s - newer[..., None]).exp()
        total = total * ((top - newer).exp() if total_is else 1.0) + p.sum(-1)
        acc, top = acc + torch.einsum("bhij,bjhd->bihd", p, v), newer
    return acc / total.transpose(1, 2)[..., None]


def whole_tiles(whole: Whole, block: int) -> Tensor:
    """Only those tiles that are full; the other queries have 0."""
    last = whole.q.shape[1] // block * block
    if last in (0, whole.q.shape[1]):
        return torch.full_like(whole.y, torch.nan)  # then it is not a mistake
    short = whole.but(q=whole.q[:, :last], k=whole.k[:, :last], v=whole.v[:, :last])
    return torch.cat([short.y, torch.zeros_like(whole.y[:, last:])], 1)


def gradient_slips(whole: Whole, block: int) -> list[Slip]:
    right, root = whole.gradients(), whole.q.shape[-1] ** 0.5
    once = whole.factor
    unmasked = (lambda i, j: i // block >= j // block), None  # tiles skipped as in forward, or all computed
    return [
        *(Slip("Backward does not mask the tiles on the diagonal, although forward does. Also pass causal to "
               "scores_of in backward.", lambda mask=mask: whole.gradients_behind(mask))
          for mask in unmasked if whole.mask is not None),
        Slip("In backward, p is the softmax of each tile alone. Use p = exp(s - lse), with lse over all keys "
             "that a query sees.",
             lambda: whole.gradients(p=tile_by_tile(whole, block))),
        Slip("delta is missing. Use ds = p (dp - delta), where delta is the sum of out dout over the "
             "features.",
             lambda: whole.gradients(delta=torch.zeros_like)),
        Slip("delta was divided by head_dim. It is the sum of out dout over the features, not "
             "their mean.",
             lambda: whole.gradients(delta=lambda products: over_all_keys(products) / whole.q.shape[-1])),
        Slip("delta was added, but ds = p (dp - delta).",
             lambda: whole.gradients(delta=lambda products: -over_all_keys(products))),
        Slip("delta was summed over only the keys of each tile, but it covers all keys a query sees. "
             "Compute it before the loops, as (out * dout).sum(-1).",
             lambda: whole.gradients(delta=lambda products: of_each_tile(products, block))),
        Slip("dq and dk lack the factor of the scores. The scores are scaled, so their gradient is scaled "
             "as well.",
             lambda: whole.gradients(dq_scale=1.0, dk_scale=1.0)),
        Slip("dq lacks the factor of the scores, one over the root of head_dim.",
             lambda: {"grad.q": right["grad.q"] * root}),
        Slip("dk lacks the factor of the scores, one over the root of head_dim.",
             lambda: {"grad.q": right["grad.q"], "grad.k": right["grad.k"] * root}),
        Slip("dq has the factor of the scores twice. Scale either q or the product, but not both.",
             lambda: {"grad.q": right["grad.q"] * once}),
        Slip("dk has the factor of the scores twice. If q is already scaled, then ds^T q has the factor.",
             lambda: {"grad.q": right["grad.q"], "grad.k": right["grad.k"] * once}),
        Slip("dq comes from only the last tile of keys. Instead, add the contributions of all tiles.",
             lambda: {"grad.q": last_keys(whole, block)}),
        Slip("dk and dv come from only the last tile of queries. Instead, add the contributions of all "
             "tiles.",
             lambda: {name: last_queries(whole, block)[name] for name in ("grad.k", "grad.v")}),
        *(Slip(f"{name} comes from only the last tile of queries. Instead, add the contributions of all "
               "tiles.",
               lambda key=key: {key: last_queries(whole, block)[key]})
          for name, key in (("dk", "grad.k"), ("dv", "grad.v"))),
    ]  # fmt: skip


def tile_by_tile(whole: Whole, block: int) -> Tensor:
    """The softmax of each tile's scores, as if it had all keys."""
    return torch.cat([tile.softmax(-1).nan_to_num(0.0) for tile in whole.scores.split(block, -1)], -1)


def of_each_tile(products: Tensor, block: int) -> Tensor:
    """Sums over the keys of each tile, beside each of them."""
    tiles = products.split(block, -1)
    return torch.cat([over_all_keys(tile).expand_as(tile) for tile in tiles], -1)


def contributions(whole: Whole) -> tuple[Tensor, Tensor]:
    """p and ds, (batch, heads, seq, seq of keys)."""
    dp = torch.einsum("bihd,bjhd->bhij", whole.grad, whole.values)
    return whole.p, whole.p * (dp - over_all_keys(whole.p * dp))


def last_keys(whole: Whole, block: int) -> Tensor:
    """dq if the last tile of keys that a query meets overwrites it."""
    _, ds = contributions(whole)
    dq = torch.zeros_like(whole.q)
    seq = whole.q.shape[1]
    for rows in torch.arange(seq).split(block):
        for columns in torch.arange(whole.k.shape[1]).split(block):
            if whole.mask is None or columns[0] <= rows[-1]:
                part = ds[:, :, rows][..., columns]
                dq[:, rows] = torch.einsum("bhij,bjhd->bihd", part, whole.keys[:, columns])
    return dq * whole.factor


def last_queries(whole: Whole, block: int) -> dict[str, Tensor]:
    """dk and dv as the last tile of queries writes them."""
    p, ds = contributions(whole)
    start = (whole.q.shape[1] - 1) // block * block
    rows = slice(start, None)
    dk = torch.einsum("bhij,bihd->bjhd", ds[:, :, rows], whole.q[:, rows]) * whole.factor
    dv = torch.einsum("bhij,bihd->bjhd", p[:, :, rows], whole.grad[:, rows])
    return {"grad.k": whole.per_key_head(dk), "grad.v": whole.per_key_head(dv)}
