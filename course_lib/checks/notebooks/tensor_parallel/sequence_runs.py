"""The arguments and the right results of the pair of sequence parallelism."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from course_lib.checks import kit
from course_lib.checks.judge.layers.runs import LayerRun
from course_lib.checks.notebooks.tensor_parallel.sequence_norm import SEQ, parts
from course_lib.checks.notebooks.tensor_parallel.shared import total

GATHER, SCATTER = 0, 1  # places among the exercise's objects
NAMES = ("all_gather_reduce_scatter", "reduce_scatter_all_gather", "SequenceParallelNorm")


def numbers(draw: kit.Draw, n: int, *shape: int, dtype: torch.dtype) -> list[Tensor]:
    """Other integers for every rank, whose sum is exact in the dtype."""
    high = 250 // n if dtype.itemsize == 2 else 1 << 20
    return [draw.distinct(*shape, high=high).to(dtype) for _ in range(n)]


def gathering(
    draw: kit.Draw, n: int, shape: Sequence[int], dtype: torch.dtype = torch.float64, dim: int = SEQ
) -> LayerRun:
    """From parts to the whole of `shape`, (batch, seq, width), of which each rank has another gradient."""
    whole, *gradients = numbers(draw, n + 1, *shape, dtype=dtype)
    for_x = parts(total(gradients), n, dim)
    return pair_run(GATHER, parts(whole, n, dim), gradients, [whole] * n, for_x)


def scattering(
    draw: kit.Draw, n: int, shape: Sequence[int], dtype: torch.dtype = torch.float64, dim: int = SEQ
) -> LayerRun:
    """From terms of `shape` to parts of their sum, each of which has its own gradient."""
    gradient, *terms = numbers(draw, n + 1, *shape, dtype=dtype)
    upstream = parts(gradient, n, dim)
    return pair_run(SCATTER, terms, upstream, parts(total(terms), n, dim), [gradient] * n)


def pair_run(
    which: int, x: list[Tensor], gradient: list[Tensor], y: list[Tensor], grad: list[Tensor]
) -> LayerRun:
    wanted = [
        {"y": y[k], "grad.x": grad[k], "after.x": x[k], "after.gradient": gradient[k]} for k in range(len(x))
    ]
    name = "gather" if which == GATHER else "scatter"
    return LayerRun(name, [{"x": tensor} for tensor in x], wanted, gradient, object=which)
