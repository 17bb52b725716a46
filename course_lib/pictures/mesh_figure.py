"""A mesh as a picture. Nodes are frames, GPUs are boxes; axes' fills mark the groups of one rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil

from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from course_lib.pictures import colours
from course_lib.pictures.colours import Picture, picture

GAP, ABOVE = 0.4, 0.8  # between two nodes, in GPUs
IN_A_ROW = 4  # GPUs of a node, nodes of the picture


def mesh_figure(
    gpus: int, per_node: int, marks: Mapping[int, str], order: Sequence[str], title: str
) -> Picture:
    """gpus GPUs in nodes of per_node.

    marks: the axis along which a rank shares a group with the chosen rank, "" for the chosen rank. order: the
    axes, outermost first, for the legend.
    """
    nodes, wide = ceil(gpus / per_node), min(IN_A_ROW, per_node)
    tall, across = ceil(per_node / wide), min(nodes, IN_A_ROW)
    down = ceil(nodes / across)
    width, height = max(3.4, 0.62 * (wide + GAP) * across + 0.2), 0.5 * (tall + ABOVE) * down + 0.5
    figure = picture(width, height)
    axes = figure.add_axes((0.02, 0.01, 0.97, 1 - 0.5 / height))
    for node in range(nodes):
        x, y = node % across * (wide + GAP), node // across * (tall + ABOVE) + 0.4
        axes.add_patch(
            Rectangle((x - 0.1, y - 0.1), wide + 0.2, tall + 0.2, fc="none", ec=colours.QUIET)
        )
        axes.annotate(f"node {node}", (x, y - 0.17), fontsize=colours.SMALL, color=colours.QUIET)
        first = node * per_node
        for rank in range(first, min(first + per_node, gpus)):
            k = rank - first
            _gpu(axes, rank, (x + k % wide, y + k // wide), marks.get(rank))
    axes.set_xlim(-0.15, across * (wide + GAP) - GAP + 0.15)
    axes.set_ylim(down * (tall + ABOVE), 0)
    axes.axis("off")
    figure.text(0.02, 1 - 0.2 / height, title, fontsize=colours.TEXT)
    figure.legend(
        handles=[
            Patch(
                fc=colours.axis_colour(axis), hatch=colours.axis_hatch(axis, legend=True),
                label=axis, ec=colours.INK, lw=0.4,
            )
            for axis in order
        ],
        ncols=4, frameon=False, fontsize=colours.SMALL, loc="upper left", borderaxespad=0,
        bbox_to_anchor=(0.015, 1 - 0.27 / height), borderpad=0, columnspacing=1.2,
    )  # fmt: skip
    return figure


def _gpu(axes: Axes, rank: int, at: tuple[float, float], axis: str | None) -> None:
    """axis: None if the rank shares no group with the chosen one, "" for the chosen one itself."""
    chosen = axis == ""
    fill = colours.INK if chosen else colours.axis_colour(axis) if axis else colours.IDLE
    edge = colours.FAINT if axis is None else colours.INK
    x, y = at
    axes.add_patch(
        Rectangle(
            (x + 0.05, y + 0.05), 0.9, 0.9, fc=fill, ec=edge, lw=0.6,
            hatch=colours.axis_hatch(axis or ""), gid=f"gpu {rank}",
        )
    )  # fmt: skip
    axes.text(
        x + 0.5, y + 0.5, str(rank), ha="center", va="center", fontsize=colours.TEXT,
        color="white" if chosen else colours.INK,
        bbox={"boxstyle": "round,pad=0.15", "fc": "white", "ec": "none"} if axis else None,
    )  # fmt: skip
