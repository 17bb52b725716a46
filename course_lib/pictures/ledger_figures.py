"""The ledger as pictures: the timeline and the matrix.

In the timeline, ranks are rows from the top, and time runs right. A row is grey while its rank is blocked in
communication and white while it runs its own code. An arrow is a message, from the moment its sender
issued it to the moment its receiver knew that it had arrived. A band over several rows is a built-in
collective. A ledger with thousands of messages is drawn as bundles, and says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from course_lib.ledger import wording
from course_lib.ledger.record import Record
from course_lib.pictures import colours, marks
from course_lib.pictures.axes import ByAxis, Meshed

WIDTH, ROW, ABOVE, BELOW = 9.6, 0.5, 0.62, 0.6  # inches
MATRIX_NUMBERS = 10  # ranks up to which the matrix shows its numbers


def timeline(
    ledger: Record,
    window: tuple[float, float] | None = None,
    title: str | None = None,
    after: str | None = None,
    axes: Mapping[str, int] | Meshed | None = None,
) -> colours.Picture:
    """Draw a run. `window`: seconds since the first operation or, with `after`, since that call.

    axes: the mesh whose axes give the operations their fills; None leaves them grey.
    """
    by_axis = ByAxis(axes, ledger.world_size) if axes is not None else None
    rows = ledger.world_size
    height = ABOVE + ROW * rows + BELOW
    figure = colours.picture(WIDTH, height)
    ax = figure.add_axes((0.07, BELOW / height, 0.92, ROW * rows / height))
    origin = _origin(ledger, after)
    start, end = window or (0.0, _end(ledger, origin))
    if not start < end:
        raise ValueError(
            f"the window must begin before it ends, but it is {start} to {end} seconds."
        )
    clock = marks.Clock(origin, start, end)
    _frame(ax, rows, clock, f"the {after}" if after else "the first operation")
    waiting = marks.blocked(ax, ledger, clock, by_axis)
    marks.collective_bands(ax, ledger.collectives(), clock, by_axis)
    notes = marks.arrows(ax, ledger.messages(), clock, bundled=by_axis is None)
    notes += marks.lonely(ax, ledger, clock)
    if by_axis and by_axis.striped:
        notes.insert(0, "striped: a group over several axes.")
    if window is None and end < ledger.ended - origin:
        notes.append(f"waiting went on until {wording.duration(ledger.ended - origin)}")
    ax.annotate(
        title or _title(ledger), (0, 1), (0, 24), "axes fraction", "offset points", fontsize=10.5
    )
    _legend(ax, ledger, waiting, by_axis)
    if notes:
        ax.annotate(
            "  ".join(notes), (1, 0), (0, -21), "axes fraction", "offset points",
            ha="right", va="top", fontsize=colours.SMALL, color=colours.QUIET,
        )  # fmt: skip
    return figure


def _origin(ledger: Record, after: str | None) -> float:
    """When time begins, in seconds of the run."""
    if after is None:
        return min((operation.issued for operation in ledger.operations()), default=0.0)
    calls = next(
        (collective.calls for collective in ledger.collectives() if collective.op == after), {}
    )
    left = [call.completed for call in calls.values() if call.completed is not None]
    if not left:
        raise ValueError(
            f"the timeline cannot begin after {after!r}: no rank has left such a call."
        )
    return min(left)


def _end(ledger: Record, origin: float) -> float:
    """The end of the picture, in seconds since `origin`.

    If ranks waited in vain until the run was ended, most of the waiting is left out, because it would press
    all other events into a corner.
    """
    whole = max(ledger.ended - origin, 1e-6)
    waiting = [
        operation
        for operation in ledger.operations()
        if operation.completed is None and operation.blocked > 0
    ]
    if not waiting:
        return whole
    happened = [
        t
        for operation in ledger.operations()
        for t in (operation.issued, operation.completed)
        if t is not None
    ]
    return min(whole, 1.5 * max(max(happened) - origin, 1e-6))


def _frame(ax: Axes, rows: int, clock: marks.Clock, beginning: str) -> None:
    low, high = clock.limits
    margin = 0.012 * (high - low)
    ax.set_xlim(low - margin, high + margin)
    ax.set_ylim(rows - 0.45, -0.55)
    ax.set_yticks(range(rows), [f"rank {rank}" for rank in range(rows)], fontsize=colours.TEXT)
    ax.tick_params(axis="y", length=0)
    ax.tick_params(axis="x", labelsize=colours.SMALL, colors=colours.QUIET)
    ax.set_xlabel(
        f"{clock.unit} since {beginning}", loc="left", fontsize=colours.SMALL,
        color=colours.QUIET,
    )  # fmt: skip
    for side in ("top", "left", "right"):
        ax.spines[side].set_visible(False)
    ax.spines["bottom"].set_color(colours.FAINT)
    lanes = [marks.box(low, high, rank) for rank in range(rows)]
    ax.add_collection(
        PolyCollection(
            lanes, facecolors=colours.IDLE, edgecolors=colours.FAINT, lw=0.8, zorder=1, gid="lanes"
        )
    )


def _title(ledger: Record) -> str:
    messages, built_in = len(ledger.messages()), len(ledger.collectives())
    parts = [wording.counted(ledger.world_size, "rank")]
    if messages:
        parts.append(wording.counted(messages, "message"))
    if built_in:
        parts.append(wording.counted(built_in, "built-in collective"))
    total = sum(ledger.bytes_sent(rank) for rank in range(ledger.world_size))
    return f"{', '.join(parts)}: {wording.size(total)} sent"


def _legend(ax: Axes, ledger: Record, waiting: bool, by_axis: ByAxis | None = None) -> None:
    handles: list[Patch | Line2D] = [
        Patch(fc=colours.IDLE, ec=colours.FAINT, label="own code, or idle")
    ]
    if by_axis:
        handles += by_axis.legend()
    else:
        handles.append(Patch(fc=colours.COMMUNICATION, label="blocked in communication"))
    if waiting:
        handles.append(
            Patch(
                fc=colours.COMMUNICATION,
                ec=colours.ALARM,
                hatch="/////",
                label="still so at the end",
            )
        )
    if ledger.collectives() and not by_axis:
        handles.append(
            Patch(fc=colours.COMMUNICATION, ec=colours.INK, lw=0.7, label="built-in collective")
        )
    if ledger.messages():
        handles.append(
            Line2D(
                [], [], color=colours.INK, lw=1, marker=">", ms=4, markevery=[1], label="message"
            )
        )
    for op, marker, label in (("send", "x", "never received"), ("recv", "o", "never sent")):
        if any(operation.op == op for operation in ledger.unmatched()):
            handles.append(
                Line2D([], [], color=colours.ALARM, ls="", marker=marker, mfc="white", label=label)
            )
    ax.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(-0.005, 1), ncols=len(handles),
        frameon=False, fontsize=colours.SMALL, handlelength=1.6, columnspacing=1.6, borderaxespad=0.1,
    )  # fmt: skip


def matrix_figure(ledger: Record, title: str | None = None) -> colours.Picture:
    """Bytes from rank to rank. Senders are rows, receivers are columns, and darker is more."""
    sent, ranks = ledger.matrix(), range(ledger.world_size)
    side = 1.6 + max(1.6, min(6.0, 0.62 * len(ranks)))
    figure = colours.picture(side, side)
    ax = figure.add_subplot()
    most = float(sent.max()) or 1.0
    greys = LinearSegmentedColormap.from_list("bytes", [colours.IDLE, colours.INK])
    ax.imshow(sent, cmap=greys, vmin=0, vmax=1.25 * most)
    ax.set_xticks(ranks, [str(rank) for rank in ranks], fontsize=colours.TEXT)
    ax.set_yticks(ranks, [str(rank) for rank in ranks], fontsize=colours.TEXT)
    ax.set_xlabel("to rank", fontsize=colours.TEXT)
    ax.set_ylabel("from rank", fontsize=colours.TEXT)
    ax.set_title(title or "bytes sent", fontsize=10.5, loc="left")
    ax.tick_params(length=0)
    ax.spines[:].set_color(colours.FAINT)
    for src, dst, text in _numbers(ledger, sent):
        dark = sent[src, dst] > 0.5 * most
        ax.text(
            dst, src, text, ha="center", va="center", fontsize=colours.SMALL,
            color="white" if dark else colours.INK,
        )  # fmt: skip
    return figure


def _numbers(ledger: Record, sent) -> Iterator[tuple[int, int, str]]:
    if ledger.world_size > MATRIX_NUMBERS:
        return
    for src in range(ledger.world_size):
        for dst in range(ledger.world_size):
            if sent[src, dst]:
                yield src, dst, wording.size(float(sent[src, dst]))
