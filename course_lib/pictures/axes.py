"""Operations by the axis of a mesh: the fills of `timeline(axes=...)`.

`ledger/axes.py` finds the axes of an operation. An operation of several axes is drawn with a stripe for each.
If the group is not all ranks of its axes, as {0, 5} is not, the operation belongs to no axis and stays grey.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Protocol

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.patches import Patch

from course_lib.ledger.axes import differing_axes, is_message, is_whole, members
from course_lib.ledger.operation import Operation
from course_lib.pictures import colours

Names = tuple[str, ...]
Polygon = list[tuple[float, float]]
BINS = 240  # columns of the time axis for spans too many to be drawn one by one


class Meshed(Protocol):
    """A mesh, as far as a figure needs it; `course_lib.mesh.Mesh` is one."""

    @property
    def sizes(self) -> Mapping[str, int]: ...


class ByAxis:
    """Which axes an operation belongs to, and their fills.

    axes: the sizes of a mesh, outermost axis first, or an object with these `sizes`. Raises ValueError if
    they do not multiply to `world_size`.
    """

    def __init__(self, axes: Mapping[str, int] | Meshed, world_size: int):
        self.sizes = dict(axes if isinstance(axes, Mapping) else axes.sizes)
        if prod(self.sizes.values()) != world_size:
            raise ValueError(
                f"axes={self.sizes} has {prod(self.sizes.values())} places, but the ledger has {world_size} "
                "ranks: give the sizes of the mesh that the ranks made."
            )
        self._known: dict[tuple[tuple[int, ...], bool], Names] = {}
        self.drawn: set[str] = set()  # axes that were drawn, for the legend
        self.striped = False  # whether an operation of several axes was drawn

    def of(self, operation: Operation) -> Names:
        """The axes of an operation, in the order of the mesh; () if it belongs to no axis."""
        ranks, message = members(operation), is_message(operation)
        if (ranks, message) not in self._known:
            axes = differing_axes(ranks, self.sizes)
            known = message or is_whole(ranks, axes, self.sizes)
            self._known[ranks, message] = axes if known else ()
        return self._known[ranks, message]

    def draw(self, ax: Axes, pieces: Sequence[tuple[Polygon, Names]], gid: str, **style) -> None:
        """Boxes, each with a stripe for each of its axes; a collection `gid axis` for each axis."""
        stripes: dict[str, list[Polygon]] = {}
        for box, names in pieces:
            self.drawn.update(names or [""])
            self.striped |= len(names) > 1
            for k, name in enumerate(names or [""]):
                stripes.setdefault(name, []).append(_stripe(box, k, len(names or [""])))
        for name in ("", *self.sizes):
            if name in stripes:
                ax.add_collection(
                    PolyCollection(
                        stripes[name], facecolors=colours.axis_colour(name), edgecolors=colours.INK,
                        hatch=colours.axis_hatch(name), gid=f"{gid} {name}".strip(), **style,
                    )
                )  # fmt: skip

    def shares(
        self, spans: Sequence[tuple[float, float, int, Names]], limits: tuple[float, float],
        half_row: float,
    ) -> list[tuple[Polygon, Names]]:  # fmt: skip
        """Columns of the time axis, each filled from below, with a part for each group's share.

        spans: (first, last, rank, axes), as x of the figure.
        """
        edges = np.linspace(*limits, BINS + 1)
        width = edges[1] - edges[0]
        totals: dict[tuple[int, Names], np.ndarray] = {}
        for first, last, rank, names in spans:
            covered = np.clip(last, edges[:-1], edges[1:]) - np.clip(first, edges[:-1], edges[1:])
            key = rank, names
            totals[key] = totals.get(key, np.zeros(BINS)) + covered / width
        pieces: list[tuple[Polygon, Names]] = []
        level: dict[int, np.ndarray] = {}
        for (rank, names), share in sorted(totals.items()):
            bottom = level.get(rank, np.zeros(BINS))
            top = np.minimum(1.0, bottom + share)
            level[rank] = top
            for k in np.flatnonzero(top - bottom > 1e-9):
                low, high = (rank + half_row * (1 - 2 * float(y)) for y in (bottom[k], top[k]))
                left, right = float(edges[k]), float(edges[k + 1])
                pieces.append(([(left, high), (right, high), (right, low), (left, low)], names))
        return pieces

    def legend(self) -> list[Patch]:
        """A handle for each axis that was drawn."""
        return [
            Patch(
                fc=colours.axis_colour(name), ec=colours.INK, lw=0.4,
                hatch=colours.axis_hatch(name, legend=True), label=f"along {name or 'no axis'}",
            )
            for name in (*self.sizes, "")
            if name in self.drawn
        ]  # fmt: skip


def _stripe(box: Polygon, k: int, n: int) -> Polygon:
    """The k-th of n stripes of a box, from above."""
    (left, top), (right, _), (_, bottom), _ = box
    high, low = (top + (bottom - top) * edge / n for edge in (k, k + 1))
    return [(left, high), (right, high), (right, low), (left, low)]
