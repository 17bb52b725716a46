"""The marks of a timeline: blocked spans, bands of collectives, arrows of messages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.patches import FancyArrowPatch
from matplotlib.patheffects import withStroke

from course_lib.ledger import wording
from course_lib.ledger.matching import Collective, Message
from course_lib.ledger.operation import Operation
from course_lib.ledger.record import Record
from course_lib.pictures import colours
from course_lib.pictures.axes import BINS, ByAxis, Names

HALF_ROW = 0.2  # of a row
MANY = 250  # messages that are still drawn as arrows, one by one
BUNDLES = 600  # lines that are drawn for more than that
LETTER = 0.0075  # width of a letter of a label, with some room, as a share of the figure's

Segment = tuple[float, float, float, float]  # x, y, x, y
Polygon = list[tuple[float, float]]


class Clock:
    """Seconds of the run as x of the figure, in the unit that suits the window."""

    def __init__(self, origin: float, start: float, end: float):
        self.origin, self.start, self.end = origin, start, end
        self.scale, self.unit = wording.time_unit(end - start)

    def x(self, time: float) -> float:
        return (time - self.origin) * self.scale

    @property
    def limits(self) -> tuple[float, float]:
        return self.start * self.scale, self.end * self.scale

    def outside(self, first: float, last: float) -> bool:
        low, high = self.limits
        return last < low or first > high


def box(first: float, last: float, rank: int) -> list[tuple[float, float]]:
    top, bottom = rank - HALF_ROW, rank + HALF_ROW
    return [(first, top), (last, top), (last, bottom), (first, bottom)]


def blocked_span(operation: Operation, ended: float) -> tuple[float, float] | None:
    """From when to when the rank was blocked in an operation, in seconds of the run."""
    if operation.blocked <= 0:
        return None
    if operation.completed is None:
        return operation.issued, max(ended, operation.issued + operation.blocked)
    return operation.completed - operation.blocked, operation.completed


def blocked(ax: Axes, ledger: Record, clock: Clock, axes: ByAxis | None = None) -> bool:
    """Grey where a rank is blocked; hatched if it still was at the end. Returns whether one was.

    axes: fill by the axis of the operation, instead of grey.
    """
    spans: list[list[tuple[float, float]]] = [[] for _ in range(ledger.world_size)]
    by_axis: list[tuple[float, float, int, Names]] = []
    waiting = []
    for operation in ledger.operations():
        span = blocked_span(operation, ledger.ended)
        if span is None or clock.outside(clock.x(span[0]), clock.x(span[1])):
            continue
        first, last = clock.x(span[0]), clock.x(span[1])
        spans[operation.rank].append((first, last))
        if axes:
            by_axis.append((first, last, operation.rank, axes.of(operation)))
        if operation.completed is None:
            waiting.append(box(first, last, operation.rank))
    many = max(map(len, spans), default=0) > BINS
    if axes:
        pieces = [(box(first, last, rank), names) for first, last, rank, names in by_axis]
        if many:
            pieces = axes.shares(by_axis, clock.limits, HALF_ROW)
        axes.draw(ax, pieces, "blocked", lw=0, zorder=2)
        boxes, shades = [], []
    elif many:
        boxes, shades = _shares(spans, clock)
    else:
        boxes = [box(*span, rank) for rank, row in enumerate(spans) for span in row]
        shades = [colours.COMMUNICATION] * len(boxes)
    grey = PolyCollection(boxes, facecolors=shades, edgecolors="none", zorder=2, gid="blocked")
    ax.add_collection(grey)
    hatched = PolyCollection(
        waiting, facecolors="none", edgecolors=colours.ALARM, hatch="////", lw=0.8, zorder=2.2
    )
    hatched.set_gid("waiting")
    ax.add_collection(hatched)
    return bool(waiting)


def _shares(
    spans: Sequence[Sequence[tuple[float, float]]], clock: Clock
) -> tuple[list[list[tuple[float, float]]], list[tuple[float, float, float]]]:
    """Columns of the time axis, greyer for a larger share of time for which the rank was blocked."""
    edges = np.linspace(*clock.limits, BINS + 1)
    full, white = np.array(to_rgb(colours.COMMUNICATION)), np.ones(3)
    boxes, shades = [], []
    for rank, row in enumerate(spans):
        share = np.zeros(BINS)
        for first, last in row:
            share += np.clip(last - edges[:-1], 0, None) - np.clip(last - edges[1:], 0, None)
            share -= np.clip(first - edges[:-1], 0, None) - np.clip(first - edges[1:], 0, None)
        share = np.clip(share / (edges[1] - edges[0]), 0, 1)
        boxes += [box(edges[k], edges[k + 1], rank) for k in range(BINS)]
        shades += [tuple(white + part * (full - white)) for part in share]
    return boxes, shades


def collective_bands(
    ax: Axes, collectives: Sequence[Collective], clock: Clock, axes: ByAxis | None = None
) -> None:
    """A band over the members, from each one's call to the moment it returned.

    axes: each rank's part is filled by the axis, without bands, because ranks of an outer axis are not
    neighbours, and a band between two of them would cover the ranks in between.
    """
    bands, boxes, labels, pieces = [], [], [], []
    for collective in collectives:
        spans = {rank: _call_span(call, clock) for rank, call in sorted(collective.calls.items())}
        first, last = min(s[0] for s in spans.values()), max(s[1] for s in spans.values())
        if clock.outside(first, last):
            continue
        if axes:
            names = axes.of(next(iter(collective.calls.values())))
            pieces += [(box(*span, rank), names) for rank, span in spans.items()]
        else:
            boxes += [box(*span, rank) for rank, span in spans.items()]
            bands.append(_band(spans))
        label = (
            f"{collective.op} {wording.size(collective.nbytes)}"
            if collective.nbytes
            else collective.op
        )
        labels.append((label, min(spans), spans[min(spans)]))
    _labels(ax, labels, clock)
    if axes:
        axes.draw(ax, pieces, "collectives", lw=0.4, zorder=2.5)
    ax.add_collection(
        PolyCollection(bands, facecolors=colours.COMMUNICATION, alpha=0.35, lw=0, zorder=1.5)
    )
    ax.add_collection(
        PolyCollection(
            boxes,
            facecolors=colours.COMMUNICATION,
            edgecolors=colours.INK,
            lw=0.7,
            zorder=2.5,
            gid="collectives",
        )
    )


def _labels(ax: Axes, labels: Sequence[tuple[str, int, tuple[float, float]]], clock: Clock) -> None:
    """Names above the boxes on the topmost rank, the longest calls first, so that no two names overlap."""
    low, high = clock.limits
    taken: list[tuple[int, float, float]] = []
    for label, rank, (first, last) in sorted(labels, key=lambda label: label[2][0] - label[2][1]):
        middle = (max(first, low) + min(last, high)) / 2
        half = 0.5 * LETTER * (high - low) * len(label)
        left, right = middle - half, middle + half
        near = any(row == rank and left < end and right > begin for row, begin, end in taken)
        if near or min(last, high) - max(first, low) < 2 * half:
            continue
        taken.append((rank, left, right))
        ax.text(
            middle, rank - HALF_ROW - 0.05, label, ha="center", va="bottom",
            fontsize=colours.SMALL, color=colours.INK, clip_on=True, gid="collective",
        )  # fmt: skip


def _call_span(call: Operation, clock: Clock) -> tuple[float, float]:
    end = call.issued + call.blocked if call.completed is None else call.completed
    return clock.x(call.issued), clock.x(end)


def _band(spans: dict[int, tuple[float, float]]) -> list[tuple[float, float]]:
    left = [(spans[rank][0], float(rank)) for rank in sorted(spans)]
    right = [(spans[rank][1], float(rank)) for rank in sorted(spans, reverse=True)]
    return left + right


def message_segment(message: Message, clock: Clock) -> Segment:
    """From the sender's edge at the time of its call to the receiver's edge when it knew."""
    send, recv = message.send, message.recv
    arrival = max(send.issued, recv.issued) if recv.completed is None else recv.completed
    side = 0.0 if send.rank == recv.rank else HALF_ROW if recv.rank > send.rank else -HALF_ROW
    return clock.x(send.issued), send.rank + side, clock.x(arrival), recv.rank - side


def arrows(ax: Axes, messages: Sequence[Message], clock: Clock, bundled: bool = True) -> list[str]:
    """Draw the messages; returns the figure's notes on messages it does not show.

    bundled: many are drawn as bundles. Otherwise they are left out, since they would hide the bars.
    """
    segments = [message_segment(message, clock) for message in messages]
    segments = [s for s in segments if not clock.outside(*sorted((s[0], s[2])))]
    if len(segments) > MANY and not bundled:
        return [f"{len(segments):,} messages are left out; a shorter window= shows them."]
    if len(segments) > MANY:
        return [_bundles(ax, segments, clock)]
    for x0, y0, x1, y1 in sorted(segments, key=lambda s: -abs(s[1] - s[3])):  # short ones on top
        ax.add_patch(
            FancyArrowPatch(
                (x0, y0), (x1, y1), arrowstyle="-|>", mutation_scale=8, shrinkA=0, shrinkB=0,
                lw=1.0, color=colours.INK, zorder=4, clip_on=True, gid="message",
                path_effects=[withStroke(linewidth=1.9, foreground="white")],
            )
        )  # fmt: skip
    ax.plot(
        [s[0] for s in segments], [s[1] for s in segments], "o", ms=2.6, color=colours.INK, zorder=4
    )
    return []


def _bundles(ax: Axes, segments: Sequence[Segment], clock: Clock) -> str:
    """Many messages. Those between two ranks that begin at about the same time become their mean."""
    bins, groups = 2 * BINS, _by_start(segments, 2 * BINS, clock)
    while len(groups) > BUNDLES and bins > 8:
        bins //= 2
        groups = _by_start(segments, bins, clock)
    most = max(map(len, groups))
    lines = [np.mean(group, axis=0).reshape(2, 2) for group in groups]
    widths = [0.5 + 1.0 * len(group) / most for group in groups]
    bundles = LineCollection(lines, colors=colours.INK, linewidths=widths, alpha=0.6, zorder=4)
    bundles.set_gid("bundles")
    ax.add_collection(bundles)
    return (
        f"{len(segments):,} messages, drawn as {len(lines):,} bundles without arrow heads; "
        "a shorter window= shows them one by one."
    )


def _by_start(segments: Sequence[Segment], bins: int, clock: Clock) -> list[list[Segment]]:
    step = (clock.limits[1] - clock.limits[0]) / bins
    groups: dict[tuple, list[Segment]] = {}
    for segment in segments:
        groups.setdefault((segment[0] // step, segment[1], segment[3]), []).append(segment)
    return list(groups.values())


def lonely(ax: Axes, ledger: Record, clock: Clock) -> list[str]:
    """Sends and receives without a partner, as a stub towards the peer with a cross at its end."""
    alone = [operation for operation in ledger.unmatched() if not _out_of_sight(operation, clock)]
    for operation in alone[:MANY]:
        x = clock.x(operation.issued)
        peer = operation.rank if operation.peer is None else operation.peer
        side = 0.0 if peer == operation.rank else 1.0 if peer > operation.rank else -1.0
        y = operation.rank + side * HALF_ROW
        ax.plot([x, x], [y, y + side * 0.16], color=colours.ALARM, lw=1.2, ls=(0, (2, 1)), zorder=5)
        marker = "x" if operation.op == "send" else "o"
        ax.plot(
            [x], [y + side * 0.16], marker, ms=4.5, mfc="white", color=colours.ALARM, zorder=5,
            gid=f"lonely {operation.op}",
        )  # fmt: skip
    left_out = len(alone) - MANY
    return [f"{left_out:,} operations without a partner are left out."] if left_out > 0 else []


def _out_of_sight(operation: Operation, clock: Clock) -> bool:
    return clock.outside(clock.x(operation.issued), clock.x(operation.issued))
