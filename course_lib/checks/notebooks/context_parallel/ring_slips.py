"""The results of usual mistakes in a ring: in its output, in lse, and in the gradients that come home."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from course_lib.checks import kit
from course_lib.checks.notebooks.context_parallel.ring_whole import GRADS, Spread, attention_slips

OLD = "The old out still has its first weight, although with each following block it loses "
MEAN = (
    "The gradients of k and v were divided by N. They are sums over the queries of all ranks, so add them, "
    "and do not divide."
)


def forward_slips(spread: Spread) -> list[kit.Slip]:
    return [
        kit.Slip(
            f"{OLD}some. Rescale it by exp(old lse - new lse).", lambda k: {"y": spread.not_rescaled(k)}
        ),
        kit.Slip(
            "The result is the sum of the blocks' outputs, although each was divided by its own sum. "
            "Weight each by exp(lse of the block - lse of all).",
            lambda k: {"y": spread.summed(k)},
        ),
        kit.Slip(
            "The result is the mean of the blocks' outputs, but a block counts by exp(lse of the block - "
            "lse of all).",
            lambda k: {"y": spread.averaged(k)},
        ),
        *attention_slips(spread),
        spread.masked(
            "Only the rank's own keys were seen. The keys of the other ranks must pass by, so compute each "
            "step with the keys that arrived in the step before.",
            spread.from_marks(lambda r, i, o, j: (r == o) & ((i >= j) | (not spread.causal))),
        ),
    ]


def lse_slips(spread: Spread) -> list[kit.Slip]:
    lse = spread.whole.lse

    def first(k: int) -> dict[str, Tensor]:
        return {"y": spread.blocks(k)[1][0][..., 0]}

    def largest(k: int) -> dict[str, Tensor]:
        return {"y": spread.part(spread.whole.scores.amax(-1).transpose(1, 2), k)}

    return [
        kit.Slip("lse covers only the rank's own keys, so merge it with lse of each block.", first),
        kit.Slip("lse is only the largest score, so add the logarithm of the sum of exponentials.", largest),
        kit.Slip(
            "lse is the sum itself. Return its logarithm instead.", lambda k: {"y": spread.part(lse.exp(), k)}
        ),
    ]


def backward_slips(spread: Spread) -> list[kit.Slip]:
    n, whole = spread.n, spread.wanted
    slips = []
    for by in range(1, n):
        says = (
            f"The gradients belong to the keys of rank r {'-' if 2 * by > n else '+'} {min(by, n - by)}, "
            "because they follow their keys around the ring, until one more transfer brings them home."
        )
        for name in ("grad.k", "grad.v"):
            slips.append(
                kit.Slip(says, lambda k, by=by, name=name: {name: spread.part(whole[name], (k + by) % n)})
            )
    for name in ("grad.k", "grad.v"):
        says = (
            "Only the rank's own queries contributed to the gradient of its keys. The queries of the other "
            "ranks saw these keys as well, so their shares of the gradient must come back to this rank."
        )
        slips.append(kit.Slip(says, lambda k, name=name: {name: spread.by_own_queries(k)[name]}))
    if n > 1:
        slips += [
            kit.Slip(MEAN, lambda k, name=name: {name: spread.part(whole[name], k) / n})
            for name in ("grad.k", "grad.v")
        ]
        slips.append(
            kit.Slip(
                "The gradient of q was divided by N, but it is a sum over all keys, so do not divide.",
                lambda k: {"grad.q": spread.part(whole["grad.q"], k) / n},
            )
        )
    return [*slips, *delta_slips(spread)]


def delta_slips(spread: Spread) -> list[kit.Slip]:
    """Another delta than out . grad, in the gradients of q and k."""

    def of_each_block(products: Tensor) -> Tensor:
        owners = [(spread.owner == k) for k in range(spread.n)]
        sums = torch.stack([products[..., mine].sum(-1) for mine in owners], -1)
        return sums[..., spread.owner]

    def with_delta(delta: Callable[[Tensor], Tensor]) -> Callable[[int], dict[str, Tensor]]:
        return lambda k: spread.parts(
            {name: spread.whole.gradients(delta=delta)[name] for name in GRADS[:2]}, k
        )

    return [
        kit.Slip(
            "delta is missing. Use ds = p (dp - delta), where delta is the sum of out grad over the "
            "features.",
            with_delta(torch.zeros_like),
        ),
        kit.Slip(
            "delta was summed over only the keys of each block, but it covers all keys a query sees on any "
            "rank. Compute it before the first step, as (out * grad).sum(-1).",
            with_delta(of_each_block),
        ),
    ]
