"""The plan of a dry run: the mesh, the rank, the model and the rows. It raises errors before any process."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch

from course_lib.mesh.mesh import names

MOST_RANKS = 1 << 17


@dataclass(frozen=True)
class Plan:
    """Made by `planned`, which checks it."""

    sizes: dict[str, int]
    rank: int
    model: Any
    microbatches: int
    rows: int
    dtype: torch.dtype

    @property
    def world_size(self) -> int:
        return prod(self.sizes.values())

    @property
    def coordinate(self) -> dict[str, int]:
        places = np.unravel_index(self.rank, tuple(self.sizes.values()))
        return dict(zip(self.sizes, map(int, places), strict=True))

    @property
    def name(self) -> str:
        return f"rank {self.rank} of {self.world_size:,}"


def planned(
    sizes: Mapping[str, int],
    rank: int,
    model: Any,
    microbatches: int,
    rows: int,
    dtype: torch.dtype,
) -> Plan:
    """Raise ValueError or TypeError, in a sentence, if the arguments make no possible plan."""
    names(tuple(sizes))
    for axis, size in sizes.items():
        whole(f"sizes[{axis!r}]", size)
    world = prod(sizes.values())
    if world > MOST_RANKS:
        raise ValueError(f"the mesh {dict(sizes)} has {world:,} ranks; {MOST_RANKS:,} are the most")
    whole("rank", rank, least=0)
    if rank >= world:
        raise ValueError(
            f"the mesh {dict(sizes)} has the ranks 0 to {world - 1:,}, and rank is {rank:,}"
        )
    whole("microbatches", microbatches)
    whole("rows", rows)
    for name in ("vocab_size", "context"):
        if not isinstance(getattr(model, name, None), int):
            raise TypeError(
                "model is a configuration, such as GPTConfig(...), from which `setup` builds the model, and "
                f"not {model!r:.60}"
            )
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise TypeError(f"dtype is the model's, such as torch.bfloat16, not {dtype!r}")
    return Plan(dict(sizes), rank, model, microbatches, rows, dtype)


def whole(name: str, number: Any, least: int = 1) -> None:
    try:
        value = operator.index(number)
    except TypeError:
        raise TypeError(f"{name} is a whole number, not {number!r}") from None
    if isinstance(number, bool) or value < least:
        raise ValueError(f"{name} is {number!r}: it must be at least {least}")
