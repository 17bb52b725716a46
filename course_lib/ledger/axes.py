"""The axes of a mesh to which an operation belongs. No record names them, so they are found from its ranks.

An operation belongs to the axes in which the members of its group differ, and a message to the axes in which
its two ends differ. Axes are listed outermost first, and the last axis varies fastest. For example, on
{"pp": 2, "dp": 2, "tp": 2} an all-reduce of ranks 4 and 5 belongs to tp, a message from 1 to 5 belongs to pp,
and a sum over 1, 3, 5 and 7 belongs to pp and dp.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import prod

import numpy as np

from course_lib.ledger.operation import Operation


def differing_axes(ranks: Collection[int], sizes: Mapping[str, int]) -> tuple[str, ...]:
    """The axes along which ranks differ, in the order of the mesh; () for one rank alone."""
    if not sizes:
        return ()
    coordinates = np.unravel_index(
        list(ranks), tuple(sizes.values())
    )  # an array of all ranks for each axis
    return tuple(
        axis for axis, places in zip(sizes, coordinates, strict=True) if len(set(places)) > 1
    )


def is_message(operation: Operation) -> bool:
    """Whether an operation has two ends in place of a group."""
    return operation.op in ("send", "recv") and operation.peer is not None


def members(operation: Operation) -> tuple[int, ...]:
    """The two ends of a message, or the ranks of a collective's group."""
    if operation.peer is not None and is_message(operation):
        return operation.rank, operation.peer
    return operation.group


def is_whole(ranks: Collection[int], axes: Collection[str], sizes: Mapping[str, int]) -> bool:
    """Whether a group holds as many ranks as there are along its axes; {0, 5} of a 2 x 4 mesh does not."""
    return prod(sizes[axis] for axis in axes) == len(ranks)
