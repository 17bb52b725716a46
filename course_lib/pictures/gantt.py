"""A schedule as a chart, simulated or measured. Ranks are rows from the top, and time runs right.

Forward is blue, backward (whole, or its input half) is orange, the weight half is green, and idle is white.
If a rank has several chunks, every second chunk is paler. The number in a cell is the microbatch. An
overlapped pair is one cell, with its forward above its backward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke

from course_lib.pictures import colours
from course_lib.pipeline.actions import Action, Pair, parts
from course_lib.pipeline.memory import peak_activations
from course_lib.pipeline.simulate import Simulation, Timed, Times

WIDTH, ROW, ABOVE, BELOW = 9.6, 0.34, 0.62, 0.5  # inches
LEFT, RIGHT = 0.07, 0.99  # begin and end of the rows, as shares of the width
LEAST_NUMBER = 0.11  # inches: a narrower cell has no number
EDGE, EDGE_SHARE = 0.6, 0.12  # a cell's edge: points, and at most this share of the cell's width
COLOURS = {
    "F": colours.FORWARD,
    "B": colours.BACKWARD,
    "I": colours.BACKWARD,
    "W": colours.WEIGHT_GRADIENT,
}
LABELS = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}

Corners = list[tuple[float, float]]


def gantt(
    times: Times,
    title: str | None = None,
    now: float | None = None,
    critical: bool = False,
    seconds: bool = False,
) -> colours.Picture:
    """Draw a schedule, as `simulate` or `timeline.measure` returns it.

    now: a moment to mark; actions that have not begun by then are drawn as outlines.
    critical: frame the actions that bound the total time; only for a simulation.
    seconds: times are in seconds and shown as milliseconds; otherwise they have no unit.
    """
    figure = colours.picture(WIDTH, _height(times))
    ax = _axes(figure, times, 0, float(times.total), title, seconds)
    _cells(ax, times, now)
    if critical:
        if not isinstance(times, Simulation):
            raise ValueError(
                "only a simulation knows its critical path: draw these times without critical"
            )
        path = [_box(event, 0, 1) for event in times.critical_path]
        _draw(ax, path, "critical", facecolors="none", edgecolors=colours.INK, lw=1.4, zorder=5)
    if now is not None:
        ax.axvline(now, color=colours.ALARM, lw=1.2, zorder=6, gid="now")
    return figure


def gantts(charts: Mapping[str, Times], seconds: bool = False) -> colours.Picture:
    """Draw several charts below each other, with one scale of time: {title: times}."""
    if not charts:
        raise ValueError("there is nothing to draw: give at least one chart, by its title")
    until = max(float(times.total) for times in charts.values())
    figure = colours.picture(WIDTH, sum(map(_height, charts.values())))
    above = 0.0
    for title, times in charts.items():
        _cells(_axes(figure, times, above, until, title, seconds), times, None)
        above += _height(times)
    return figure


def summary(times: Times, seconds: bool = False) -> str:
    """The bubble with both denominators, and the peak of activations, as one line."""
    peaks = peak_activations(times.schedule)
    held = f"{max(peaks):g}" if min(peaks) == max(peaks) else f"{min(peaks):g} to {max(peaks):g}"
    total = f"{1e3 * times.total:.4g} ms" if seconds else f"{float(times.total):g}"
    return (
        f"total {total} · bubble {float(times.of_total):.1%} of the total, "
        f"{float(times.of_ideal):.1%} of the ideal time · {held} activation{'s' * (held != '1')} "
        "in flight on a rank"
    )


def _height(times: Times) -> float:
    """Inches of a chart."""
    return ABOVE + ROW * len(times.schedule) + BELOW


def _axes(
    figure: colours.Picture, times: Times, above: float, until: float, title: str | None,
    seconds: bool,
) -> Axes:  # fmt: skip
    """Axes for a chart `above` inches below the top, without its cells."""
    ranks, whole = len(times.schedule), figure.get_figheight()
    bottom = whole - above - _height(times) + BELOW
    ax = figure.add_axes((LEFT, bottom / whole, RIGHT - LEFT, ROW * ranks / whole))
    ax.set_xlim(0, until)
    ax.set_ylim(ranks - 0.5, -0.5)
    ax.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)], fontsize=colours.TEXT)
    ax.tick_params(axis="y", length=0)
    ax.tick_params(axis="x", labelsize=colours.SMALL, colors=colours.QUIET)
    if seconds:
        ax.xaxis.set_major_formatter(lambda second, _: f"{1e3 * second:g}")
    for side in ("top", "left", "right"):
        ax.spines[side].set_visible(False)
    ax.spines["bottom"].set_color(colours.FAINT)
    _say(ax, times, title, seconds)
    return ax


def _cells(ax: Axes, times: Times, now: float | None) -> None:
    """The actions, one collection for each colour, and their numbers."""
    chunks = [_chunks(row) for row in times.schedule]
    inch = ax.get_xlim()[1] / (WIDTH * (RIGHT - LEFT))
    wide = LEAST_NUMBER * inch
    # Edges as wide as narrow cells would cover them, and a busy rank would look idle.
    edge = min(
        EDGE, EDGE_SHARE * 72 * median(timed.end - timed.start for timed in times.events) / inch
    )
    shapes: dict[tuple[str, bool], list[Corners]] = {}
    waiting: list[Corners] = []
    for event in times.events:
        halves = parts(event.action)
        for place, half in enumerate(halves):
            box = _box(event, place / len(halves), (place + 1) / len(halves))
            if now is not None and event.start >= now:
                waiting.append(box)
                continue
            pale = chunks[event.rank].index(half.stage) % 2 == 1
            shapes.setdefault((half.kind, pale), []).append(box)
            if event.end - event.start >= wide:
                _number(ax, box, half, len(halves))
    for (kind, pale), boxes in shapes.items():
        colour = colours.tint(COLOURS[kind]) if pale else COLOURS[kind]
        gid = f"{kind}{' pale' if pale else ''}"
        _draw(ax, boxes, gid, facecolors=colour, edgecolors="white", lw=edge, zorder=3)
    _draw(ax, waiting, "to come", facecolors="none", edgecolors=colours.FAINT, lw=edge, zorder=2)


def _chunks(row: Sequence[Action | Pair]) -> list[int]:
    """The stages of a rank, in order."""
    return sorted({half.stage for action in row for half in parts(action)})


def _box(event: Timed, above: float, below: float) -> Corners:
    """The corners of a cell, or of its part from `above` to `below`: 0 is its top and 1 its bottom."""
    left, right = float(event.start), float(event.end)
    top, bottom = event.rank - 0.42 + 0.84 * above, event.rank - 0.42 + 0.84 * below
    return [(left, top), (right, top), (right, bottom), (left, bottom)]


def _number(ax: Axes, box: Corners, action: Action, halves: int) -> None:
    (left, top), (right, bottom) = box[0], box[2]
    ax.text(
        (left + right) / 2, (top + bottom) / 2, str(action.microbatch), ha="center", va="center_baseline",
        fontsize=colours.SMALL / (1 if halves == 1 else 1.5), color=colours.INK, zorder=4, clip_on=True,
        path_effects=[withStroke(linewidth=1.6, foreground="white")],
    )  # fmt: skip


def _draw(ax: Axes, boxes: list[Corners], gid: str, **style) -> None:
    if not boxes:
        return
    cells = ax.add_collection(PolyCollection(boxes, gid=gid, **style), autolim=False)
    if style["facecolors"] == "none":  # show a frame at the chart's edge as a whole
        cells.set_clip_on(False)


def _say(ax: Axes, times: Times, title: str | None, seconds: bool) -> None:
    """Write the title, the line of figures below, and the legend of the colours that occur."""
    ax.annotate(title or "", (0, 1), (0, 24), "axes fraction", "offset points", fontsize=10.5)
    ax.annotate(
        summary(times, seconds), (1, 0), (0, -21), "axes fraction", "offset points", ha="right", va="top",
        fontsize=colours.SMALL, color=colours.QUIET,
    )  # fmt: skip
    if seconds:
        ax.annotate(
            "milliseconds", (0, 0), (0, -21), "axes fraction", "offset points", va="top",
            fontsize=colours.SMALL, color=colours.QUIET,
        )  # fmt: skip
    there = {half.kind for row in times.schedule for action in row for half in parts(action)}
    handles = [
        Patch(fc=COLOURS[kind], ec="white", label=LABELS[kind]) for kind in LABELS if kind in there
    ]
    handles.append(Patch(fc=colours.IDLE, ec=colours.FAINT, label="idle"))
    ax.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(-0.005, 1), ncols=len(handles),
        frameon=False, fontsize=colours.SMALL, handlelength=1.6, columnspacing=1.6, borderaxespad=0.1,
    )  # fmt: skip
