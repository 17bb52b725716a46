"""Muon on several ranks: an optimizer that needs whole matrices.

SGD and Adam treat each element separately, so an optimizer of flat shards gives the same weights as an
optimizer of whole tensors. Muon does not. Its update is the momentum with all singular values brought close
to 1, so every element of the update depends on every element of the matrix. A rank with half a matrix would
orthogonalize this half, but that is not the same as half of the orthogonalized matrix.

Therefore whole matrices are dealt out, and everything else is ZeRO-2 with other shards:

    deal             each matrix to one rank, its owner
    reduce-scatter   every rank has gradients of its own samples; the owner gets the mean
    on the owner     momentum, Newton-Schulz, new weights
    all-gather       the owners' weights go to all ranks

Per step, a rank sends 2 (n-1)/n P elements, as in ZeRO-2. It holds P/n elements of momentum, half as many as
Adam's m and v. Newton-Schulz runs once per matrix instead of once per matrix and rank. Both fractions are
exact if all ranks are dealt equally many elements. With more ranks than matrices, some ranks own nothing.

Muon is meant for the matrices of hidden layers. Use AdamW for embeddings, the head, norms and biases.

Sources: Jordan et al., Muon: An optimizer for hidden layers in neural networks, 2024 (blog post), for the
algorithm and the coefficients; Liu et al., Muon is Scalable for LLM Training, 2025, section 2.3, for another
way to distribute it, on flat shards with a gather of each matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, MutableMapping, Sequence

import torch
from torch import Tensor

from .transport import Group, Transport

COEFFICIENTS = (
    3.4445,
    -4.7750,
    2.0315,
)  # chosen for speed: singular values end near 1, between 0.7 and 1.2
ITERATIONS = 5


def deal(shapes: Sequence[Sequence[int]], n: int) -> list[list[int]]:
    """The numbers of the matrices each of n ranks owns, as n lists. With few matrices, some are empty.

    The largest matrix is dealt first, and each goes to the rank with the fewest elements so far. All ranks
    compute the same lists. ValueError if n is less than 1.
    """
    if n < 1:
        raise ValueError(f"n is the number of ranks, at least 1, and not {n}")
    sizes = [torch.Size(shape).numel() for shape in shapes]
    owned: list[list[int]] = [[] for _ in range(n)]
    held = [0] * n
    for number in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
        rank = held.index(min(held))
        owned[rank].append(number)
        held[rank] += sizes[number]
    return owned


def orthogonalize(matrix: Tensor) -> Tensor:
    """A matrix with the singular vectors of `matrix`, and singular values between about 0.7 and 1.2.

    matrix: (rows, columns). Five Newton-Schulz iterations x <- a x + b (x x^T) x + c (x x^T)^2 x send every
    singular value s to a s + b s^3 + c s^5. Singular values far below the norm of the matrix stay smaller.
    Costs 5 (4 m^2 n + 2 m^3) FLOPs for m rows and n columns, m <= n; a tall matrix is transposed first.
    Computes in the matrix's dtype; large runs use bfloat16.
    """
    a, b, c = COEFFICIENTS
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (x.norm() + 1e-7)  # no singular value above 1
    for _ in range(ITERATIONS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


@torch.no_grad()
def muon_step(
    params: Sequence[Tensor],
    momenta: MutableMapping[int, Tensor],
    owned: Sequence[Sequence[int]],
    orthogonalize: Callable[[Tensor], Tensor] = orthogonalize,
    lr: float = 0.02,
    beta: float = 0.95,
    group: Group = None,
) -> None:
    """One step of Muon on the mean of the ranks' gradients; the parameters change in place.

    params: matrices of one dtype and device, equal on all ranks, with this rank's gradients in .grad. A
        missing gradient counts as zeros.
    momenta: by number of a matrix, for the matrices this rank owns; empty before the first step.
    owned: for each rank of `group`, the numbers of its matrices, see `deal`.

    Sends 2 (n-1) elements for each element of the longest row, or 2 (n-1)/n P if all are equally long.
    """
    transport = Transport(group)
    rows = Rows(params, owned)
    mine = rows.numbers[transport.rank]
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in params]
    mean = transport.reduce_scatter_mean(
        rows.laid(gradients).view(-1)
    )  # (n * longest,) -> (longest,)
    weights = torch.zeros_like(mean)
    for number, gradient, weight in zip(
        mine, rows.cut(mean, mine), rows.cut(weights, mine), strict=True
    ):
        if number not in momenta:
            momenta[number] = torch.zeros_like(gradient)
        momentum = momenta[number].mul_(beta).add_(gradient)
        update = orthogonalize(gradient + beta * momentum)  # Nesterov's look ahead
        scale = max(1, gradient.shape[0] / gradient.shape[1]) ** 0.5
        weight.copy_(params[number] - lr * scale * update)
    whole = mean.new_empty(len(owned), rows.longest)
    transport.all_gather(whole.view(-1), weights)  # (longest,) -> (n * longest,)
    for numbers, row in zip(rows.numbers, whole, strict=True):
        for number, weight in zip(numbers, rows.cut(row, numbers), strict=True):
            params[number].copy_(weight)


class Rows:
    """Matrices in rows of equal length. Each rank's row holds its own matrices, with zeros behind them.

    numbers: of the matrices in each row.  longest: elements of a row, as many as the fullest row needs.
    """

    def __init__(self, params: Sequence[Tensor], owned: Sequence[Sequence[int]]):
        self.shapes = [param.shape for param in params]
        self.numbers = [list(numbers) for numbers in owned]
        self.longest = max(sum(self.shapes[k].numel() for k in numbers) for numbers in self.numbers)

    def laid(self, tensors: Sequence[Tensor]) -> Tensor:
        """(n, longest)"""
        rows = tensors[0].new_zeros(len(self.numbers), self.longest)
        for numbers, row in zip(self.numbers, rows, strict=True):
            for number, place in zip(numbers, self.cut(row, numbers), strict=True):
                place.copy_(tensors[number])
        return rows

    def cut(self, row: Tensor, numbers: Sequence[int]) -> list[Tensor]:
        """Views of a row (longest,), one for each of its matrices, in their shapes."""
        sizes = [self.shapes[number].numel() for number in numbers]
        pieces = row[: sum(sizes)].split(sizes) if sizes else ()
        return [piece.view(self.shapes[k]) for piece, k in zip(pieces, numbers, strict=True)]


class ShardedMuon:
    """Muon over `group`, with each matrix on one rank.

    params: matrices of one dtype and device, the same on all ranks, which take the first rank's values.
    lr, beta: the learning rate, and how much of the momentum a step keeps.
    owned: for each rank, the numbers of its matrices.  momenta: by number, of this rank's matrices.

    Raises ValueError if a parameter does not have two dimensions, or if there are no parameters.
    """

    def __init__(
        self, params: Iterable[Tensor], lr: float = 0.02, beta: float = 0.95, group: Group = None
    ):
        self.params, self.lr, self.beta, self.group = list(params), lr, beta, group
        if not self.params:
            raise ValueError(
                "params is empty: pass the matrices of a model (a generator is read only once)"
            )
        for number, param in enumerate(self.params):
            if param.dim() != 2:
                raise ValueError(
                    f"parameter {number} has {param.dim()} dimensions, and Muon orthogonalizes matrices. "
                    "Give embeddings, norms and biases to AdamW"
                )
        transport = Transport(group)
        for param in self.params:
            transport.broadcast(param.detach())
        self.owned = deal([param.shape for param in self.params], transport.n)
        self.momenta: dict[int, Tensor] = {}

    def step(self) -> None:
        """Take a step; all ranks of the group call it together. See `muon_step` for bytes and errors."""
        muon_step(
            self.params, self.momenta, self.owned, orthogonalize, self.lr, self.beta, self.group
        )

    def zero_grad(self) -> None:
        for param in self.params:
            param.grad = None
