"""The results of usual mistakes in a ring: in its output, in lse, and in the gradients that come home."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from course_lib.checks import kit
from course_lib.checks.notebooks.context_parallel.ring_whole import GRADS, Spread, attention_slips

OLD = "The old out still has the weight that it had when it came: with each block that follows it loses "
MEAN = (
    "The gradients of k and v were divided by N. They are sums over the queries of all ranks: add, and "
    "divide by nothing."
)


def forward_slips(spread: Spread) -> list[kit.Slip]:
    return [
        kit.Slip(
            f"{OLD}some. Rescale it by exp(old lse - new lse).", lambda k: {"y": spread.not_rescaled(k)}
        ),
        kit.Slip(
            "That is the sum of the blocks' outputs: each was divided by its own sum. They are weighted by "
            "exp(lse of the block - lse of all).",
            lambda k: {"y": spread.summed(k)},
        ),
        kit.Slip(
            "That is the mean of the blocks' outputs: a block counts by exp(lse of the block - lse of all).",
            lambda k: {"y": spread.averaged(k)},
        ),
        *attention_slips(spread),
        spread.masked(
            "Only the rank's own keys were seen. Those of the other ranks must come by: compute each step "
            "with the keys that came in the step before.",
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
        kit.Slip("That is lse of the rank's own keys: merge it with that of each block.", first),
        kit.Slip("That is the largest score: add the logarithm of the sum of exponentials.", largest),
        kit.Slip("That is the sum itself: return its logarithm.", lambda k: {"y": spread.part(lse.exp(), k)}),
    ]


def backward_slips(spread: Spread) -> list[kit.Slip]:
    n, whole = spread.n, spread.wanted
    slips = []
    for by in range(1, n):
        says = (
            f"Those are gradients of the keys of rank r {'-' if 2 * by > n else '+'} "
            f"{min(by, n - by)}: they follow their keys round the ring, until one "
            "transfer more brings them home."
        )
        for name in ("grad.k", "grad.v"):
            slips.append(
                kit.Slip(says, lambda k, by=by, name=name: {name: spread.part(whole[name], (k + by) % n)})
            )
    for name in ("grad.k", "grad.v"):
        says = (
            "Only the rank's own queries contributed to the gradient of its keys: those of the other ranks "
            "saw them, too. Their shares must come home."
        )
        slips.append(kit.Slip(says, lambda k, name=name: {name: spread.by_own_queries(k)[name]}))
    if n > 1:
        slips += [
            kit.Slip(MEAN, lambda k, name=name: {name: spread.part(whole[name], k) / n})
            for name in ("grad.k", "grad.v")
        ]
        slips.append(
            kit.Slip(
                "The gradient of q was divided by N. It is a sum over all keys: divide by nothing.",
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
            "delta is missing: ds = p (dp - delta), where delta is the sum of out grad over the features.",
            with_delta(torch.zeros_like),
        ),
        kit.Slip(
            "delta was summed over the keys of each block alone. It belongs to all keys that a query sees on "
            "any rank, and is known before the first step: (out * grad).sum(-1).",
            with_delta(of_each_block),
        ),
    ]
