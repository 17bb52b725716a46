"""The memory of a step, and the layouts that fit, drawn.

Colours say what memory holds. Weights are blue, gradients orange, the optimizer's state green, activations
purple, and the rest grey. Hatches also tell them apart in greyscale.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from course_lib.facts.transformer import Shape, transformer_parameters
from course_lib.pictures import colours
from course_lib.pictures.colours import Picture, picture
from course_lib.pictures.controls import stepped
from course_lib.pictures.shown import forms, small_png
from course_lib.planning.memory_timeline import KINDS, MemoryTimeline

PURPLE = colours.RANKS[3]
FILLS = {
    "weights": (colours.FORWARD, ""),
    "gradients": (colours.BACKWARD, "///"),
    "optimizer": (colours.WEIGHT_GRADIENT, "..."),
    "gathered block": (colours.RANKS[4], "xx"),
    "activations": (PURPLE, "\\\\\\"),
    "logits": (colours.RANKS[5], "++"),
    "other": (colours.COMMUNICATION, ""),
}
# One colour for each answer of `first_that_fits`, None the last.
ANSWERS: tuple[tuple[int, bool] | None, ...] = (
    (0, False), (1, False), (2, False), (3, False), (0, True), (1, True), (2, True), (3, True), None,
)  # fmt: skip
SHADES = ("#08519C", "#3182BD", "#6BAED6", "#BDD7E7", "#A63603", "#E6550D", "#FD8D3C", "#FDBE85",
          "#FFFFFF")  # fmt: skip
FitsFirst = Callable[[Shape, int, float, int, int], tuple[int, bool] | None]


def memory_figure(
    timelines: MemoryTimeline | Mapping[str, MemoryTimeline], title: str = "", unit: float = 1e6
) -> Picture:
    """The bytes alive after each operation, stacked; the phases' names above, and the peak marked.

    timelines: one, or several by their names, which are drawn below each other with one scale. unit: bytes of
    the axis's unit, such as 1e6 for MB.
    """
    rows = timelines if isinstance(timelines, Mapping) else {title: timelines}
    room = (
        (1.08 if len(rows) == 1 else 1.2)
        * max(timeline.peak.total for timeline in rows.values())
        / unit
    )
    held = [kind for kind in KINDS if any(kind_bytes(line, kind).any() for line in rows.values())]
    height = 0.5 + (2.7 if len(rows) == 1 else 2.0 * len(rows))
    figure = picture(9.2, height)
    for axes, (name, timeline) in zip(
        figure.subplots(len(rows), squeeze=False)[:, 0], rows.items(), strict=True
    ):
        memory_axes(axes, timeline, held, room, unit)
        axes.set_title(name, fontsize=colours.TEXT, loc="left", pad=14)
    axes.set_xlabel("operations", fontsize=colours.TEXT)
    figure.subplots_adjust(
        left=0.07, right=0.85, top=1 - 0.45 / height, bottom=0.48 / height, hspace=0.55
    )
    patches = [
        Patch(facecolor=FILLS[kind][0], hatch=FILLS[kind][1], edgecolor="white", label=kind)
        for kind in held[::-1]
    ]
    figure.legend(handles=patches, loc="center right", fontsize=colours.SMALL, frameon=False)
    return figure


def kind_bytes(timeline: MemoryTimeline, kind: str) -> np.ndarray:
    """The bytes of a kind at each moment."""
    return np.array([moment.bytes[kind] for moment in timeline.moments])


def memory_axes(
    axes: Axes, timeline: MemoryTimeline, kinds: Sequence[str], room: float, unit: float
) -> None:
    """Draw one timeline. kinds: those that are stacked, in order; room: the end of the axis, in units."""
    stacked = np.array([kind_bytes(timeline, kind) for kind in kinds])
    areas = axes.stackplot(
        range(len(timeline.moments)),
        stacked / unit,
        colors=[FILLS[kind][0] for kind in kinds],
        step="post",
        lw=0,
    )
    for area, kind in zip(areas, kinds, strict=True):
        area.set_hatch(FILLS[kind][1])
        area.set_edgecolor("white")
    totals = stacked.sum(0) / unit
    worst = int(totals.argmax())
    axes.plot(worst, totals[worst], "v", color=colours.INK, ms=5, gid="peak")
    axes.annotate(
        f"{totals[worst]:.4g}", (worst, totals[worst]), (4, 3), textcoords="offset points",
        fontsize=colours.SMALL,
    )  # fmt: skip
    for phase, begin in timeline.phases():
        axes.axvline(begin, color=colours.INK, lw=0.6)
        axes.text(
            begin, 1.01, f" {phase}", transform=axes.get_xaxis_transform(), fontsize=colours.SMALL
        )
    axes.set_xlim(0, len(timeline.moments) - 1)
    axes.set_ylim(0, room)
    axes.set_ylabel({1e6: "MB", 1e9: "GB"}.get(unit, f"{unit:g} bytes"), fontsize=colours.TEXT)
    axes.tick_params(labelsize=colours.SMALL)


def bill_axes(
    axes: Axes, bills: Mapping[str, Mapping[str, float]], room: float, unit: float = 1e9
) -> None:
    """Bars of bills, by their names, stacked by what they hold, and the line of a GPU's room."""
    for place, parts in enumerate(bills.values()):
        left = 0.0
        for part, nbytes in parts.items():
            colour, hatch = FILLS[part]
            axes.barh(
                place, nbytes / unit, left=left, color=colour, hatch=hatch, edgecolor="white", lw=0
            )
            left += nbytes / unit
    axes.axvline(room / unit, color=colours.ALARM, lw=1.4, gid="room")
    axes.set_yticks(range(len(bills)), list(bills), fontsize=colours.SMALL)
    axes.invert_yaxis()
    axes.set_xlabel("GB on each GPU", fontsize=colours.TEXT)
    axes.tick_params(labelsize=colours.SMALL)
    named = [part for part in FILLS if any(part in parts for parts in bills.values())]
    axes.legend(
        handles=[Patch(facecolor=FILLS[part][0], hatch=FILLS[part][1], edgecolor="white", label=part)
                 for part in named],
        fontsize=colours.SMALL, frameon=False, loc="upper left", bbox_to_anchor=(1, 1),
    )  # fmt: skip


