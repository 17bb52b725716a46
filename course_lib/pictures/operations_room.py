"""An operations room: sixty steps of 16 ranks, what each second went into, and levers to pull.

    operations_room()

In a notebook it is a box of ipywidgets whose picture the kernel redraws. If widgets cannot be shown, the
same output shows the first setting. No rank runs. `course_lib.operation.recording` makes up the steps,
and `course_lib.operation.levers` computes what a lever changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import Patch, Rectangle

from course_lib.operation.levers import LEVERS, arrivals, pull
from course_lib.operation.recording import RANKS, STEPS, Recording, record, window
from course_lib.operation.symptoms import Profile
from course_lib.pictures import colours
from course_lib.pictures.controls import choice, stepped
from course_lib.pictures.shown import forms, small_png

SEED = 10  # of the room's run
NONE = "none"
WIDE, HIGH = 9.6, 3.5  # inches
WHITE_TO_BLUE = LinearSegmentedColormap.from_list("values", ["#FFFFFF", colours.FORWARD])

# The heat map's quantities: a button's word, then the title, and the ranks' values in a step.
QUANTITIES: dict[str, tuple[str, Callable[[Profile], Sequence[float]]]] = {
    "late": (
        "seconds later than the first rank",
        lambda run: [time - min(arrivals(run)) for time in arrivals(run)],
    ),
    "waiting": ("seconds of waiting", lambda run: run.waiting),
    "moving": ("seconds of moving", lambda run: run.moving),
    "computing": ("seconds of computing", lambda run: run.computing),
    "data": ("seconds until the input is ready", lambda run: run.data),
    "save": ("seconds in a checkpoint", lambda run: run.checkpoint),
    "memory": ("peak memory in GB", lambda run: [peak / 1e9 for peak in run.peak_memory]),
}
# The parts of a rank's step in the order of its time; hidden is the part of computing in which bytes move.
FILLS = {
    "data": (colours.OTHER_AXES[0], ""),
    "computing": (colours.FORWARD, ""),
    "hidden": (colours.FORWARD, "////"),
    "waiting": (colours.IDLE, ""),
    "moving": (colours.COMMUNICATION, ""),
    "checkpoint": (colours.OTHER_AXES[1], ""),
    "bubble": (colours.IDLE, "......"),
}


def operations_room(first: Setting | None = None) -> Room:
    """Show a run, step by step, and pull levers on it."""
    return Room(first or Setting())


@dataclass(frozen=True)
class Setting:
    """show: a name in QUANTITIES. lever: a name in LEVERS, or "none"."""

    step: int = 0
    show: str = "late"
    lever: str = NONE


class Room:
    """The result of `operations_room`. `table(setting)` holds the numbers, `chart(setting)` the picture."""

    def __init__(self, first: Setting):
        self.first = first
        self.recording = record(SEED)

    def __repr__(self) -> str:
        return self.table(self.first)

    def table(self, setting: Setting) -> str:
        """The numbers of the step, a line each, and what the lever would make of them."""
        step, run = setting.step, self.recording.profiles[setting.step]
        near = window(step)
        came = arrivals(run)
        late = "no rank" if run.late is None else f"rank {run.late[0]}, by {run.late[1]:.3f} s"
        each = {
            f"step {step}": f"{run.step():.3f} s, loss {self.recording.loss[step]:.2f}",
            "median rank arrives": f"after {median(came):.3f} s, the last after {max(came):.3f} s",
            "find_straggler": f"{late} (steps {near[0]} to {near[-1]})",
            "alpha * messages": f"{run.alpha * run.messages[0]:.3f} s",
            "beta * bytes": f"{run.beta * run.bytes[0]:.3f} s",
            "bubble": f"{run.bubble:.3f} s",
        }
        if setting.lever == NONE:
            each["with a lever"] = "choose one"
        else:
            after = pull(run, setting.lever).step()
            each[f"with {setting.lever}"] = f"{after:.3f} s, {1 - after / run.step():.1%} less"
        return "\n".join(f"{name:24}{value}" for name, value in each.items())

    def chart(self, setting: Setting) -> colours.Picture:
        """A heat map of the run, rank by step, and next to it the shares of each rank in the step."""
        figure = colours.picture(WIDE, HIGH)
        _heat(figure.add_axes((0.05, 0.14, 0.5, 0.74)), self.recording, setting)
        bars = figure.add_axes((0.6, 0.14, 0.38, 0.74))
        _shares(bars, self.recording.profiles[setting.step], setting)
        bars.set_xlim(0, 1.02 * max(run.step() for run in self.recording.profiles))
        return figure

    def widget(self) -> Any:
        """The ipywidgets box: controls next to the numbers, and the picture below."""
        import ipywidgets as widgets

        controls = self._controls(widgets)
        image = widgets.Image(format="png", layout=widgets.Layout(max_width="100%"))
        table = widgets.HTML(layout=widgets.Layout(flex="0 0 auto", min_width="330px"))

        def draw(_change: Any = None) -> None:
            setting = Setting(**{name: control.value for name, control in controls.items()})
            image.value = small_png(self.chart(setting))
            table.value = f'<pre style="white-space: pre">{self.table(setting)}</pre>'

        for control in controls.values():
            control.observe(draw, names="value")
        draw()
        whole = widgets.Layout(flex="0 0 auto")
        column = widgets.VBox(stepped(widgets, controls.values()), layout=whole)
        above = widgets.HBox([column, table], layout=widgets.Layout(flex_flow="row wrap"))
        return widgets.VBox([above, image])

    def _controls(self, widgets: Any) -> dict[str, Any]:
        """The controls by the fields of `Setting`."""
        first = self.first
        return {
            "step": widgets.IntSlider(
                value=first.step, min=0, max=STEPS - 1, description="step", continuous_update=False,
                style={"description_width": "80px"},
            ),
            "show": choice(widgets, QUANTITIES, first.show, "show"),
            "lever": choice(widgets, [NONE, *LEVERS], first.lever, "lever"),
        }  # fmt: skip

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """The widget for front ends that can show it, the first setting's picture for others."""
        return forms(repr(self), self.chart(self.first), self.widget)


