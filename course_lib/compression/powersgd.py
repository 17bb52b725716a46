"""PowerSGD: the gradient of a matrix as the product of two thin matrices.

A gradient G of (rows, columns) has a few large singular values and many small ones. P Q^T with P (rows, r)
and Q (columns, r) keeps the large ones, but it takes only r (rows + columns) numbers instead of rows x
columns. For a 4,096 x 4,096 matrix and r = 4, this is 512 times less. The singular value decomposition would
give the best such factors, but it is too slow. One step of subspace iteration that starts from the last
step's Q (warm start) comes close, since gradients change slowly. G is the mean over the ranks, which no rank
holds:

    P = G Q          each rank multiplies its own G, and the products, linear in G, are averaged
    P = orthonormal columns with the same span
    Q = G^T P        again averaged
    G ~ P Q^T

Both averages are plain all-reduces of floats, which the network adds on the way. This sets PowerSGD apart
from top-k and signs, whose messages cannot be added. Each rank adds the error of P Q^T to its next gradient.
Vectors (biases, norms) are sent uncompressed, and so is a matrix if its factors would not be smaller.

Source: Vogels, Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
Optimization", NeurIPS 2019, algorithms 1 and 2. PyTorch provides it as ddp_comm_hooks.powerSGD_hook.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .common import Group, check_pair, mean_over_ranks, rank_and_size


class PowerSGD:
    """Averages gradients over the ranks of `group`, each matrix as a product of two with `rank` columns.

    rank: columns of P and Q; a matrix with fewer rows or columns takes as many as it has.
    warm_start: begin with the last step's Q, or else with a new random Q.
    error_feedback: keep the error of the product. Without it, training stalls.
    seed: seed of the first Q; the same on every rank.

    `errors` holds this rank's errors, in the order of the matrices, and `state_dict()` holds everything a
    later run needs. The errors differ between ranks, so each rank saves its own state_dict.
    """

    def __init__(
        self,
        rank: int = 2,
        *,
        warm_start: bool = True,
        error_feedback: bool = True,
        seed: int = 0,
        group: Group = None,
    ):
        if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
            raise ValueError(f"rank={rank!r}: the number of columns of P and Q is 1 or more")
        self.rank, self.group = rank, group
        self.warm_start, self.error_feedback = warm_start, error_feedback
        self.errors: list[torch.Tensor] = []
        self._queries: list[torch.Tensor] = []  # Q of each matrix
        self._shapes: list[torch.Size] | None = None
        self._generator = torch.Generator().manual_seed(seed)

    @torch.no_grad()
    def all_reduce(self, gradients: Sequence[torch.Tensor]) -> None:
        """Replace each gradient by its mean over the ranks, or a matrix by an approximation of its mean.

        gradients: floating point, of one dtype and device; the same shapes in the same order on every rank
            and in every call, since errors and Q are kept by position. A tensor of more than two
            dimensions, such as a convolution's weight, is the matrix (first, product of the others).
        Sends 2 (N-1)/N times the bytes of all vectors, P and Q per rank. One all-reduce sends the vectors
        and P, and a second one sends Q. They travel in float32 if the gradients are narrower. Scratch: two
        copies of the matrices. All ranks end with the same bits.

        Raises ValueError if the gradients do not fit each other or the gradients of the last call; TypeError
        if one of them is not a tensor.
        """
        rank_and_size(self.group)
        self._check(gradients)
        if not gradients:
            return
        wide = torch.promote_types(gradients[0].dtype, torch.float32)
        thin = [g for g in gradients if self._compresses(g.shape)]
        plain = [g.to(wide) for g in gradients if not self._compresses(g.shape)]
        if not self._queries or not self.warm_start:
            self._queries = [self._draw(g, wide) for g in thin]
        if not self.errors:
            self.errors = [torch.zeros_like(_matrix(g), dtype=wide) for g in thin]

        asked = [error + _matrix(g) for error, g in zip(self.errors, thin, strict=True)]
        p = [g @ q for g, q in zip(asked, self._queries, strict=True)]
        means = mean_over_ranks([*plain, *p], self.group)
        plain, p = means[: len(plain)], [_orthonormal(columns) for columns in means[len(plain) :]]
        own_q = [g.T @ columns for g, columns in zip(asked, p, strict=True)]
        q = mean_over_ranks(own_q, self.group)

        if self.error_feedback:
            # against this rank's own Q, as in algorithm 2, because the mean error is the same
            missed = [g - columns @ own.T for g, columns, own in zip(asked, p, own_q, strict=True)]
            self.errors = [error.nan_to_num(0.0, 0.0, 0.0) for error in missed]
        self._queries = [_usable(new, old) for new, old in zip(q, self._queries, strict=True)]
        products = iter([columns @ other.T for columns, other in zip(p, q, strict=True)])
        rest = iter(plain)
        for gradient in gradients:
            mean = next(products if self._compresses(gradient.shape) else rest)
            gradient.copy_(mean.view(gradient.shape))

    def state_dict(self) -> dict:
        """This rank's errors and Q, as copies."""
        return {
            "errors": [error.clone() for error in self.errors],
            "queries": [query.clone() for query in self._queries],
            "shapes": None if self._shapes is None else [tuple(shape) for shape in self._shapes],
            "generator": self._generator.get_state(),
        }

    def load_state_dict(self, state: dict) -> None:
        """Go on from this rank's `state_dict()`, with as many ranks and the same `rank`."""
        self.errors = [error.clone() for error in state["errors"]]
        self._queries = [query.clone() for query in state["queries"]]
        shapes = state["shapes"]
        self._shapes = None if shapes is None else [torch.Size(shape) for shape in shapes]
        self._generator.set_state(state["generator"])

    # ---- helpers

    def _columns(self, shape: torch.Size) -> int:
        return min(self.rank, shape[0], shape.numel() // shape[0])

    def _compresses(self, shape: torch.Size) -> bool:
        """Whether P and Q together are smaller than the tensor."""
        if len(shape) < 2 or not shape.numel():
            return False
        columns = shape.numel() // shape[0]
        return self._columns(shape) * (shape[0] + columns) < shape.numel()

    def _draw(self, gradient: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """A random Q, drawn on the CPU so that every rank and device gets the same numbers."""
        shape = (gradient.numel() // gradient.shape[0], self._columns(gradient.shape))
        return torch.randn(shape, generator=self._generator).to(gradient.device, dtype)

    def _check(self, gradients: Sequence[torch.Tensor]) -> None:
        for gradient in gradients:
            check_pair(gradient, gradient, ("a gradient", "a gradient"))
        kinds = {(str(g.dtype), str(g.device)) for g in gradients}
        if len(kinds) > 1:
            raise ValueError(
                f"the gradients are of several kinds, {sorted(kinds)}: they travel in one buffer. Use one "
                "PowerSGD for each dtype and device."
            )
        shapes = [g.shape for g in gradients]
        if self._shapes is not None and shapes != self._shapes:
            raise ValueError(
                f"the gradients have shapes {[tuple(s) for s in shapes]}, in the call before "
                f"{[tuple(s) for s in self._shapes]}: errors belong to positions. Pass all gradients in "
                "the same order every time, zeros for a parameter that got none."
            )
        self._shapes = shapes


def _matrix(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(tensor.shape[0], -1)


def _usable(new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """`new`, but with the old column in place of each new column that cannot start a step.

    An overflow would stay in Q forever, and a column of zeros would find nothing.
    """
    return torch.where(new.isfinite().all(0) & new.any(0), new, old)


def _orthonormal(matrix: torch.Tensor) -> torch.Tensor:
    """Orthonormal columns with the same span as the columns of `matrix`.

    Householder's QR computes them instead of the paper's Gram-Schmidt, which divides by zero if a column is
    zero or depends on the columns before it.
    """
    return torch.linalg.qr(matrix).Q
