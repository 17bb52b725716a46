"""A router with sliders: how many experts on how many ranks, how skewed, and what it sends.

    router_playground()

In a notebook it is a box of ipywidgets whose picture the kernel redraws. If widgets cannot be shown, the same
output shows the first setting. No rank runs. The numbers come from `course_lib.planning.mixture_traffic`.
"""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap

from course_lib.pictures import colours
from course_lib.pictures.controls import choice, stepped
from course_lib.pictures.shown import forms, small_png
from course_lib.planning.mixture_traffic import NODE, TOKENS, Setting, Traffic

EXPERTS, RANKS, CHOSEN = (8, 64, 256), (8, 16, 32, 64), (1, 2, 4, 8)
FACTORS, LIMITS = (0.0, 1.0, 1.25, 1.5, 2.0), (0, 1, 2, 4)
WIDE, HIGH = 9.6, 2.9  # inches


def router_playground(first: Setting | None = None) -> Playground:
    """Show a router's choices and what they cost, and change it."""
    return Playground(first or Setting())


class Playground:
    """The result of `router_playground`. `table(setting)` holds the numbers, `chart(setting)` the picture."""

    def __init__(self, first: Setting):
        self.first = first

    def __repr__(self) -> str:
        return self.table(self.first)

    def table(self, setting: Setting) -> str:
        """The costs of the setting, a line each. ValueError with a sentence if it cannot be."""
        traffic = Traffic(setting)
        each = {
            "MaxVio": f"{traffic.violation:.2f}",
            "dropped": f"{traffic.dropped:.1%} of the assignments",
            "slowest rank": f"{traffic.slowest:.2f} times the mean's rows",
            "busiest rank": f"sends {in_mb(traffic.busiest)} for the layer",
            "dispatch, a rank": "on the mean",
            "  inside its node": in_mb(traffic.inside),
            "  between nodes": in_mb(traffic.network),
            "  once for each node": in_mb(traffic.passed_on)
            if traffic.passed_on is not None
            else "— (set places to all fit)",
        }
        return "\n".join(f"{name:22}{value}" for name, value in each.items())

    def chart(self, setting: Setting) -> colours.Picture:
        """The assignments of each expert, and the rows from rank to rank."""
        traffic = Traffic(setting)
        figure = colours.picture(WIDE, HIGH)
        bars = figure.add_axes((0.07, 0.17, 0.56, 0.68))
        _experts(bars, traffic)
        square = figure.add_axes((0.71, 0.17, 0.68 * HIGH / WIDE, 0.68))
        _matrix(square, traffic)
        return figure

    def widget(self) -> Any:
        """The ipywidgets box: controls next to the numbers, with the picture, or else a sentence, below."""
        import ipywidgets as widgets

        controls = self._controls(widgets)
        image = widgets.Image(format="png", layout=widgets.Layout(max_width="100%"))
        table = widgets.HTML(layout=widgets.Layout(flex="0 0 auto", min_width="330px"))
        sentence = widgets.Label()

        def draw(_change: Any = None) -> None:
            setting = Setting(**{name: control.value for name, control in controls.items()})
            try:
                picture, numbers = self.chart(setting), self.table(setting)
            except ValueError as error:
                sentence.value = f"{error}."
                image.layout.visibility = "hidden"  # it shows another setting; its place is kept
                table.layout.visibility = "hidden"
                return
            sentence.value = ""
            image.layout.visibility = table.layout.visibility = "visible"
            image.value = small_png(picture)
            table.value = f'<pre style="white-space: pre">{numbers}</pre>'

        for control in controls.values():
            control.observe(draw, names="value")
        draw()
        whole = widgets.Layout(flex="0 0 auto")
        column = widgets.VBox(stepped(widgets, controls.values()), layout=whole)
        above = widgets.HBox([column, table], layout=widgets.Layout(flex_flow="row wrap"))
        return widgets.VBox([above, sentence, image])

    def _controls(self, widgets: Any) -> dict[str, Any]:
        """The controls by the fields of `Setting`."""
        first = self.first
        return {
            "experts": choice(widgets, EXPERTS, first.experts, "experts"),
            "ranks": choice(widgets, RANKS, first.ranks, "ranks"),
            "k": choice(widgets, CHOSEN, first.k, "k"),
            "skew": widgets.FloatSlider(
                value=first.skew, min=0, max=3, step=0.25, description="skew", continuous_update=False,
                style={"description_width": "80px"},
            ),
            "factor": choice(
                widgets, [("all fit", 0.0), *((f"{factor:g}", factor) for factor in FACTORS[1:])],
                first.factor, "places",
            ),
            "limit": choice(
                widgets, [("all", 0), *((str(limit), limit) for limit in LIMITS[1:])], first.limit, "nodes"
            ),
        }  # fmt: skip

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """The widget for front ends that can show it, the first setting's picture for others."""
        return forms(repr(self), self.chart(self.first), self.widget)


def in_mb(size: float) -> str:
    return f"{size / 1e6:,.1f} MB"


def _experts(ax: Axes, traffic: Traffic) -> None:
    """A bar for each expert in its rank's colour. Assignments without a place are light, at its top."""
    setting = traffic.setting
    wanted, kept = traffic.counts.sum(0).tolist(), traffic.kept.sum(0).tolist()
    held = setting.experts // setting.ranks
    owners = [expert // held for expert in range(setting.experts)]
    places, width = range(setting.experts), 0.9 if setting.experts <= 64 else 1.0
    ax.bar(places, wanted, width, color=[colours.TINTS[rank % 8] for rank in owners])
    ax.bar(places, kept, width, color=[colours.rank_colour(rank) for rank in owners])
    mean = TOKENS * setting.k / setting.experts
    ax.axhline(mean, color=colours.INK, linewidth=0.8, linestyle="--")
    ax.annotate("mean", (1, mean), (3, 0), ("axes fraction", "data"), "offset points", va="center",
                fontsize=colours.SMALL, color=colours.INK)  # fmt: skip
    ax.set_xlim(-0.6, setting.experts - 0.4)
    ax.set_title(
        f"assignments of each expert, {TOKENS:,} tokens: a colour for each rank, eight in turn",
        fontsize=colours.TEXT, loc="left", color=colours.INK,
    )  # fmt: skip
    _plain(ax, "expert")


def _matrix(ax: Axes, traffic: Traffic) -> None:
    """The rows from rank (down) to rank (across). Lines separate the nodes."""
    white_to_blue = LinearSegmentedColormap.from_list("rows", ["#FFFFFF", colours.FORWARD])
    ax.imshow(traffic.rows.numpy(), cmap=white_to_blue, vmin=0)
    for edge in range(NODE, traffic.setting.ranks, NODE):
        ax.axhline(edge - 0.5, color=colours.INK, linewidth=0.6)
        ax.axvline(edge - 0.5, color=colours.INK, linewidth=0.6)
    ax.set_title(
        "rows from rank to rank",
        fontsize=colours.TEXT, loc="left", color=colours.INK,
    )  # fmt: skip
    _plain(ax, "to rank")
    ax.set_ylabel("from rank", fontsize=colours.SMALL, color=colours.QUIET)


def _plain(ax: Axes, below: str) -> None:
    ax.set_xlabel(below, loc="left", fontsize=colours.SMALL, color=colours.QUIET)
    ax.tick_params(labelsize=colours.SMALL, colors=colours.QUIET, length=2)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