def _heat(ax: Axes, recording: Recording, setting: Setting) -> None:
    """One quantity of all ranks (down) and steps (across). A frame marks the step."""
    title, values = QUANTITIES[setting.show]
    columns = [values(run) for run in recording.profiles]
    rows = list(zip(*columns, strict=True))
    least, most = min(map(min, rows)), max(map(max, rows))
    ax.imshow(rows, cmap=WHITE_TO_BLUE, vmin=least, vmax=most, aspect="auto")
    ax.add_patch(
        Rectangle(
            (setting.step - 0.5, -0.5), 1, RANKS, fill=False, edgecolor=colours.ALARM, linewidth=1.2,
            clip_on=False,
        )
    )  # fmt: skip
    ax.set_title(
        f"{title}: white {least:.2f}, blue {most:.2f}",
        fontsize=colours.TEXT, loc="left", color=colours.INK,
    )  # fmt: skip
    _plain(ax, "step")


def _shares(ax: Axes, run: Profile, setting: Setting) -> None:
    """A bar for each rank, cut by what its seconds went into, with lines for the median and the lever."""
    parts = {
        name: [run.bubble] * RANKS if name == "bubble" else getattr(run, name) for name in FILLS
    }
    own = zip(run.computing, run.hidden, strict=True)
    parts["computing"] = [computing - hidden for computing, hidden in own]
    left = [0.0] * RANKS
    for name, (fill, hatch) in FILLS.items():
        frame = "white" if name == "hidden" else colours.INK
        line = 0.0 if name == "hidden" else 0.3
        ax.barh(
            range(RANKS),
            parts[name],
            0.8,
            left,
            color=fill,
            hatch=hatch,
            edgecolor=frame,
            linewidth=line,
        )
        left = [sum(both) for both in zip(left, parts[name], strict=True)]
    ax.axvline(median(arrivals(run)), color=colours.INK, linewidth=1.2, linestyle="--")
    if setting.lever != NONE:
        ax.axvline(pull(run, setting.lever).step(), color=colours.ALARM, linewidth=1.6)
    ax.set_ylim(RANKS - 0.5, -0.5)
    patches = [
        Patch(
            facecolor=fill, hatch=hatch, edgecolor="white" if name == "hidden" else colours.INK,
            linewidth=0.3, label=name,
        )
        for name, (fill, hatch) in FILLS.items()
    ]  # fmt: skip
    ax.legend(
        handles=patches, ncols=4, fontsize=colours.SMALL, labelcolor=colours.INK, frameon=False,
        loc="lower left", bbox_to_anchor=(-0.02, 1.0), borderaxespad=0, handlelength=1.4, columnspacing=1.2,
    )  # fmt: skip
    _plain(ax, "seconds; dashed: the median arrival; solid: the step with the lever")


def _plain(ax: Axes, below: str) -> None:
    ax.set_yticks(range(RANKS))
    ax.set_xlabel(below, loc="left", fontsize=colours.SMALL, color=colours.QUIET)
    ax.set_ylabel("rank", fontsize=colours.SMALL, color=colours.QUIET)
    ax.tick_params(labelsize=colours.SMALL, colors=colours.QUIET, length=2)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
