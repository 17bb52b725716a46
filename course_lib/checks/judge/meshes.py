"""The groups of a mesh, as a case names them: every rank gets those of all sets of its axes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, combinations
from math import prod
from typing import Any

from course_lib.checks.judge.case import Observed
from course_lib.ledger.operation import Operation
from course_lib.mesh.coordinates import axis_ranks, coordinates

Sizes = Mapping[str, int]  # ranks along each axis, outermost first
SMALL = 64  # bytes: an operation of so few is for a loss or a norm


@dataclass(frozen=True)
class OnMesh:
    """A mesh, with the instructions that its ranks need."""

    sizes: Sizes

    @property
    def n(self) -> int:
        return prod(self.sizes.values())

    def size(self, *axes: str) -> int:
        return prod(self.sizes.get(axis, 1) for axis in axes)

    def place(self, rank: int, axis: str) -> int:
        return coordinates(rank, self.sizes).get(axis, 0)

    @property
    def keys(self) -> Iterator[tuple[str, ...]]:
        """Every set of axes, outermost first; the empty one is a rank alone."""
        names = list(self.sizes)
        return chain.from_iterable(combinations(names, k) for k in range(len(names) + 1))

    @cached_property
    def groups(self) -> list[list[int]]:
        """Each group once."""
        members = {tuple(self.ranks(rank, *key)) for key in self.keys for rank in range(self.n)}
        return [list(ranks) for ranks in sorted(members, key=lambda ranks: (len(ranks), ranks))]

    def ranks(self, rank: int, *axes: str) -> list[int]:
        return axis_ranks(rank, self.sizes, tuple(axis for axis in self.sizes if axis in axes))

    def described(self, rank: int) -> dict[str, Any]:
        return {
            "sizes": dict(self.sizes),
            "coordinate": coordinates(rank, self.sizes),
            "axes": [
                [list(key), ranks := self.ranks(rank, *key), self.groups.index(ranks)] for key in self.keys
            ],
        }

    def called(self, observed: Observed, rank: int, call: int = 0) -> list[Operation]:
        """The operations of the student's call number `call`."""
        begun = observed.values[rank].begun
        return observed.operations[rank][begun[call] : begun[call + 1]]

    def over(self, operations: Sequence[Operation], rank: int, *axes: str) -> list[Operation]:
        """Collectives inside groups of these axes or of some of them."""
        of_axes = {
            tuple(self.ranks(rank, *key))
            for k in range(1, len(axes) + 1)
            for key in combinations(axes, k)
            if self.size(*key) > 1
        }
        return [
            operation
            for operation in operations
            if operation.op not in ("send", "recv") and operation.group in of_axes
        ]
