"""A mixture of experts on one rank, which sends each token through its k experts and no others.

The experts' products are large if a token's row is next to the rows of the other tokens of the same expert.
So the T k assignments are sorted by expert, and each expert has one product of matrices, whatever its number
of rows. Its results are weighted and added back to the tokens they came from.

    assignment       0  1  2  3  4  5        token = assignment // k
    expert           2  0  0  1  2  0        k = 2, three tokens
    order            1  2  5 | 3 | 0  4      argsort: the rows of expert 0, of 1, of 2
    token            0  1  2 | 1 | 0  2

A forward takes 6 T k h f FLOPs (three products with two FLOPs for each number), and backward takes twice as
many. This is k / E of the FLOPs of a dense layer with all experts' parameters.

Source: Gale et al., MegaBlocks, 2022 (sorted rows and no capacity). `torch.nn.functional.grouped_mm` computes
all experts' products in one call, which pays off on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def moe(x: Tensor, experts: Tensor, weights: Tensor, w1: Tensor, w3: Tensor, w2: Tensor) -> Tensor:
    """For each token, the sum of weight times output over its experts, (T, h).

    x: (T, h). experts, weights: (T, k), of `route`. w1, w3: (E, f, h), w2: (E, h, f). Gradients reach x,
    weights, w1, w3 and w2; the gradients of an expert without rows are zeros.

    Raises ValueError if the shapes do not fit each other.
    """
    check_mixture(x, experts, weights, w1, w3, w2)
    token, order = by_expert(experts)
    counts = experts.flatten().bincount(minlength=len(w1)).tolist()
    out = through_experts(x[token], counts, w1, w3, w2)
    return add_to_tokens(out, weights.flatten()[order], token, x)


def by_expert(experts: Tensor) -> tuple[Tensor, Tensor]:
    """(token, assignment) of each row, with the T k rows in the order of their experts."""
    order = experts.flatten().argsort(stable=True)
    return order // experts.shape[1], order


def through_experts(
    rows: Tensor, counts: Sequence[int], w1: Tensor, w3: Tensor, w2: Tensor
) -> Tensor:
    """Send each row through its expert; the first counts[0] rows belong to expert 0, and so on."""
    parts = [
        (F.silu(part @ w1[e].T) * (part @ w3[e].T)) @ w2[e].T
        for e, part in enumerate(rows.split(list(counts)))
    ]
    return torch.cat(parts)


def add_to_tokens(out: Tensor, weights: Tensor, token: Tensor, x: Tensor) -> Tensor:
    """Add each row times its weight to the row of its token; a token without rows gets zeros."""
    return torch.zeros_like(x).index_add(0, token, (out * weights[:, None]).to(x.dtype))


def check_mixture(
    x: Tensor, experts: Tensor, weights: Tensor, w1: Tensor, w3: Tensor, w2: Tensor
) -> None:
    if x.dim() != 2:
        raise ValueError(
            f"x must be (tokens, width), not {tuple(x.shape)}: x.flatten(0, -2) makes it so"
        )
    if experts.shape != weights.shape or experts.dim() != 2 or len(experts) != len(x):
        raise ValueError(
            f"experts and weights must be ({len(x)}, k), one row for each token, not "
            f"{tuple(experts.shape)} and {tuple(weights.shape)}"
        )
    if w1.dim() != 3 or w1.shape != w3.shape or w2.shape != (w1.shape[0], w1.shape[2], w1.shape[1]):
        shapes = ", ".join(str(tuple(w.shape)) for w in (w1, w3, w2))
        raise ValueError(f"w1 and w3 must be (E, f, h) and w2 (E, h, f), not {shapes}")
    if w1.shape[2] != x.shape[1]:
        raise ValueError(f"x has {x.shape[1]} numbers a token, and the experts take {w1.shape[2]}")
