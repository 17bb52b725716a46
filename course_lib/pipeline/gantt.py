"""A simulated schedule as a chart: ranks are rows from the top, time runs right.

Forward is blue, backward (whole, or its input half) orange, the weight half green, idle white; of several
chunks of a rank every second is paler. The number in a cell is the microbatch. An overlapped pair is one
cell, its forward above its backward.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke

from course_lib.ledger import colours
from course_lib.pipeline.actions import Action, Pair, parts
from course_lib.pipeline.memory import peak_activations
from course_lib.pipeline.simulate import Simulation, Timed

WIDTH, ROW, ABOVE, BELOW = 9.6, 0.34, 0.62, 0.5  # inches
LEFT, RIGHT = 0.07, 0.99  # of the width: where the rows begin and end
LEAST_NUMBER = 0.11  # inches: a narrower cell has no number
COLOURS = {
    "F": colours.FORWARD,
    "B": colours.BACKWARD,
    "I": colours.BACKWARD,
    "W": colours.WEIGHT_GRADIENT,
}
LABELS = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}

Corners = list[tuple[float, float]]


def gantt(
    simulation: Simulation,
    title: str | None = None,
    now: float | None = None,
    critical: bool = False,
) -> colours.Picture:
    """Draw a simulated schedule.

    now: a moment to mark; what has not begun by then is drawn as an outline.
    critical: frame the actions that bound the total time.
    """
    ranks = len(simulation.schedule)
    height = ABOVE + ROW * ranks + BELOW
    figure = colours.picture(WIDTH, height)
    ax = figure.add_axes((LEFT, BELOW / height, RIGHT - LEFT, ROW * ranks / height))
    _frame(ax, ranks, simulation.total)
    _cells(ax, simulation, now)
    if critical:
        path = [_box(one, 0, 1) for one in simulation.critical_path]
        _draw(ax, path, "critical", facecolors="none", edgecolors=colours.INK, lw=1.4, zorder=5)
    if now is not None:
        ax.axvline(now, color=colours.ALARM, lw=1.2, zorder=6, gid="now")
    _say(ax, simulation, title)
    return figure


def summary(simulation: Simulation) -> str:
    """The bubble with both denominators, and the peak of activations, as one line."""
    peaks = peak_activations(simulation.schedule)
    held = f"{max(peaks):g}" if min(peaks) == max(peaks) else f"{min(peaks):g} to {max(peaks):g}"
    return (
        f"total {float(simulation.total):g} · bubble {float(simulation.of_total):.1%} of the total, "
        f"{float(simulation.of_ideal):.1%} of the ideal time · {held} activations in flight on a rank"
    )


def _frame(ax: Axes, ranks: int, total: float) -> None:
    ax.set_xlim(0, float(total))
    ax.set_ylim(ranks - 0.5, -0.5)
    ax.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)], fontsize=colours.TEXT)
    ax.tick_params(axis="y", length=0)
    ax.tick_params(axis="x", labelsize=colours.SMALL, colors=colours.QUIET)
    for side in ("top", "left", "right"):
        ax.spines[side].set_visible(False)
    ax.spines["bottom"].set_color(colours.FAINT)


def _cells(ax: Axes, simulation: Simulation, now: float | None) -> None:
    """The actions, one collection for each colour, and their numbers."""
    chunks = [_chunks(row) for row in simulation.schedule]
    wide = LEAST_NUMBER / (WIDTH * (RIGHT - LEFT)) * float(simulation.total)
    shapes: dict[tuple[str, bool], list[Corners]] = {}
    waiting: list[Corners] = []
    for event in simulation.events:
        halves = parts(event.action)
        for place, one in enumerate(halves):
            box = _box(event, place / len(halves), (place + 1) / len(halves))
            if now is not None and event.start >= now:
                waiting.append(box)
                continue
            pale = chunks[event.rank].index(one.stage) % 2 == 1
            shapes.setdefault((one.kind, pale), []).append(box)
            if event.end - event.start >= wide:
                _number(ax, box, one, len(halves))
    for (kind, pale), boxes in shapes.items():
        colour = colours.tint(COLOURS[kind]) if pale else COLOURS[kind]
        gid = f"{kind}{' pale' if pale else ''}"
        _draw(ax, boxes, gid, facecolors=colour, edgecolors="white", lw=0.6, zorder=3)
    _draw(ax, waiting, "to come", facecolors="none", edgecolors=colours.FAINT, lw=0.6, zorder=2)


def _chunks(row: Sequence[Action | Pair]) -> list[int]:
    """The stages of a rank, in order."""
    return sorted({one.stage for action in row for one in parts(action)})


def _box(event: Timed, above: float, below: float) -> Corners:
    """The corners of a cell, or of its part from `above` to `below`, 0 being its top and 1 its bottom."""
    left, right = float(event.start), float(event.end)
    top, bottom = event.rank - 0.42 + 0.84 * above, event.rank - 0.42 + 0.84 * below
    return [(left, top), (right, top), (right, bottom), (left, bottom)]


def _number(ax: Axes, box: Corners, one: Action, halves: int) -> None:
    (left, top), (right, bottom) = box[0], box[2]
    ax.text(
        (left + right) / 2, (top + bottom) / 2, str(one.microbatch), ha="center", va="center_baseline",
        fontsize=colours.SMALL / (1 if halves == 1 else 1.5), color=colours.INK, zorder=4, clip_on=True,
        path_effects=[withStroke(linewidth=1.6, foreground="white")],
    )  # fmt: skip


def _draw(ax: Axes, boxes: list[Corners], gid: str, **style) -> None:
    if boxes:
        ax.add_collection(PolyCollection(boxes, gid=gid, **style), autolim=False)


def _say(ax: Axes, simulation: Simulation, title: str | None) -> None:
    """The title, the line of figures below, and the colours that occur."""
    ax.annotate(title or "", (0, 1), (0, 24), "axes fraction", "offset points", fontsize=10.5)
    ax.annotate(
        summary(simulation), (1, 0), (0, -21), "axes fraction", "offset points", ha="right", va="top",
        fontsize=colours.SMALL, color=colours.QUIET,
    )  # fmt: skip
    there = {one.kind for row in simulation.schedule for action in row for one in parts(action)}
    handles = [
        Patch(fc=COLOURS[kind], ec="white", label=LABELS[kind]) for kind in LABELS if kind in there
    ]
    handles.append(Patch(fc=colours.IDLE, ec=colours.FAINT, label="idle"))
    ax.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(-0.005, 1), ncols=len(handles),
        frameon=False, fontsize=colours.SMALL, handlelength=1.6, columnspacing=1.6, borderaxespad=0.1,
    )  # fmt: skip
