"""The figures of notebook 10. They show readers, holders and bytes on a mesh, then memory and time.

    sheet_figure       a batch as a sheet, whose squares name the ranks that read them
    pieces_figure      the ranks that hold equal gradients of a parameter
    nodes_figure       bytes from rank to rank, with the borders of the nodes
    memory_bars        the GB of several layouts
    published_figure   measured TFLOP/s as dots, and predictions as lines
    divisions_figure   memory and seconds of all layouts that fit

They are given numbers and tensors, and call no function of the notebook.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import torch
from matplotlib.patches import Rectangle

from course_lib.ledger.record import Record
from course_lib.pictures.colours import COMMUNICATION, FORWARD, INK, RANKS, Picture, picture, tint
from course_lib.pictures.ledger_figures import matrix_figure

NUMBER, LABEL = 7, 8  # sizes of text


def sheet_figure(parts: Iterable[tuple[range, list[range]]], rows: int, seq: int) -> Picture:
    """Draw a batch of `rows` samples. parts: for each rank, its rows and the positions it reads.

    The colour of a square is the part of the sequence to which it belongs.
    """
    readers: dict[tuple[int, int], list[int]] = {}
    spans_of: list[list[range]] = []
    part: dict[tuple[int, int], int] = {}
    for rank, (mine, spans) in enumerate(parts):
        spans_of += [] if spans in spans_of else [spans]
        for row, span in product(mine, spans):
            for at in span:
                readers.setdefault((row, at), []).append(rank)
                part.setdefault((row, at), spans_of.index(spans))
    figure = picture(9.0, 2.6)
    axes = figure.subplots()
    for row, at in product(range(rows), range(seq)):
        colour = tint(RANKS[part[row, at] % len(RANKS)]) if (row, at) in part else "white"
        axes.add_patch(Rectangle((at, row), 1, 1, facecolor=colour, edgecolor="white"))
        names = ",".join(map(str, readers.get((row, at), [])))
        axes.text(at + 0.5, row + 0.5, names, ha="center", va="center", fontsize=6)
    axes.set_xlim(0, seq)
    axes.set_ylim(rows, 0)
    axes.set_xticks([at + 0.5 for at in range(0, seq, 4)], [str(at) for at in range(0, seq, 4)])
    axes.set_yticks([row + 0.5 for row in range(rows)], [str(row) for row in range(rows)])
    axes.set_xlabel("position in the sequence", fontsize=LABEL)
    axes.set_ylabel("row", fontsize=LABEL)
    axes.tick_params(labelsize=NUMBER)
    return figure


def pieces_figure(held: Sequence[Mapping[str, torch.Tensor]], names: Sequence[str]) -> Picture:
    """Draw which ranks hold equal tensors under a name. held: for each rank, its tensors by name."""
    figure = picture(7.5, 0.5 + 0.4 * len(names))
    axes = figure.subplots()
    for row, name in enumerate(names):
        pieces: list[torch.Tensor] = []
        for rank, tensors in enumerate(held):
            if name not in tensors:
                continue
            mine = tensors[name]
            same = (k for k, p in enumerate(pieces) if torch.allclose(p, mine, rtol=0, atol=1e-14))
            piece = next(same, len(pieces))
            pieces += [mine] if piece == len(pieces) else []
            colour = tint(RANKS[piece % len(RANKS)])
            axes.barh(row, 0.94, left=rank + 0.03, height=0.9, color=colour)
            text = f"piece {piece + 1}"
            axes.text(rank + 0.5, row, text, ha="center", va="center", fontsize=NUMBER)
    ranks = range(len(held))
    axes.set_xlim(0, len(held))
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_yticks(range(len(names)), names, fontsize=NUMBER)
    axes.set_xticks([k + 0.5 for k in ranks], [f"rank {k}" for k in ranks], fontsize=NUMBER)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def nodes_figure(record: Record, per_node: int) -> Picture:
    """Draw the bytes from rank to rank, with a thick line between nodes of `per_node` ranks."""
    figure = matrix_figure(record, "bytes from each rank (rows) to each rank")
    axes = figure.axes[0]
    for border in range(per_node, record.world_size, per_node):
        axes.axhline(border - 0.5, color=INK, linewidth=2)
        axes.axvline(border - 0.5, color=INK, linewidth=2)
    return figure


def memory_bars(rows: Mapping[str, tuple[float, float]], room: float) -> Picture:
    """Draw the GB of several layouts as bars. rows: by name, the GB of the states, and of all.

    room: the GB that may be used, as a dashed line.
    """
    figure = picture(8.0, 0.5 + 0.36 * len(rows))
    axes = figure.subplots()
    for k, (states, whole) in enumerate(rows.values()):
        axes.barh(k, states, color=FORWARD, height=0.7)
        axes.barh(k, whole - states, left=states, color=COMMUNICATION, hatch="//", height=0.7)
        axes.text(whole + 1, k, f"{whole:.1f}", va="center", fontsize=LABEL)
    axes.axvline(room, color=INK, linestyle="--", linewidth=1)
    axes.set_yticks(range(len(rows)), list(rows), fontsize=LABEL)
    axes.invert_yaxis()
    label = "GB on a GPU of the first stage: states blue, activations hatched"
    axes.set_xlabel(label, fontsize=LABEL)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def published_figure(
    measured: Mapping[str, float], lines: Sequence[tuple[str, Sequence[float]]], limits: tuple
) -> Picture:
    """Draw measured TFLOP/s as dots, by the names below them, and predictions as lines with names."""
    figure = picture(8.0, 2.8)
    axes = figure.subplots()
    axes.plot(list(measured.values()), "o", color=INK, label="measured (Narayanan et al. 2021)")
    for style, (name, values) in zip(("-", "--", ":"), lines, strict=False):
        axes.plot(values, style, color=FORWARD, label=name)
    axes.set_xticks(range(len(measured)), list(measured), fontsize=LABEL)
    axes.set_ylim(*limits)
    axes.set_ylabel("TFLOP/s of each GPU", fontsize=LABEL)
    axes.set_xlabel("parameters, GPUs", fontsize=LABEL)
    axes.legend(fontsize=LABEL, frameon=False, loc="upper left")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def divisions_figure(verdicts: Iterable[Any], room: float) -> Picture:
    """Draw the advisor's verdicts that fit, GB to the right and seconds upwards, with marks for tp."""
    figure = picture(8.0, 3.2)
    axes = figure.subplots()
    fitting = [verdict for verdict in verdicts if verdict.fits]
    tps = sorted({verdict.layout.sizes["tp"] for verdict in fitting})
    for tp, marker, colour in zip(tps, "osD^vPX", RANKS, strict=False):
        dots = [(v.nbytes / 1e9, v.seconds) for v in fitting if v.layout.sizes["tp"] == tp]
        across, up = zip(*dots, strict=True)
        axes.plot(across, up, marker, color=colour, markeredgecolor=INK, label=f"tp {tp}")
    axes.legend(
        fontsize=LABEL, frameon=False, ncols=len(tps), loc="lower right", bbox_to_anchor=(1, 1)
    )
    axes.axvline(room, color=INK, linestyle="--", linewidth=1)
    axes.set_xlabel(f"GB on the fullest GPU, of which {room:g} may be used", fontsize=LABEL)
    axes.set_ylabel("seconds a step", fontsize=LABEL)
    axes.spines[["top", "right"]].set_visible(False)
    return figure
