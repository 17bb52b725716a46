"""Pieces: the part of a parameter a rank holds in a flat shard, as blocks that fit into a checkpoint.

A flat shard can cut a parameter anywhere. For example, rank 1 might hold the elements 5 to 13 of a (4, 5)
matrix. But a checkpoint of PyTorch (torch.distributed.checkpoint, DCP) holds blocks with offsets and sizes,
as in DTensors. Each run of elements is a few such blocks: a part of the first row, whole rows, a part of the
last row.

    elements 5 to 13     . . . . .        offsets (1, 0), sizes (1, 5)
    of (4, 5)            x x x x x        offsets (2, 0), sizes (1, 3)
                         x x x . .
                         . . . . .

A piece of a tensor with d dimensions has at most 2 d - 1 blocks. Each is a view of the shard, so nothing is
copied or sent. With blocks, DCP can read the files of any number of ranks, and also of other layouts, such as
the rows of `fully_shard`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from .arguments import Group, all_gather


@dataclass(frozen=True)
class Block:
    """A rectangular part of a tensor, with its offsets and sizes, and its elements in this shape."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    values: Tensor


@dataclass(frozen=True)
class Piece:
    """A run of a tensor's elements, counted in a row.

    shape: of the whole tensor. start: which element `values` begins with. values: this rank's elements, flat,
    perhaps none.
    """

    shape: torch.Size
    start: int
    values: Tensor

    def of(self, values: Tensor) -> Piece:
        """The same part of another tensor of this shape, for example of the optimizer's state."""
        return Piece(self.shape, self.start, values)

    def cut(self, whole: Tensor) -> Tensor:
        """This piece's elements of a whole tensor, as a flat view or copy."""
        return whole.reshape(-1)[self.start : self.start + self.values.numel()]

    def blocks(self) -> list[Block]:
        """The piece as blocks, in order. The `values` of each block are a view of the piece's `values`."""
        stop = self.start + self.values.numel()
        return [
            Block(offsets, sizes, self.values[low - self.start : high - self.start].view(sizes))
            for offsets, sizes, low, high in _blocks(tuple(self.shape), self.start, stop)
        ]


Cut = tuple[
    tuple[int, ...], tuple[int, ...], int, int
]  # offsets, sizes, first and last + 1 element


def _blocks(shape: tuple[int, ...], start: int, stop: int, base: int = 0) -> Iterator[Cut]:
    """The elements start to stop of a tensor of this shape, whose elements are numbered from `base`."""
    if stop <= start:
        return
    if not shape:
        yield (), (), base + start, base + stop
        return
    inner = math.prod(shape[1:])
    first, last = -(-start // inner), stop // inner  # the whole rows
    if last >= first:
        yield from _in_row(shape, start, first * inner, base)
        if last > first:
            sizes = (last - first, *shape[1:])
            yield (first, *[0] * (len(shape) - 1)), sizes, base + first * inner, base + last * inner
        yield from _in_row(shape, last * inner, stop, base)
    else:  # inside one row
        yield from _in_row(shape, start, stop, base)


def _in_row(shape: tuple[int, ...], start: int, stop: int, base: int) -> Iterator[Cut]:
    """The elements start to stop, which are all in one row."""
    inner = math.prod(shape[1:])
    row = start // inner if inner else 0
    begin = row * inner
    for offsets, sizes, low, high in _blocks(shape[1:], start - begin, stop - begin, base + begin):
        yield (row, *offsets), (1, *sizes), low, high


def whole_of(piece: Piece, group: Group = None) -> Tensor:
    """The whole tensor, on the CPU of every rank, by an all-gather of pieces padded to the longest."""
    n = dist.get_world_size(group)
    place = torch.tensor([piece.start, piece.values.numel()], device=piece.values.device)
    places = place.new_empty(n, 2)
    all_gather(places.view(-1), place, group=group)
    longest = int(places[:, 1].max())
    row = piece.values.new_zeros(longest)
    row[: piece.values.numel()] = piece.values
    rows = row.new_empty(n, longest)
    all_gather(rows.view(-1), row, group=group)
    parts = [part[:count] for part, (_, count) in zip(rows.cpu(), places.tolist(), strict=True)]
    return torch.cat(parts).view(piece.shape)
