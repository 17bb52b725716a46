"""Gradients for PowerSGD over a few steps, and the result of one step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from course_lib.checks import kit
from course_lib.checks.rank.notebooks.data_parallel.averaging import AveragedInstructions

TOLERANCE = {torch.float64: 1e-7, torch.float32: 2e-3}
SHAPES = ((9, 14), (6,), (16, 8))


@dataclass(frozen=True)
class PowerSGDRun:
    """gradients[step][place] of the ranks `members` of `n`, in float64; rank: columns of P and Q.

    low_rank: the mean of the gradients has no more than these.
    """

    gradients: list[list[list[torch.Tensor]]]
    rank: int
    members: Sequence[int]
    n: int
    dtype: torch.dtype = torch.float64
    low_rank: bool = False

    @property
    def steps(self) -> range:
        return range(len(self.gradients))

    def mean(self, step: int, k: int) -> torch.Tensor:
        gradients = [own[k] for own in self.gradients[step]]
        return torch.stack(gradients).mean(0)

    def name(self, step: int, k: int) -> str:
        return f"{step}.{k}"

    def side(self, place: int) -> kit.RankSide:
        """The inputs of the member number `place`."""
        inputs = {
            self.name(step, k): gradient.to(self.dtype)
            for step in self.steps
            for k, gradient in enumerate(self.gradients[step][place])
        }
        names = [[self.name(step, k) for k in range(len(SHAPES))] for step in self.steps]
        group = 0 if len(self.members) < self.n else None
        instructions = AveragedInstructions(names, {"rank": self.rank}, group)
        return kit.RankSide(inputs, instructions, {k: kit.Spec.of(v) for k, v in inputs.items()})


def draw_run(
    draw: kit.Draw,
    members: Sequence[int],
    n: int,
    steps: int,
    *,
    rank: int = 2,
    low_rank: bool = False,
    **more,
) -> PowerSGDRun:
    """Gradients that resemble the step before's."""

    def fresh(shape: tuple[int, ...]) -> torch.Tensor:
        return draw.normal(*shape, dtype=torch.float64)

    def own(base: list[torch.Tensor]) -> list[list[torch.Tensor]]:
        apart = [[0.5 * fresh(shape) for shape in SHAPES] for _ in members]
        middle = [torch.stack(parts).mean(0) for parts in zip(*apart, strict=True)]
        return [[b + a - m for b, a, m in zip(base, parts, middle, strict=True)] for parts in apart]

    def thin(shape: tuple[int, ...]) -> torch.Tensor:
        return fresh((shape[0], rank)) @ fresh((rank, shape[1]))

    base = [thin(s) if len(s) == 2 and low_rank else fresh(s) for s in SHAPES]
    gradients = []
    for _ in range(steps):
        gradients.append(own(base))
        base = [b + 0.4 * fresh(tuple(b.shape)) for b in base]
    return PowerSGDRun(gradients, rank, members, n, low_rank=low_rank, **more)


# ---- one step


def span(matrix: torch.Tensor, rank: int) -> torch.Tensor:
    """Orthonormal columns: the `rank` strongest directions among the columns of `matrix`.

    Whatever a student's function returned: with infinite or huge numbers svd would not converge.
    """
    finite = matrix.nan_to_num()
    scaled = finite / finite.abs().max().clamp(min=torch.finfo(matrix.dtype).tiny)
    return torch.linalg.svd(scaled, full_matrices=False).U[:, :rank]


def onto(basis: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    return basis @ (basis.T @ matrix)


def next_result(asked: torch.Tensor, before: torch.Tensor, rank: int) -> torch.Tensor:
    """The result of a step for `asked` that starts from the Q that made the result `before`."""
    return onto(torch.linalg.qr(asked @ span(before.T, rank)).Q, asked)


def near(run: PowerSGDRun, actual: torch.Tensor, wanted: torch.Tensor) -> bool:
    return kit.close(actual, wanted, TOLERANCE[run.dtype], least=0)
