"""The results of usual mistakes in a ring: in its output, in lse, and in the gradients that come home."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from course_lib.checks import kit
from course_lib.checks.notebooks.context_parallel.ring_whole import GRADS, Spread, attention_slips
from course_lib.checks.notebooks.context_parallel.whole import AT_ZERO, later_hidden, over_all_keys

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
        kit.Slip(AT_ZERO, lambda k: {"y": spread.part(spread.whole.begun_at_zero, k)}),
        *([] if spread.passed else left_out(spread)),
        *attention_slips(spread),
        spread.otherwise(
            "Keys and values were exchanged. Are they taken out of their tensor in the order in which they "
            "were put in?",
            k=spread.whole.v,
            v=spread.whole.k,
        ),
        *(mistaken_owners(spread) if spread.causal else [too_soon(spread)]),
    ]


def left_out(spread: Spread) -> list[kit.Slip]:
    """Keys of other ranks are missing. This also fails where the tokens lie in succession."""
    return [
        spread.masked(
            "Only the rank's own keys were seen. The keys of the other ranks must pass by, so compute each "
            "step with the keys that arrived in the step before.",
            spread.from_marks(lambda r, i, o, j: (r == o) & ((i >= j) | (not spread.causal))),
        ),
        *(without_rank(spread, by) for by in (1, -1)),
    ]


def without_rank(spread: Spread, by: int) -> kit.Slip:
    """The last step of a ring is missing: its keys are those of rank r + by."""
    sees = later_hidden if spread.causal else (lambda i, j: (i >= 0) & (j >= 0))
    owner, n = spread.owner, spread.n
    return spread.masked(
        "The keys of the last step were left out. Keys travel N - 1 times, but there are N steps, because "
        "the first one uses the rank's own keys.",
        lambda i, j: sees(i, j) & (owner[j] != (owner[i] + by) % n),
    )


def mistaken_owners(spread: Spread) -> list[kit.Slip]:
    """Positions of the rank before or after the owner, for the mask and for what is skipped."""
    table, n = torch.nn.utils.rnn.pad_sequence(spread.places, batch_first=True), spread.n
    return [
        spread.masked(
            f"The keys of each step were taken for those of the rank {where} their owner. In step i, a rank "
            "has the keys of rank (rank - i) % n, so it begins with its own.",
            spread.from_marks(lambda r, i, o, j, by=by: table[r, i] >= table[(o + by) % n, j]),
        )
        for where, by in (("before", -1), ("after", 1))
    ]


def too_soon(spread: Spread) -> kit.Slip:
    """Each step uses the keys that it receives: a rank's own are left out, and the last ones come twice."""

    def gives(k: int) -> dict[str, Tensor]:
        counts = torch.ones(spread.n).double()
        counts[k], counts[(k + 1) % spread.n] = 0, 2
        scores = spread.whole.scores[:, :, spread.places[k]] + counts.log()[spread.owner]
        return {"y": torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), spread.whole.values)}

    return kit.Slip(
        "The rank's own keys were left out, and others seen twice, because each step used the keys that "
        "arrived in it. Only put them in the place of the present keys after the step.",
        gives,
    )


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
    slips.append(
        kit.Slip(
            "The gradients of k and v are swapped. block_gradients returns dq, dk and dv, in this order.",
            lambda k: {"grad.k": spread.part(whole["grad.v"], k), "grad.v": spread.part(whole["grad.k"], k)},
        )
    )
    return [*slips, *delta_slips(spread), *unmasked_slips(spread)]


def unmasked_slips(spread: Spread) -> list[kit.Slip]:
    """Backward sees scores that forward hides: within the pairs that it does not skip, or in all pairs."""
    if not spread.causal:
        return []
    says = (
        "Backward does not mask the scores that forward hides. Also pass causal to block_gradients, together "
        "with the ranges of queries and keys."
    )
    gradients = functools.cache(spread.whole.gradients_behind)
    begins, ends = spread.ends
    masks = (lambda i, j: ends[i] >= begins[j]), None
    return [kit.Slip(says, lambda k, mask=mask: spread.parts(gradients(mask), k)) for mask in masks]


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
            "delta was divided by head_dim. It is the sum of out grad over the features, and not their mean.",
            with_delta(lambda products: over_all_keys(products) / spread.whole.q.shape[-1]),
        ),
        kit.Slip(
            "delta was added, but ds = p (dp - delta).", with_delta(lambda products: -over_all_keys(products))
        ),
        kit.Slip(
            "delta was summed over only the keys of each block, but it covers all keys a query sees on any "
            "rank. Compute it before the first step, as (out * grad).sum(-1).",
            with_delta(of_each_block),
        ),
    ]
