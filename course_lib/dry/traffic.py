"""The bytes and calls of a rank, by axis of the mesh."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from math import prod

from course_lib.ledger.axes import differing_axes, is_message, is_whole, members
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
    names: dict[tuple[tuple[int, ...], bool], str] = {}
    for operation in operations:
        ranks, message = members(operation), is_message(operation)
        if (ranks, message) not in names:
            names[ranks, message] = axis_name(ranks, sizes, whole=not message)
        axis = NUMBERS if is_number(operation) else names[ranks, message]
        sent.setdefault(axis, []).append(operation.bytes_sent)
        calls[axis, operation.op] += 1
    return {axis: math.fsum(listed) for axis, listed in sent.items()}, calls


def is_number(operation: Operation) -> bool:
    carries = operation.op not in ("barrier", "new_group", "all_to_all")
    return carries and prod(operation.shape) <= FEW


def axis_name(ranks: Collection[int], sizes: Mapping[str, int], whole: bool) -> str:
    """The axes along which ranks differ. whole: the ranks should be all ranks of these axes."""
    axes = differing_axes(ranks, sizes)
    if not axes:
        return "this rank alone"
    named = "+".join(axes)
    return named if not whole or is_whole(ranks, axes, sizes) else f"part of {named}"
