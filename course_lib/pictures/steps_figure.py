"""Steps as pictures. Ranks are rows, time runs right, and colours say whose contributions they are.

A column of cells shows the ranks' tensors, with a row for each rank and a cell for each element. In each
cell there is a stripe for each rank whose contribution it holds, always in the same place, so that a full
cell is a complete sum and greyscale loses nothing. The messages of one round run between two columns, each
with its contents. Cells that changed in the round have a dark frame. A number in a cell names the
element if it is not the element of its column. A tensor that never changes, such as an input, is
drawn once in a strip.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from course_lib.ledger import wording
from course_lib.ledger.steps import Step, Steps
from course_lib.ledger.watch import NOWHERE
from course_lib.pictures import colours
from course_lib.pictures.paper import Box, Paper, Style

WIDTH = 9.6  # inches, as all lengths here
LEFT, MARGIN, GAP = 0.62, 0.12, 0.2
TITLE, HEAD, FOOT, BETWEEN = 0.3, 0.42, 0.3, 0.16
LEAST_CELL, MOST_CELL = 0.13, 0.42
LEAST_LANE, MOST_LANE = 1.02, 1.5
LEAST_STRIPE = 0.03
MANY_ARROWS = 20
MOST_HEIGHT = 12.6  # of a still


@dataclass(frozen=True)
class Block:
    """One watched tensor: its name, its first element among all, its number of elements."""

    name: str
    start: int
    size: int
    fixed: bool


@dataclass(frozen=True)
class FigureSizes:
    """Sizes that suit a number of rounds side by side."""

    blocks: tuple[Block, ...]
    rounds: int
    cell: float
    lane: float
    pitch: float  # from one rank's row to the next
    style: Style = "sums"

    def width_of(self, blocks: Sequence[Block]) -> float:
        cells = sum(block.size for block in blocks)
        return self.cell * cells + GAP * max(0, len(blocks) - 1)

    def shown(self, first: bool) -> list[Block]:
        """The blocks of a strip's first state, or of a later one."""
        return [block for block in self.blocks if first or not block.fixed]

    @property
    def width(self) -> float:
        states = self.width_of(self.shown(True)) + self.rounds * self.width_of(self.shown(False))
        return LEFT + states + self.rounds * self.lane + MARGIN


def blocks_of(film: Steps) -> tuple[Block, ...]:
    """The watched tensors. A tensor that never changes is fixed, unless no tensor changes."""
    blocks, start = [], 0
    for name, size in film.names:
        part = slice(start, start + size)
        fixed = bool(
            (film.counts[:, :, part] == film.counts[:1, :, part]).all()
            and (film.elements[:, :, part] == film.elements[:1, :, part]).all()
        )
        blocks.append(Block(name, start, size, fixed))
        start += size
    if all(block.fixed for block in blocks):
        return tuple(Block(b.name, b.start, b.size, False) for b in blocks)
    return tuple(blocks)


def layout(film: Steps, rounds: int) -> FigureSizes:
    """As many rounds side by side as fit, evenly spread over the strips, filling the width."""
    start = FigureSizes(blocks_of(film), max(1, rounds), LEAST_CELL, LEAST_LANE, _pitch(film))
    per_strip = start.rounds
    while per_strip > 1 and replace(start, rounds=per_strip).width > WIDTH:
        per_strip -= 1
    strips = math.ceil(start.rounds / per_strip)
    tight = replace(start, rounds=math.ceil(start.rounds / strips), cell=0.0)
    cells = sum(b.size for b in tight.shown(True))
    cells += tight.rounds * sum(b.size for b in tight.shown(False))
    if not cells:
        return replace(tight, lane=MOST_LANE)
    cell = min(MOST_CELL, (WIDTH - tight.width) / cells)
    if cell < 0.09:
        raise ValueError(
            f"{sum(b.size for b in tight.blocks)} elements are too many to be drawn side by side. "
            "Watch smaller tensors."
        )
    sized = replace(tight, cell=cell, style=_style(film, cell))
    lane = min(MOST_LANE, LEAST_LANE + max(0.0, WIDTH - sized.width) / sized.rounds)
    return replace(sized, lane=lane)


def _pitch(film: Steps) -> float:
    return 0.54 if film.world_size <= 5 else 0.42


