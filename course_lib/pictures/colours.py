"""The course's colours, and how a figure is made, with one grammar for every chart.

Ranks are rows from the top, and time runs right. The hues are from Okabe and Ito (2008), and the colour-blind
can tell them apart. If two fills could meet in greyscale, a hatch tells them apart as well.
"""

from __future__ import annotations

import io

from matplotlib.figure import Figure

FORWARD = "#0072B2"  # blue
BACKWARD = "#E69F00"  # orange
WEIGHT_GRADIENT = "#009E73"  # green
COMMUNICATION = "#B8B8B8"  # grey
IDLE = "#FFFFFF"  # white
HATCHES = {FORWARD: "", BACKWARD: "///", WEIGHT_GRADIENT: "...", COMMUNICATION: "", IDLE: ""}

INK = "#222222"  # text and arrows
FAINT = "#D9D9D9"  # lines that guide the eye
QUIET = "#6E6E6E"  # text that comes second
ALARM = "#D55E00"  # vermilion: no rank at the other end

# Whose contribution: one colour for each rank. Neighbours also differ in lightness. From the ninth
# rank on, the colours repeat, hatched.
RANKS = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
    "#F0E442",
    "#5F5F5F",
)

# The axes of a mesh. None has a colour of forward, backward or the weights' gradient, and each has a hatch.
AXES = {"pp": "#CC79A7", "dp": "#8F8F8F", "ep": "#D55E00", "cp": "#F0E442", "tp": "#56B4E9"}
AXIS_HATCHES = {"pp": "\\\\\\", "dp": "...", "ep": "oo", "cp": "xxx", "tp": "|||"}
OTHER_AXES = ("#44AA99", "#5F5F5F")  # of axes with other names

PARTIAL, COMPLETE = "#B8B8B8", "#5F5F5F"  # a sum, no matter whose contributions it holds


def tint(colour: str) -> str:
    """The same hue, much lighter, as the background of a mark in the colour itself."""
    parts = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(255 - 0.35 * (255 - part)):02X}" for part in parts)


TINTS = tuple(map(tint, RANKS))

TEXT = 9.0
SMALL = 7.5


class Picture(Figure):
    """A matplotlib figure that a notebook shows once, and that does not change pyplot's state."""

    def _repr_png_(self) -> bytes:
        with io.BytesIO() as file:
            self.savefig(file, format="png", bbox_inches="tight", facecolor="white")
            return file.getvalue()


def picture(width: float, height: float) -> Picture:
    """An empty figure of this many inches."""
    return Picture(figsize=(width, height), dpi=110, facecolor="white")


def rank_colour(rank: int) -> str:
    return RANKS[rank % len(RANKS)]


def rank_hatch(rank: int) -> str:
    return "" if rank < len(RANKS) else "////"


def axis_colour(axis: str) -> str:
    """The fill of an axis of a mesh; "" is for operations of no axis, which are grey as communication is."""
    if not axis:
        return COMMUNICATION
    return AXES.get(axis) or OTHER_AXES[sum(map(ord, axis)) % len(OTHER_AXES)]


def axis_hatch(axis: str, legend: bool = False) -> str:
    """The hatch of an axis. The small patch of a legend needs more lines."""
    if not axis:
        return ""
    return AXIS_HATCHES.get(axis, "---") * (2 if legend else 1)
