"""A layout: how many ranks each axis has, and how a step is cut into microbatches and chunks.

The axes are listed outermost first. With {"pp": 16, "dp": 8, "cp": 1, "tp": 8}, ranks 0 to 7 share every
layer (tp), and rank 64 is the first of the second stage. dp cuts the rows of the batch, cp the positions of
each sequence, pp the list of layers, and tp every single layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import permutations
from math import prod

from course_lib.facts.transformer import Shape

AXES = ("pp", "dp", "cp", "tp")  # outermost first, unless a layout says otherwise
RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True)
class Layout:
    """sizes: ranks along each axis, outermost first; an axis that is missing has one rank.

    microbatch: sequences of a microbatch; chunks: v, the stages of each rank in interleaved 1F1B.
    zero: the stage of ZeRO, over dp and cp together: 1 shards the optimizer's state, 3 everything.
    recompute: "none", "selective" (the scores of attention), or "full" (every block).
    sequence: whether norms and residuals work on parts of the sequence along tp.
    gradients: bytes of a gradient that is kept and summed over the replicas: 2 or 4.
    """

    sizes: Mapping[str, int]
    microbatch: int = 1
    chunks: int = 1
    zero: int = 0
    recompute: str = "full"
    sequence: bool = False
    gradients: int = 2

    def __post_init__(self) -> None:
        unknown = [axis for axis in self.sizes if axis not in AXES]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is not an axis: {', '.join(AXES)}")
        for name, number in {
            **self.sizes, "microbatch": self.microbatch, "chunks": self.chunks
        }.items():  # fmt: skip
            if number < 1:
                raise ValueError(f"{name}={number}: it must be at least 1")
        if self.zero not in (0, 1, 2, 3):
            raise ValueError(f"zero={self.zero}: the stages are 0 to 3")
        if self.recompute not in RECOMPUTE:
            raise ValueError(f"recompute={self.recompute!r} is not one of {', '.join(RECOMPUTE)}")
        missing = {axis: 1 for axis in AXES if axis not in self.sizes}
        object.__setattr__(self, "sizes", {**missing, **self.sizes})

    def __hash__(self) -> int:
        return hash(
            (tuple(self.sizes.items()), self.microbatch, self.chunks, self.recompute, self.zero)
        )

    def __str__(self) -> str:
        axes = " ".join(f"{axis} {size}" for axis, size in self.sizes.items() if size > 1)
        extra = [f"microbatch {self.microbatch}"] + [f"v {self.chunks}"] * (self.chunks > 1)
        extra += [f"ZeRO-{self.zero}"] * (self.zero > 0) + [f"recompute {self.recompute}"]
        return ", ".join([axes or "one GPU", *extra])

    @property
    def pp(self) -> int:
        return self.sizes["pp"]

    @property
    def dp(self) -> int:
        return self.sizes["dp"]

    @property
    def cp(self) -> int:
        return self.sizes["cp"]

    @property
    def tp(self) -> int:
        return self.sizes["tp"]

    @property
    def gpus(self) -> int:
        return prod(self.sizes.values())

    @property
    def replicas(self) -> int:
        """Ranks that hold the same parameters and sum their gradients: dp * cp."""
        return self.dp * self.cp

    def microbatches(self, batch: int) -> int:
        """m: microbatches of each pipeline, if a step has `batch` sequences."""
        return batch // (self.dp * self.microbatch)

    def stride(self, axis: str) -> int:
        """The distance in ranks between neighbours along an axis: the product of all axes within it."""
        names = list(self.sizes)
        return prod(self.sizes[name] for name in names[names.index(axis) + 1 :])

    def ranks(self, axis: str, rank: int = 0) -> list[int]:
        """The group of a rank along an axis, in its order."""
        stride, size = self.stride(axis), self.sizes[axis]
        first = rank - rank // stride % size * stride
        return [first + k * stride for k in range(size)]

    def replica_ranks(self, rank: int = 0) -> list[int]:
        """The ranks that hold the same parameters as `rank`: along dp and cp."""
        return sorted(
            other for first in self.ranks("dp", rank) for other in self.ranks("cp", first)
        )

    def ordered(self, *axes: str) -> Layout:
        """The same sizes in another order of the axes, outermost first."""
        if sorted(axes) != sorted(AXES):
            raise ValueError(f"an order names every axis once: {', '.join(AXES)}")
        return replace(self, sizes={axis: self.sizes[axis] for axis in axes})

    def obstacle(self, shape: Shape, batch: int, seq: int | None = None) -> str:
        """The first reason why a model and a batch cannot be cut in this way, or "" if they can.

        batch: sequences of a step; seq: tokens of each, the model's context if not given.
        """
        seq = shape.context if seq is None else seq
        parts = self.tp if self.sequence else 1
        rows = self.dp * self.microbatch
        for number, by, what in (
            (shape.heads, self.tp, "heads / tp"),
            (shape.mlp_width, self.tp, "MLP width / tp"),
            (shape.layers, self.pp * self.chunks, "layers / (pp v)"),
            (batch, rows, "batch / (dp microbatch)"),
            (seq, (2 * self.cp if self.cp > 1 else 1) * parts, "tokens / (2 cp)"),
        ):
            if number % by:
                return f"{what}: {by:,} does not divide {number:,}"
        if self.zero == 3 and self.pp > 1:
            return "ZeRO-3 and a pipeline: every microbatch would gather every layer"
        m = self.microbatches(batch)
        if self.chunks > 1 and (self.pp == 1 or m % self.pp):
            return f"interleaving: {m:,} microbatches are not a multiple of pp {self.pp} > 1"
        return ""


def orders() -> Iterator[tuple[str, ...]]:
    """All orders of the axes."""
    return permutations(AXES)
