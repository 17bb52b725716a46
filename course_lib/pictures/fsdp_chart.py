"""A training step as a picture: the arithmetic above, the wire below, and how many units are whole.

`lanes` draws a simulated step, `measured_lanes` draws steps that ranks have run, and `crossing` the tokens
from which a forward hides a gather.

Time runs right. Forward is blue, backward is orange, a gather is grey, a reduce is crosshatched, and waiting
is white. The numbers name the units.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from course_lib.fsdp.simulate import Event, Simulation, Times, simulate
from course_lib.pictures import colours

WIDTH, ROW, ABOVE, BELOW, CURVE = 9.2, 0.42, 0.62, 0.48, 0.75  # inches
LEFT, RIGHT = 0.09, 0.99
LEAST_NUMBER = 0.13  # inches: a narrower bar has no number
LOOKS: dict[str, dict[str, Any]] = {
    "forward": {"facecolor": colours.FORWARD},
    "backward": {"facecolor": colours.BACKWARD, "hatch": "///"},
    "gather": {"facecolor": colours.COMMUNICATION},
    "reduce": {"facecolor": "white", "hatch": "xxx"},
}


def lanes(
    schedule: Iterable[tuple[str, int]], times: Times, title: str = "", until: float | None = None
) -> colours.Picture:
    """Draw a schedule as `simulate` times it. until: the right end of the axis, to compare two pictures.

    Raises ScheduleError with the first violation.
    """
    return draw(simulate(schedule, times), title, until)


def draw(simulation: Simulation, title: str = "", until: float | None = None) -> colours.Picture:
    """The picture of a simulation."""
    rows = list(dict.fromkeys(["compute", "wire", *(event.lane for event in simulation.events)]))
    height = ABOVE + ROW * len(rows) + CURVE + BELOW
    figure, end = colours.picture(WIDTH, height), until or simulation.total or 1.0
    above = figure.add_axes(
        (LEFT, (BELOW + CURVE) / height, RIGHT - LEFT, ROW * len(rows) / height)
    )
    below = figure.add_axes(
        (LEFT, BELOW / height, RIGHT - LEFT, 0.8 * CURVE / height), sharex=above
    )
    wide = LEAST_NUMBER * end / (WIDTH * (RIGHT - LEFT))
    for event in simulation.events:
        _bar(above, event, rows.index(event.lane), event.end - event.start >= wide)
    above.axvline(simulation.total, color=colours.INK, lw=1)
    above.set(xlim=(0, 1.01 * end), ylim=(len(rows) - 0.5, -0.5))
    names = {"compute": "arithmetic"}
    above.set_yticks(range(len(rows)), [names.get(row, row) for row in rows], fontsize=colours.TEXT)
    above.tick_params(axis="both", length=0, labelbottom=False)
    above.spines[["top", "right", "left"]].set_visible(False)
    above.spines["bottom"].set_color(colours.FAINT)
    _whole(below, simulation)
    _say(above, simulation, title)
    return figure


def _bar(ax: Axes, event: Event, row: int, numbered: bool) -> None:
    edge: dict[str, Any] = {"edgecolor": colours.QUIET if row else "white", "linewidth": 0.6}
    ax.barh(
        row, event.end - event.start, left=event.start, height=0.84, **edge, **LOOKS[event.kind]
    )
    if numbered:
        plain = event.kind in ("forward", "gather")
        ax.text(
            (event.start + event.end) / 2, row, str(event.unit), ha="center", va="center_baseline",
            fontsize=colours.SMALL, color="white" if event.kind == "forward" else colours.INK,
            bbox=None if plain else {"facecolor": "white", "edgecolor": "none", "pad": 0.6},
        )  # fmt: skip


def _whole(ax: Axes, simulation: Simulation) -> None:
    """The step curve of the units that are whole."""
    moments = dict(simulation.whole)  # of several changes at one time the last
    moments[simulation.total] = simulation.whole[-1][1]
    x, y = list(moments), list(moments.values())
    ax.fill_between(x, y, step="post", color=colours.tint(colours.INK), lw=0)
    ax.step(x, y, where="post", color=colours.INK, lw=1)
    ax.set_ylim(0, simulation.most_whole + 0.6)
    ax.set_yticks([0, simulation.most_whole])
    ax.set_ylabel("units\nwhole", fontsize=colours.SMALL, rotation=0, ha="right", va="center")
    ax.tick_params(labelsize=colours.SMALL, colors=colours.QUIET)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(colours.FAINT)


def _say(ax: Axes, simulation: Simulation, title: str) -> None:
    """The title, the figures in one line, and the legend."""
    said = (
        f"total {simulation.total:.4g} · {simulation.exposed:.0%} of it without arithmetic · at most "
        f"{simulation.most_whole} unit{'s' * (simulation.most_whole != 1)} whole"
    )
    ax.annotate(
        said, (1, 1), (0, 5), "axes fraction", "offset points", ha="right",
        fontsize=colours.SMALL, color=colours.QUIET,
    )  # fmt: skip
    ax.annotate(title, (0, 1), (0, 22), "axes fraction", "offset points", fontsize=10.5)
    handles = [Patch(ec=colours.QUIET, lw=0.6, label=kind, **look) for kind, look in LOOKS.items()]
    ax.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(-0.005, 1), ncols=len(handles),
        frameon=False, fontsize=colours.SMALL, handlelength=1.6, columnspacing=1.6, borderaxespad=0.1,
    )  # fmt: skip


def measured_lanes(
    steps: Mapping[str, tuple[float, Iterable[tuple[str, int, float, float]]]],
) -> colours.Picture:
    """Steps that ran, by name, on one axis. Each is its milliseconds, and its events.

    An event is (kind, unit, begin, end): a forward, a backward, a gather or a reduce.
    """
    figure = colours.picture(9.0, 0.4 + 0.85 * len(steps))
    rows = figure.subplots(len(steps), 1, sharex=True, squeeze=False)[:, 0]
    for ax, (name, (took, events)) in zip(rows, steps.items(), strict=True):
        for kind, unit, begin, end in events:
            event = Event(kind, unit, "", begin, end)
            _bar(ax, event, int(kind in ("gather", "reduce")), numbered=True)
        ax.axvline(took, color=colours.INK, linewidth=1)
        ax.set_ylim(1.6, -0.6)
        ax.set_yticks([0, 1], ["arithmetic", "wire"], fontsize=colours.TEXT)
        ax.set_title(name, fontsize=9, loc="left", pad=3)
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=colours.TEXT)
    rows[-1].set_xlabel("milliseconds", fontsize=colours.TEXT)
    handles = [Patch(edgecolor=colours.QUIET, label=kind, **look) for kind, look in LOOKS.items()]
    figure.legend(
        handles=handles,
        ncols=len(handles),
        loc="upper right",
        frameon=False,
        fontsize=colours.SMALL,
    )
    figure.subplots_adjust(hspace=0.55)
    return figure


def crossing(
    weights: float, speed: float, links: Mapping[str, tuple[int, float]], least: Mapping[str, float]
) -> colours.Picture:
    """Milliseconds of a unit's forward against the tokens of a GPU, and of its gather over each link.

    weights: bytes of the unit in 16 bits. speed: FLOPs per second. links: by name, the number of ranks, and
    bytes per second each way. least: by the same names, the tokens at which a dotted line is drawn.
    """
    tokens = [2**k for k in range(8, 15)]
    figure = colours.picture(6.5, 2.8)
    ax = figure.subplots()
    forward = [
        1000 * weights * each / speed for each in tokens
    ]  # 2 FLOPs, and 2 bytes, a parameter
    ax.plot(tokens, forward, color=colours.FORWARD, label="forward")
    for (name, (n, each_way)), style in zip(links.items(), ("-", "-."), strict=True):
        gather = 1000 * (n - 1) / n * weights / each_way
        ax.axhline(gather, color=colours.QUIET, linestyle=style, label=f"gather, {name}")
        ax.axvline(least[name], color=colours.INK, linestyle=":", linewidth=1)
    ax.set(xscale="log", yscale="log", xlabel="tokens per GPU", ylabel="milliseconds per block")
    ax.set_xticks(tokens, [f"{each:,}" for each in tokens], fontsize=colours.TEXT)
    ax.yaxis.set_major_formatter("{x:g}")
    ax.minorticks_off()
    ax.legend(
        loc="lower left", bbox_to_anchor=(0, 1), ncols=3, frameon=False, fontsize=colours.TEXT
    )
    return figure
