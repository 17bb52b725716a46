"""Coordinates: where a rank is on each axis of the mesh, and which ranks are in its group there.

Axes are listed from the outermost to the innermost, and the last one varies fastest, as in
`init_device_mesh`:

    {"pp": 2, "dp": 2, "tp": 2}      pp   0 0 0 0 1 1 1 1
                                     dp   0 0 1 1 0 0 1 1
                                     tp   0 1 0 1 0 1 0 1
                                   rank   0 1 2 3 4 5 6 7

The group of an axis holds the ranks that differ only in this axis. For example, rank 5 is in pp [1, 5], dp
[5, 7] and tp [4, 5]. Neighbouring ranks are neighbours on the innermost axis, so this axis gets the fast
wire. A tuple of axes is one flattened group, whose ranks differ only in these axes, with the first axis
outermost.

Nothing is sent. This file imports nothing and can be copied out as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from math import prod

Sizes = Mapping[str, int]


def coordinates(rank: int, sizes: Sizes) -> dict[str, int]:
    """The coordinate of `rank` on each axis, in the order of `sizes`.

    sizes: the number of ranks along each axis, outermost first. Raises ValueError for a rank outside the
    mesh, or a size below 1.
    """
    check_rank(rank, sizes)
    places = {}
    for axis in reversed(list(sizes)):
        rank, places[axis] = divmod(rank, sizes[axis])
    return {axis: places[axis] for axis in sizes}


def axis_ranks(rank: int, sizes: Sizes, axis: str | tuple[str, ...]) -> list[int]:
    """The ranks that differ from `rank` only in `axis`, and `rank` itself, in their order on the axis.

    axis: a name, or a tuple of names for the flattened group, whose first axis varies slowest. Raises
    ValueError for an axis the mesh does not have, or an axis named twice.
    """
    axes = (axis,) if isinstance(axis, str) else axis
    check_axes(axes, sizes)
    own, stride = coordinates(rank, sizes), strides(sizes)
    first = rank - sum(own[name] * stride[name] for name in axes)
    places = product(*(range(sizes[name]) for name in axes))
    return [first + sum(p * stride[n] for p, n in zip(at, axes, strict=True)) for at in places]


def strides(sizes: Sizes) -> dict[str, int]:
    """How many ranks two neighbours on each axis are apart, the product of the sizes inside the axis."""
    names = list(sizes)
    return {name: prod(sizes[inner] for inner in names[i + 1 :]) for i, name in enumerate(names)}


def check_rank(rank: int, sizes: Sizes) -> None:
    for axis, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"{axis}={size!r}: an axis has a whole number of ranks, 1 or more")
    if not 0 <= rank < prod(sizes.values()):
        raise ValueError(
            f"rank {rank} is outside the mesh {dict(sizes)}: its ranks count from 0 to "
            f"{prod(sizes.values()) - 1}"
        )


def check_axes(axes: tuple[str, ...], sizes: Sizes) -> None:
    for name in axes:
        if name not in sizes:
            raise ValueError(f"the mesh has no axis {name!r}: its axes are {', '.join(sizes)}")
    if len(set(axes)) < len(axes):
        raise ValueError(
            f"axes {axes}: one is named twice; name each axis of a flattened group once"
        )
