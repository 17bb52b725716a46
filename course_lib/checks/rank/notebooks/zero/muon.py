"""A recipe (see `harness`) that takes steps of Muon: the matrices go back after each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from course_lib.checks.rank import frozen
from course_lib.checks.wire import Count, Instructions

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_dim, _norm, _numel = torch.Tensor.dim, torch.Tensor.norm, torch.Tensor.numel


@dataclass
class MuonReply:
    """For each step: the shapes of the matrices that were orthogonalized, and the elements of all momenta."""

    shapes: list[list[list[int]]] = field(default_factory=list)
    held: list[Count] = field(default_factory=list)


@dataclass(frozen=True)
class MuonInstructions(Instructions):
    """matrices, steps: how many. The tensors are "param.K" and "grad.STEP.K".

    owned: the numbers of the matrices of each rank; kwargs: of the function; group: which of the case's
    groups it gets; None: not passed.
    """

    matrices: int
    steps: int
    owned: list[list[int]]
    kwargs: dict[str, Any]
    group: int | None = None


def orthogonalized(matrix: torch.Tensor) -> torch.Tensor:
    """Five Newton-Schulz iterations, as in the notebook."""
    a, b, c = COEFFICIENTS
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (_norm(x) + 1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


def noting(shapes: list[list[int]]) -> Callable[[torch.Tensor], torch.Tensor]:
    """`orthogonalize` for the student's function, which notes the shapes."""

    def orthogonalize(matrix: torch.Tensor) -> torch.Tensor:
        if not isinstance(matrix, frozen.Tensor) or _dim(matrix) != 2:
            raise ValueError("orthogonalize takes a matrix, a tensor with two dimensions")
        shapes.append([int(size) for size in matrix.shape])
        return orthogonalized(matrix)

    return orthogonalize


def stepped(
    objects: list, tensors: dict[str, torch.Tensor], groups: list, instructions: MuonInstructions
) -> tuple[MuonReply, dict[str, Any]]:
    """Call the first object in each step with gradients that are new."""
    reply, outputs, momenta = MuonReply(), {}, {}
    params = [frozen.Parameter(tensors[f"param.{k}"]) for k in range(instructions.matrices)]
    group = {} if instructions.group is None else {"group": groups[instructions.group]}
    for step in range(instructions.steps):
        for k, param in enumerate(params):
            param.grad = frozen.clone(tensors[f"grad.{step}.{k}"])
        shapes: list[list[int]] = []
        owned = [list(own) for own in instructions.owned]
        objects[0](params, momenta, owned, noting(shapes), **instructions.kwargs, **group)
        reply.shapes.append(shapes)
        reply.held.append(sum(_numel(m) for m in momenta.values() if isinstance(m, frozen.Tensor)))
        outputs |= {f"{step}.{k}": frozen.clone(frozen.detach(p)) for k, p in enumerate(params)}
    return reply, outputs
