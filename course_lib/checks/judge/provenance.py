"""Where a wrong value comes from.

Every rank contributes distinct random integers, so a wrong element tells its parts: which ranks' values, how
often each, and from which position. One element can be explained in several ways by chance; the explanation
that holds for most wrong elements is taken.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter, defaultdict
from dataclasses import dataclass

import numpy as np
import torch

TABLE = 4_000_000  # entries of the largest table made; more wrong elements are not decoded
MOST = {1: 8, 2: 8, 3: 6, 4: 4, 5: 3}  # how often a value may count; 2 with more sources


@dataclass(frozen=True)
class Origin:
    """The parts of an element. kind:

    "sum": counts[s] times source s's value, all from positions `offset` after the element's own;
    "mean": the sum divided by the number of sources; "zero"; "nan"; "unknown".
    """

    kind: str
    counts: tuple[int, ...] = ()
    offset: int = 0


@dataclass(frozen=True)
class Piece:
    """Elements of one rank's result that are wrong in the same way."""

    rank: int
    elements: tuple[int, ...]
    origin: Origin


class Provenance:
    """Decodes results that should be sums or copies of known contributions.

    contributions: (sources, positions) integers, 0 where a source has no value at a position. A source is
    a rank's value, or the content of an output buffer before the call. `summed`: how many of the
    sources (the first ones) a complete sum takes.
    """

    def __init__(self, contributions: np.ndarray, summed: int | None = None):
        self.values = contributions.astype(np.int64)
        self.sources, self.positions = self.values.shape
        self.summed = self.sources if summed is None else summed
        self.total = self.values[: self.summed].sum(0)
        self._moved: tuple[np.ndarray, ...] | None = None

    def decode(
        self, rank: int, actual: torch.Tensor, expected: torch.Tensor, home: np.ndarray
    ) -> list[Piece]:
        """The wrong elements of one rank's result, grouped by their origin; [] when all is right.

        actual, expected: the same shape; home: for each element the position that it should hold.
        """
        values = actual.detach().to(torch.float64).reshape(-1).numpy()
        bad = np.flatnonzero(values != expected.detach().to(torch.float64).reshape(-1).numpy())
        if not len(bad):
            return []
        looked = bad[: TABLE // len(self.multiples)]
        origins = self.origins(values[looked], home[looked])
        groups: dict[Origin, list[int]] = defaultdict(list)
        for element, origin in zip(looked.tolist(), origins, strict=True):
            groups[origin].append(element)
        pieces = [Piece(rank, tuple(elements), origin) for origin, elements in groups.items()]
        return sorted(pieces, key=lambda piece: piece.elements[0])

    def origins(self, values: np.ndarray, home: np.ndarray) -> list[Origin]:
        candidates: list[list[Origin]] = [[] for _ in values]
        whole = np.isfinite(values) & (np.abs(values) < 1 << 52) & (values == np.round(values))
        number = np.where(whole, values, -1).astype(np.int64)
        for index, value in enumerate(values):
            if np.isnan(value):
                candidates[index].append(Origin("nan"))
            elif value == 0:
                candidates[index].append(Origin("zero"))
            elif self.summed > 1 and abs(value * self.summed - self.total[home[index]]) < 1e-6 * abs(value):
                candidates[index].append(Origin("mean"))
        self.add_own(candidates, number, home)
        self.add_moved(candidates, number, home)
        support = Counter(origin for some in candidates for origin in some)
        return [
            max(some, key=lambda o: (support[o], -complexity(o))) if some else Origin("unknown")
            for some in candidates
        ]

    def add_own(self, candidates: list[list[Origin]], number: np.ndarray, home: np.ndarray) -> None:
        """Sums of contributions at the element's own position."""
        table = self.multiples
        sums = table @ self.values[:, home]
        for k, index in zip(*np.nonzero(sums == number), strict=True):
            candidates[index].append(Origin("sum", tuple(table[k].tolist())))

    @functools.cached_property
    def multiples(self) -> np.ndarray:
        """How often each source may count: a few times each, and all equally often up to 64 times."""
        most = MOST.get(self.sources, 2)
        small = itertools.product(range(most + 1), repeat=self.sources)
        equal = ((k,) * self.summed + (0,) * (self.sources - self.summed) for k in range(2, 65))
        return np.array([row for row in dict.fromkeys((*small, *equal)) if any(row)], dtype=np.int64)

    def add_moved(self, candidates: list[list[Origin]], number: np.ndarray, home: np.ndarray) -> None:
        """Single values, sums of neighbouring ranks and complete sums from another position."""
        sums, vectors, positions = self.elsewhere()
        first, last = np.searchsorted(sums, number, "left"), np.searchsorted(sums, number, "right")
        for index in range(len(number)):
            for k in range(first[index], min(last[index], first[index] + 8)):
                offset = int(positions[k] - home[index])
                if offset:
                    counts = tuple(self._arcs[vectors[k]].tolist())
                    candidates[index].append(Origin("sum", counts, offset))

    def elsewhere(self) -> tuple[np.ndarray, ...]:
        """(sorted sums, index of the vector of counts, position) for every arc of ranks and position."""
        if self._moved is None:
            n, arcs = self.summed, []
            for length in range(1, n + 1):
                for start in range(n if length < n else 1):
                    arc = np.zeros(self.sources, dtype=np.int64)
                    arc[[(start + i) % n for i in range(length)]] = 1
                    arcs.append(arc)
            self._arcs = np.array(arcs)
            present = (self._arcs @ (self.values != 0)) == self._arcs.sum(1, keepdims=True)
            sums = np.where(present, self._arcs @ self.values, -2).reshape(-1)
            order = np.argsort(sums, kind="stable")
            vectors, positions = np.divmod(order, self.positions)
            self._moved = (sums[order], vectors, positions)
        return self._moved


def complexity(origin: Origin) -> int:
    """Simple explanations first: few sources, each once, at their own place."""
    return (
        10 * (origin.offset != 0)
        + sum(abs(count - 1) for count in origin.counts if count)
        + sum(count == 0 for count in origin.counts)
    )
