"""The bytes and calls of a rank, by axis of the mesh."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from math import prod

from course_lib.dry.plan import place_of
from course_lib.ledger.operation import Operation

NUMBERS = "numbers"  # a loss, a count of targets, a norm: two elements at most
FEW = 2


def by_axis(
    operations: Iterable[Operation], sizes: Mapping[str, int]
) -> tuple[dict[str, float], dict[tuple[str, str], int]]:
    """({axis: bytes sent}, {(axis, operation): calls}) of one rank's operations.

    Axes of a flattened group are joined: "dp+cp". A collective of single numbers counts as "numbers", since
    it takes no bandwidth. A group that has only some ranks of an axis is a "part of tp".
    """
    sent: dict[str, list[float]] = {}
    calls: Counter[tuple[str, str]] = Counter()
    names: dict[tuple[int, ...], str] = {}
    for operation in operations:
        message = operation.op in ("send", "recv") and operation.peer is not None
        members = (operation.rank, operation.peer or 0) if message else operation.group
        if members not in names:
            names[members] = axis_name(members, sizes, whole=not message)
        axis = names[members]
        if is_number(operation):
            axis = NUMBERS
        sent.setdefault(axis, []).append(operation.bytes_sent)
        calls[axis, operation.op] += 1
    return {axis: math.fsum(listed) for axis, listed in sent.items()}, calls


def is_number(operation: Operation) -> bool:
    carries = operation.op not in ("barrier", "new_group", "all_to_all")
    return carries and prod(operation.shape) <= FEW


def axis_name(members: Iterable[int], sizes: Mapping[str, int], whole: bool) -> str:
    """The axes along which ranks differ. whole: the ranks should be all ranks of these axes."""
    places = [place_of(rank, sizes) for rank in members]
    axes = [axis for axis in sizes if len({place[axis] for place in places}) > 1]
    if not axes:
        return "this rank alone"
    named = "+".join(axes)
    complete = not whole or prod(sizes[axis] for axis in axes) == len(places)
    return named if complete else f"part of {named}"
