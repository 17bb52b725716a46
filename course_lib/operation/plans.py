"""Save on four ranks, load on three: which rank writes what, and which pieces it reads from which files.

A rank holds boxes of tensors. A box is a list of (start, stop), one per dimension, counted in the whole
tensor. For example, rank 1 of a matrix (8, 6) whose columns are cut in two holds [(0, 8), (3, 6)]. A plan
needs to know nothing else, because pp, dp and tp are only names for which ranks hold which boxes. So a plan
is arithmetic on intervals.

    saved   [(0, 8), (0, 3)]  [(0, 8), (3, 6)]     columns, on two ranks
    wanted  [(3, 6), (0, 6)]                       rows, the second of three
    pieces  rows 3 to 6 of both

Writing: replicas hold the same box, and one of them writes it. The largest box is dealt first, and each box
goes to the holder with the fewest bytes so far. If every rank holds every box, the busiest rank writes at
most 4/3 - 1/(3n) times the least possible (Graham, Bounds on Multiprocessing Timing Anomalies, 1969, theorem
2). If boxes have only a few holders, this bound does not hold. With two holders it can be twice as much.

Reading: each rank reads only what it wants, from the files that have it. If a matrix was saved on tp 8 and is
loaded on tp 4, each rank reads it from two files. pp changes only which rank that is.

torch.distributed.checkpoint makes such plans (`DefaultSavePlanner`, `dedup_save_plans`, and
`create_read_items_for_chunk_list`, which cuts boxes as `read_plan` does).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

Box = list[tuple[int, int]]


def write_plan(held: Sequence[Sequence[tuple[str, Box, int]]]) -> list[list[int]]:
    """For each rank, the indices of the pieces it writes, in order; each (name, box) is written once.

    held[r]: (name, box, bytes) of each piece of rank r. The ranks that hold a piece state the same bytes for
    it.
    """
    holders: dict[tuple[str, tuple], list[tuple[int, int]]] = {}
    for rank, pieces in enumerate(held):
        for index, (name, box, _) in enumerate(pieces):
            holders.setdefault((name, tuple(map(tuple, box))), []).append((rank, index))

    def nbytes(places: list[tuple[int, int]]) -> int:
        rank, index = places[0]
        return held[rank][index][2]

    busy, plan = [0] * len(held), [list[int]() for _ in held]
    for places in sorted(holders.values(), key=nbytes, reverse=True):
        rank, index = min(places, key=lambda place: busy[place[0]])
        busy[rank] += nbytes(places)
        plan[rank].append(index)
    return [sorted(indices) for indices in plan]


def read_plan(saved: Sequence[tuple[int, Box]], wanted: Box) -> list[tuple[int, Box, Box]]:
    """The pieces that fill `wanted`: (file, position in the saved box, position in the wanted box).

    saved: (file, box) of each saved box of one tensor; no two overlap. Both positions are boxes, counted from
    the beginning of the saved box and of the wanted box. The box of a scalar is the empty list, because it
    has one element. A wanted box without elements needs no piece.

    Raises ValueError if the saved boxes do not cover everything that is wanted.
    """
    pieces, filled = [], 0
    for file, box in saved:
        both = overlap(box, wanted)
        if elements(both):
            pieces.append((file, inside(both, box), inside(both, wanted)))
            filled += elements(both)
    if filled != elements(wanted):
        raise ValueError(
            f"{wanted} has {elements(wanted):,} elements, and the saved boxes hold {filled:,} of them"
        )
    return pieces


def overlap(box: Box, other: Box) -> Box:
    """The box that two boxes share. If they do not meet, some dimension is empty."""
    if len(box) != len(other):
        raise ValueError(f"{box} and {other} are boxes of tensors of different dimensions")
    both = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(box, other, strict=True)]
    return [(start, max(start, stop)) for start, stop in both]


def inside(box: Box, outer: Box) -> Box:
    """`box`, counted from the beginning of `outer`."""
    return [(a - start, b - start) for (a, b), (start, _) in zip(box, outer, strict=True)]


def elements(box: Box) -> int:
    return prod(stop - start for start, stop in box)


def slices(box: Box) -> tuple[slice, ...]:
    """For indexing an array or a tensor: array[slices(box)]."""
    return tuple(slice(start, stop) for start, stop in box)
