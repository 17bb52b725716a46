"""The strokes that steps are drawn with, in inches from the top left: cells, chips, arrows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.patches import FancyArrowPatch
from matplotlib.patheffects import withStroke

from course_lib.ledger.steps import Parcel
from course_lib.ledger.watch import NOWHERE
from course_lib.pictures import colours

Point = tuple[float, float]
Polygon = list[Point]
# "sums": a stripe for each rank. "copies": nothing is ever added, so the cell also has the colour of its
# one rank. "gauge": filled as far as the sum is complete, for cells too narrow for stripes.
Style = Literal["sums", "copies", "gauge"]
CHIP = 0.28  # inches: how wide the picture of a message is


@dataclass(frozen=True)
class Box:
    """A rectangle."""

    left: float
    top: float
    width: float
    height: float

    @property
    def corners(self) -> Polygon:
        right, bottom = self.left + self.width, self.top + self.height
        return [(self.left, self.top), (right, self.top), (right, bottom), (self.left, bottom)]

    @property
    def middle(self) -> Point:
        return self.left + self.width / 2, self.top + self.height / 2


@dataclass
class Paper:
    """Collects cells and stripes, so that matplotlib draws them as a handful of collections."""

    figure: colours.Picture
    ax: Axes
    fills: dict[tuple[str, str], list[Polygon]] = field(default_factory=dict)
    frames: dict[tuple[float, str], list[Polygon]] = field(default_factory=dict)

    @classmethod
    def sheet(cls, width: float, height: float) -> Paper:
        figure = colours.picture(width, height)
        ax = figure.add_axes((0, 0, 1, 1))
        ax.set_xlim(0, width)
        ax.set_ylim(height, 0)
        ax.axis("off")
        return cls(figure, ax)

    def fill(self, box: Box, colour: str, hatch: str = "") -> None:
        self.fills.setdefault((colour, hatch), []).append(box.corners)

    def frame(self, box: Box, colour: str, width: float) -> None:
        self.frames.setdefault((width, colour), []).append(box.corners)

    def finish(self) -> colours.Picture:
        # white first: the stripes lie on it
        for (colour, hatch), polygons in sorted(
            self.fills.items(), key=lambda kv: kv[0][0] != "white"
        ):
            fills = PolyCollection(
                polygons,
                facecolors=colour,
                edgecolors="white",
                lw=0,
                hatch=hatch,
                zorder=5.5 if colour == "white" else 5.6 if colour in colours.TINTS else 6,
            )
            self.ax.add_collection(fills)
        for (width, colour), polygons in sorted(self.frames.items()):
            frames = PolyCollection(
                polygons, facecolors="none", edgecolors=colour, lw=width, zorder=7
            )
            self.ax.add_collection(frames)
        return self.figure

    def text(self, x: float, y: float, text: str, **style) -> None:
        style = {"fontsize": colours.SMALL, "ha": "center", "va": "center"} | style
        self.ax.text(x, y, text, **style)

    def label(self, x: float, y: float, text: str, **style) -> None:
        """Text that stays readable on any colour."""
        halo = [withStroke(linewidth=2.0, foreground="white")]
        style = {"fontweight": "bold", "zorder": 8, "path_effects": halo} | style
        self.text(x, y, text, **style)

    def dot(self, x: float, y: float) -> None:
        self.ax.plot([x], [y], "o", ms=4, color=colours.INK, zorder=5)

    def guide(self, left: float, right: float, y: float) -> None:
        self.ax.plot([left, right], [y, y], color=colours.FAINT, lw=0.8, zorder=1)

    def arrow(self, start: Point, end: Point, thin: bool = False) -> None:
        halo = [] if thin else [withStroke(linewidth=2.2, foreground="white")]
        above = 4 - 0.01 * abs(end[1] - start[1])  # short arrows lie on long ones
        self.ax.add_patch(
            FancyArrowPatch(
                start, end, arrowstyle="-|>", mutation_scale=6 if thin else 9, shrinkA=0, shrinkB=0,
                lw=0.6 if thin else 1.1, color=colours.INK, zorder=above, gid="message",
                path_effects=halo,
            )
        )  # fmt: skip

    def contents(self, counts: np.ndarray, box: Box, style: Style) -> None:
        """The ranks whose contributions a cell holds, with a number if it holds one more than once."""
        self.fill(box, "white")
        if style == "gauge":
            self._gauge(counts, box)
        elif counts.any():
            self._stripes(counts, box, style)
        if counts.max(initial=0) > 1:
            self.label(*box.middle, f"{counts.max()}×", color=colours.ALARM)

    def _gauge(self, counts: np.ndarray, box: Box) -> None:
        height = counts.astype(bool).mean() * box.height
        colour = colours.COMPLETE if counts.all() else colours.PARTIAL
        self.fill(Box(box.left, box.top + box.height - height, box.width, height), colour)

    def _stripes(self, counts: np.ndarray, box: Box, style: Style) -> None:
        width = box.width / len(counts)
        for rank in map(int, np.flatnonzero(counts)):
            if style == "copies":
                self.fill(box, colours.tint(colours.rank_colour(rank)))
            stripe = Box(box.left + rank * width, box.top, width, box.height)
            self.fill(stripe, colours.rank_colour(rank), colours.rank_hatch(rank))

    def chip(self, parcel: Parcel, left: float, y: float, height: float, style: Style) -> float:
        """The load of a message: a number and a cell for each run of elements with the same contents.

        Returns where it ends on the right.
        """
        if parcel.counts is None or not len(parcel.counts):
            return left
        for name, counts in runs(parcel):
            if height >= 0.12:
                room = 0.07 + 0.065 * len(name)
                self.label(left + room / 2, y, name)
                left += room + 0.02
            box = Box(left, y - height / 2, CHIP, height)
            self.contents(counts, box, style)
            self.frame(box, colours.INK, 0.8)
            left += CHIP + 0.04
        return left


def runs(parcel: Parcel) -> list[tuple[str, np.ndarray]]:
    """[("0-3", counts)]: elements that follow one another and hold the same contributions."""
    assert parcel.counts is not None and parcel.elements is not None
    ranges: list[list[int]] = []
    for i, element in enumerate(parcel.elements):
        joins = (
            ranges
            and element == parcel.elements[i - 1] + 1
            and np.array_equal(parcel.counts[i], parcel.counts[i - 1])
        )
        if joins:
            ranges[-1].append(i)
        else:
            ranges.append([i])
    return [(_name(parcel.elements[run]), parcel.counts[run[0]]) for run in ranges]


def _name(elements: np.ndarray) -> str:
    first, last = int(elements[0]), int(elements[-1])
    if first == NOWHERE:
        return "?"
    return str(first) if first == last else f"{first}-{last}"