def _style(film: Steps, cell: float) -> Style:
    parcels = [p.counts for step in film.steps for p in step.parcels if p.counts is not None]
    most = max(int(counts.sum(axis=-1).max(initial=0)) for counts in [film.counts, *parcels])
    if most <= 1:
        return "copies"
    return "sums" if cell / film.world_size >= LEAST_STRIPE else "gauge"


def still(film: Steps, title: str | None = None) -> colours.Picture:
    """All rounds in one picture, as strips below one another.

    If there are very many, only the first and the last are shown, and the picture names the others.
    """
    sizes = layout(film, len(film))
    starts = list(range(0, len(film), sizes.rounds)) or [0]
    top = TITLE if title else 0.05
    strip = HEAD + sizes.pitch * film.world_size + BETWEEN
    room = max(2, int((MOST_HEIGHT - top) / strip))
    note = ""
    if len(starts) > room:
        note = f"rounds {starts[room - 1] + 1} to {starts[-1]} are not shown"
        starts = [*starts[: room - 1], starts[-1]]
    height = top + strip * len(starts) + FOOT
    paper = Paper.sheet(max(sizes.width, _legend_width(film)), height)
    for place, first in enumerate(starts):
        last = min(first + sizes.rounds, len(film))
        _strip(paper, film, sizes, first, last, top + place * strip)
    _caption(paper, film, sizes, title, height, note)
    return paper.finish()


def frame(film: Steps, k: int, title: str | None = None) -> colours.Picture:
    """Round k, large: the state before it, its messages, the state after it. 0 is the beginning."""
    if not 0 <= k <= len(film):
        raise ValueError(f"there is no round {k}: this run had {len(film)}.")
    sizes = layout(film, 1)
    height = TITLE + HEAD + sizes.pitch * film.world_size + FOOT
    paper = Paper.sheet(max(sizes.width, _legend_width(film)), height)
    _strip(paper, film, sizes, max(0, k - 1), k, TITLE)
    _caption(paper, film, sizes, title, height, "")
    return paper.finish()


def _strip(
    paper: Paper, film: Steps, sizes: FigureSizes, first: int, last: int, top: float
) -> None:
    """States `first` to `last`, side by side, with the rounds between them."""
    rows = [top + HEAD + sizes.pitch * (rank + 0.5) for rank in range(film.world_size)]
    for rank, y in enumerate(rows):
        paper.text(LEFT - 0.1, y, f"rank {rank}", ha="right", fontsize=colours.TEXT)
    x = LEFT
    for k in range(first, last + 1):
        blocks = sizes.shown(k == first)
        _state(paper, film, sizes, k, blocks, x, rows)
        x += sizes.width_of(blocks)
        if k < last:
            _lane(paper, film.steps[k], k + 1, (x, x + sizes.lane), rows, sizes)
        x += sizes.lane


def _state(
    paper: Paper, film: Steps, sizes: FigureSizes, k: int, blocks: Sequence[Block], x: float,
    rows: Sequence[float],
) -> None:  # fmt: skip
    header = rows[0] - sizes.pitch / 2 - 0.02
    if not film.names:
        for y in rows:
            paper.dot(x, y)
    for block in blocks:
        width = sizes.cell * block.size
        if len(sizes.blocks) > 1:
            paper.text(x + width / 2, header - 0.17, block.name, color=colours.QUIET)
        every = 1 if sizes.cell >= 0.16 else 5
        for column in range(0, block.size, every):
            middle = x + (column + 0.5) * sizes.cell
            paper.text(middle, header, str(column), color=colours.QUIET)
        for rank, y in enumerate(rows):
            _row(paper, film, sizes, k, rank, block, (x, y))
        x += width + GAP