def as_layout(answer: Any) -> Any:
    """The answer of a function like `first_that_fits`, which may give a list in place of a tuple."""
    return tuple(answer) if isinstance(answer, list) else answer


def strategy_map(
    fits: FitsFirst,
    configs: Mapping[str, Shape] | None = None,
    *,
    room: float = 70e9,
    batch: int = 1,
    seq: int = 4096,
    gpus: Sequence[int] = tuple(2**k for k in range(11)),
) -> StrategyMap:
    """Models against GPUs, coloured by the answers of `fits`, with sliders for room and tokens.

    fits: as `first_that_fits`, yours or the library's. configs: by name; None: the published models. room:
    bytes of a GPU that training may use; batch, seq: of one GPU.
    """
    if configs is None:
        from course_lib.models import PUBLISHED

        configs = PUBLISHED
    return StrategyMap(fits, dict(configs), tuple(gpus), room, batch, seq)


class StrategyMap:
    """The result of `strategy_map`. `answers(room, seq)` holds the answers, `chart(room, seq)` a figure."""

    def __init__(
        self, fits: FitsFirst, configs: dict[str, Shape], gpus: tuple[int, ...], room: float,
        batch: int, seq: int,
    ):  # fmt: skip
        self.fits, self.gpus, self.room, self.batch, self.seq = fits, gpus, room, batch, seq
        sizes = {name: transformer_parameters(config) for name, config in configs.items()}
        self.configs = {name: configs[name] for name in sorted(configs, key=sizes.__getitem__)}
        self.labels = [f"{name}  {sizes[name] / 1e9:.3g}B" for name in self.configs]

    def __repr__(self) -> str:
        return f"strategy_map({', '.join(self.configs)})"

    def answers(self, room: float, seq: int) -> list[list[tuple[int, bool] | None]]:
        """A row for each model, the smallest first; a column for each number of GPUs.

        ValueError, with the answer, if `fits` returns something that is not a layout.
        """
        rows = [
            [as_layout(self.fits(config, n, room, self.batch, seq)) for n in self.gpus]
            for config in self.configs.values()
        ]
        for answer in (answer for row in rows for answer in row):
            if answer not in ANSWERS:
                raise ValueError(
                    f"{answer!r} is not (stage, checkpoint) with stage 0 to 3, nor None"
                )
        return rows

    def chart(self, room: float, seq: int) -> Picture:
        """Blue without checkpointing, orange with it, paler with the stage; white if nothing fits."""
        rows = self.answers(room, seq)
        figure = picture(8.6, 0.34 * len(rows) + 1.3)
        axes = figure.subplots()
        axes.imshow(
            np.array([[ANSWERS.index(answer) for answer in row] for row in rows]),
            cmap=ListedColormap(SHADES), vmin=-0.5, vmax=len(ANSWERS) - 0.5, aspect="auto",
            origin="lower",
        )  # fmt: skip
        for y, row in enumerate(rows):
            for x, answer in enumerate(row):
                label = "-" if answer is None else f"{answer[0]}{'c' if answer[1] else ''}"
                dark = answer is not None and answer[0] < 2
                axes.text(
                    x, y, label, ha="center", va="center", fontsize=colours.SMALL,
                    color="white" if dark else colours.INK,
                )  # fmt: skip
        axes.set_yticks(range(len(rows)), self.labels, fontsize=colours.SMALL)
        axes.set_xticks(
            range(len(self.gpus)), [f"{n:,}" for n in self.gpus], fontsize=colours.SMALL
        )
        axes.set_xlabel("GPUs", fontsize=colours.TEXT)
        axes.set_title(
            f"stage of sharding, c: checkpointed, -: nothing fits; {room / 1e9:.0f} GB, "
            f"{self.batch} x {seq:,} tokens on each GPU",
            fontsize=colours.TEXT,
        )
        height = (
            figure.get_figheight()
        )  # the title and the axis need as many inches for any number of rows
        figure.subplots_adjust(left=0.22, right=0.98, top=1 - 0.35 / height, bottom=0.55 / height)
        return figure

    def widget(self) -> Any:
        """The ipywidgets box: sliders for room and tokens above the map, or a sentence without a map."""
        import ipywidgets as widgets

        room = widgets.IntSlider(
            value=round(self.room / 1e9), min=8, max=192, description="GB",
            continuous_update=False,
        )  # fmt: skip
        tokens = widgets.SelectionSlider(
            options=sorted({self.seq, *(2**k for k in range(9, 18))}), value=self.seq,
            description="tokens", continuous_update=False,
        )  # fmt: skip
        image = widgets.Image(format="png", layout=widgets.Layout(max_width="100%"))
        sentence = widgets.Label(layout=widgets.Layout(display="none"))

        def draw(_change: Any = None) -> None:
            try:
                image.value = small_png(self.chart(room.value * 1e9, tokens.value))
            except ValueError as error:
                sentence.value, sentence.layout.display = str(error), ""
                image.layout.visibility = "hidden"
                return
            sentence.value, sentence.layout.display = "", "none"
            image.layout.visibility = "visible"

        for control in (room, tokens):
            control.observe(draw, names="value")
        draw()
        return widgets.VBox(
            [
                widgets.HBox(
                    stepped(widgets, [room, tokens]), layout=widgets.Layout(flex_flow="row wrap")
                ),
                sentence,
                image,
            ]
        )

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """The widget for front ends that can show it, the map of the first setting for others."""
        return forms(repr(self), self.chart(self.room, self.seq), self.widget)
