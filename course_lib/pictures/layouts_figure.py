"""Figures of several layouts side by side: are they one model, what do they send, what do they hold?

parity     the losses of each layout, and how far they are from those of the first
traffic    bytes that a rank sends in a step, by axis
field      memory at the peak against bytes sent, with a point for each layout
long_run   the losses of a run that was killed and went on
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from course_lib.pictures.colours import (
    ALARM,
    FAINT,
    INK,
    QUIET,
    SMALL,
    Picture,
    axis_colour,
    axis_hatch,
    picture,
)

FLOAT64 = 2.2e-16  # the distance of 1 from the next number
Sent = Mapping[str, Mapping[str, float]]  # {layout: {axis: bytes}}


def parity(losses: Mapping[str, Sequence[float]]) -> Picture:
    """The curves on the left, and on the right the largest distance of each from the first, on a log scale.

    losses: {layout: losses in nats}, equally many of each; the others are compared with the first.
    """
    figure = picture(8.6, 0.6 + 0.21 * max(len(losses), 8))
    if not losses:
        return _nothing(figure)
    curves = figure.add_axes((0.07, 0.14, 0.33, 0.8))
    apart = figure.add_axes((0.62, 0.14, 0.36, 0.8))
    first = next(iter(losses.values()))
    for place, each in enumerate(losses.values()):
        curves.plot(range(1, len(each) + 1), each, color=INK, alpha=0.35, marker="o", markersize=3)
        distance = max(abs(a - b) for a, b in zip(each, first, strict=True))
        apart.plot(max(distance, FLOAT64 / 4), -place, "o", color=INK, markersize=5)
    rounding = max(map(abs, first)) * FLOAT64
    apart.axvline(rounding, color=FAINT, linewidth=1.2)
    apart.text(rounding, 0.9, " one rounding", size=SMALL, color=QUIET)
    apart.set_xscale("log"), apart.set_xlim(FLOAT64 / 8, 1e-1)
    apart.set_yticks([-place for place in range(len(losses))], list(losses), size=SMALL)
    apart.set_ylim(-len(losses), 1.8)
    apart.set_xlabel("largest difference of a loss, nats", size=SMALL)
    curves.set_xlabel("step", size=SMALL), curves.set_ylabel("loss, nats a byte", size=SMALL)
    curves.set_title(f"{len(losses)} curves", size=SMALL, color=QUIET)
    curves.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in (curves, apart):
        _plain(axes)
    return figure


def traffic(
    sent: Sent, predicted: Mapping[tuple[str, str], float] | None = None, halve: bool = False
) -> Picture:
    """A bar for each layout, cut by axis, and a cross at each prediction, in the bar's own units.

    sent: {layout: {axis: bytes}} of one rank and step. predicted: {(layout, axis): bytes}; a layout that did
    not run has a cross and no bar. halve: the bytes of a run in float64 are drawn as those of float32.
    """
    predicted = dict(predicted or {})
    names = list(dict.fromkeys([*sent, *(name for name, _ in predicted)]))
    figure = picture(8.6, 0.8 + 0.21 * max(len(names), 4))
    if not names:
        return _nothing(figure)
    axes = figure.add_axes((0.24, 0.16, 0.74, 0.76))
    shown: dict[str, None] = {}
    for place, name in enumerate(names):
        start = 0.0
        for axis, nbytes in sent.get(name, {}).items():
            if axis == "numbers":
                continue
            length = nbytes / (2 if halve else 1) / 1e6
            axes.barh(
                -place, length, 0.7, start, color=axis_colour(axis.split("+")[0]), edgecolor=INK,
                linewidth=0.5, hatch=axis_hatch(axis.split("+")[0]),
            )  # fmt: skip
            for (where, which), guess in predicted.items():
                if (where, which) == (name, axis):
                    axes.plot(start + guess / 1e6, -place, "x", color=ALARM, markersize=8)
            start, shown[axis] = start + length, None
        for (where, _), guess in predicted.items():
            if where == name and name not in sent:
                axes.plot(guess / 1e6, -place, "x", color=ALARM, markersize=8)
    for first in dict.fromkeys(axis.split("+")[0] for axis in shown):
        # A bar without length and height has a place in the legend, and none in the picture.
        axes.barh(
            0, 0, 0, color=axis_colour(first), hatch=axis_hatch(first, legend=True), edgecolor=INK,
            linewidth=0.5, label=", ".join(axis for axis in shown if axis.split("+")[0] == first),
        )  # fmt: skip
    if predicted:
        axes.plot([], [], "x", color=ALARM, label="your prediction")
    axes.legend(fontsize=SMALL, frameon=False, loc="lower right")
    axes.set_yticks([-place for place in range(len(names))], names, size=SMALL)
    axes.set_xlim(left=0)
    axes.set_xlabel("MB that rank 0 sends in a step", size=SMALL)
    _plain(axes)
    return figure


def field(
    sent: Sent,
    peaks: Mapping[str, float],
    arrows: Sequence[tuple[str, str]] = (),
    halve: bool = False,
) -> Picture:
    """Memory at the peak against bytes sent, a point for each layout, in the colour of its largest axis.

    peaks: {layout: bytes}. arrows: (from, to), drawn if both layouts ran. halve: as in `traffic`.
    """
    figure, unit = picture(8.6, 4.6), 1e6 * (2 if halve else 1)
    if not sent:
        return _nothing(figure)
    axes = figure.add_axes((0.09, 0.12, 0.88, 0.84))
    places: dict[str, tuple[float, float]] = {}
    for name, by_axis in sent.items():
        bulk = {axis: nbytes for axis, nbytes in by_axis.items() if axis != "numbers"}
        largest = max(bulk, key=lambda axis: bulk[axis], default="")
        total, peak = sum(bulk.values()) / unit, peaks[name] / unit
        colour = axis_colour(largest.split("+")[0]) if bulk else INK
        axes.plot(total, peak, "o", color=colour, markeredgecolor=INK, markersize=8)
        # Two layouts at nearly the same place: the later name goes below.
        near = any(abs(total - x) < 0.5 and abs(peak - y) < 1 for x, y in places.values())
        axes.annotate(
            name,
            (total, peak),
            (6, -9 if near else 3),
            textcoords="offset points",
            size=SMALL,
            color=INK,
            zorder=5,  # over the arrows, which must not cross out a name
            bbox={
                "facecolor": axes.get_facecolor(),
                "edgecolor": "none",
                "alpha": 0.85,
                "pad": 0.5,
            },
        )
        places[name] = total, peak
    for start, end in arrows:
        if start in places and end in places:
            arrow = {"arrowstyle": "->", "color": QUIET, "shrinkA": 6, "shrinkB": 6, "alpha": 0.6}
            axes.annotate("", places[end], places[start], arrowprops=arrow)
    axes.set_ylim(bottom=0), axes.margins(x=0.18)
    axes.set_xlim(
        left=-0.04 * axes.get_xlim()[1]
    )  # room for a point at 0 bytes, and no tick below 0
    axes.set_xlabel("MB that rank 0 sends in a step", size=SMALL)
    axes.set_ylabel("MB at the peak of rank 0's memory", size=SMALL)
    _plain(axes)
    return figure


def long_run(losses: Sequence[float], killed: int, restarted: int) -> Picture:
    """The losses, a cross at the step in which the run was killed, and the steps that were done twice."""
    figure = picture(7.6, 2.6)
    axes = figure.add_axes((0.09, 0.2, 0.89, 0.74))
    axes.axvspan(restarted, killed, color=FAINT, label="done twice")
    axes.plot(range(len(losses)), losses, color=INK, linewidth=0.8)
    axes.plot(
        killed, losses[killed], "x", color=ALARM, markersize=11, markeredgewidth=2, label="killed"
    )
    axes.legend(fontsize=SMALL, frameon=False)
    axes.set_xlabel("step", size=SMALL), axes.set_ylabel("loss, nats a byte", size=SMALL)
    _plain(axes)
    return figure


def _plain(axes: Axes) -> None:
    axes.tick_params(labelsize=SMALL)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _nothing(figure: Picture) -> Picture:
    figure.text(0.5, 0.5, "nothing was measured", ha="center", color=QUIET)
    return figure