def _row(
    paper: Paper, film: Steps, sizes: FigureSizes, k: int, rank: int, block: Block,
    at: tuple[float, float],
) -> None:  # fmt: skip
    """One rank's cells of one tensor. Changed cells that are side by side share a dark frame."""
    height = 0.6 * sizes.pitch
    part = slice(block.start, block.start + block.size)
    counts, elements = film.counts[k, rank, part], film.elements[k, rank, part]
    changed = np.zeros(block.size, bool)
    if k:
        changed |= (counts != film.counts[k - 1, rank, part]).any(axis=-1)
        changed |= elements != film.elements[k - 1, rank, part]
    boxes = [
        Box(at[0] + column * sizes.cell + 0.012, at[1] - height / 2, sizes.cell - 0.024, height)
        for column in range(block.size)
    ]
    for column, box in enumerate(boxes):
        paper.contents(counts[column], box, sizes.style)
        paper.frame(box, "#ABABAB", 0.6)
        if counts[column].any() and elements[column] not in (NOWHERE, column):
            paper.label(*box.middle, str(elements[column]))
    for first, last in _spans(changed):
        left, right = boxes[first].left, boxes[last].left + boxes[last].width
        paper.frame(Box(left, boxes[first].top, right - left, height), colours.INK, 1.6)


def _spans(flags: np.ndarray) -> list[tuple[int, int]]:
    """[0, 1, 1, 0, 1] -> [(1, 2), (4, 4)]: the first and last index of each run of set flags."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags.astype(int), [0]])))
    return [(int(first), int(end) - 1) for first, end in edges.reshape(-1, 2)]


def _lane(
    paper: Paper, step: Step, number: int, span: tuple[float, float], rows: Sequence[float],
    sizes: FigureSizes,
) -> None:  # fmt: skip
    """A round's messages, from the senders on the left to the receivers on the right."""
    left, right = span[0] + 0.07, span[1] - 0.07
    middle, header = sum(span) / 2, rows[0] - sizes.pitch / 2
    paper.text(middle, header - 0.19, f"round {number}", fontweight="bold", fontsize=colours.TEXT)
    paper.text(middle, header - 0.03, _summary(step), color=colours.QUIET)
    for y in rows:
        paper.guide(left, right, y)
    for collective in step.collectives:
        members = [rows[rank] for rank in collective.group]
        bar = Box(middle - 0.05, min(members) - 0.12, 0.1, max(members) - min(members) + 0.24)
        paper.fill(bar, colours.COMMUNICATION)
        paper.label(*bar.middle, collective.op, rotation=90)
    for src, y in enumerate(rows):
        parcels = sorted((p for p in step.parcels if p.src == src), key=lambda p: p.dst)
        share = 0.8 * sizes.pitch / max(1, len(parcels))
        for place, parcel in enumerate(parcels):
            start = y + (place - (len(parcels) - 1) / 2) * share
            height = min(0.38 * sizes.pitch, 0.8 * share)
            style = "sums" if sizes.style == "gauge" else sizes.style
            tail = paper.chip(parcel, left, start, height, style)
            end = (right, rows[parcel.dst])
            paper.arrow((tail, start), end, thin=len(step.parcels) > MANY_ARROWS)


def _summary(step: Step) -> str:
    """ "4 x 8 B": how many messages of how many bytes; then the built-ins."""
    parts = sorted({collective.op for collective in step.collectives})
    sizes = [parcel.nbytes for parcel in step.parcels]
    if sizes:
        low, high = wording.size(min(sizes)), wording.size(max(sizes))
        each = low if low == high else f"{low.removesuffix(' B')} to {high}"
        parts.insert(0, each if len(sizes) == 1 else f"{len(sizes)} × {each}")
    return ", ".join(parts)


def _legend_width(film: Steps) -> float:
    return 1.5 + 0.36 * film.world_size if film.names else 3.0


def _caption(
    paper: Paper, film: Steps, sizes: FigureSizes, title: str | None, height: float, note: str
) -> None:
    width, y = paper.ax.get_xlim()[1], height - 0.14
    if title:
        paper.text(0.08, 0.16, title, ha="left", fontsize=10.5)
    gauge = "cells are filled as far as the sum is complete" if sizes.style == "gauge" else ""
    notes = "; ".join(part for part in (gauge, note) if part)
    paper.text(width - MARGIN, y, notes, ha="right", color=colours.QUIET)
    if not film.names:
        return
    paper.text(0.08, y, "contribution of rank", ha="left", color=colours.QUIET)
    for rank in range(film.world_size):
        x = 1.3 + 0.36 * rank
        box = Box(x, y - 0.06, 0.12, 0.12)
        paper.fill(box, colours.rank_colour(rank), colours.rank_hatch(rank))
        paper.text(x + 0.17, y, str(rank), ha="left")
