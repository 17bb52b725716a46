"""Mesh: the ranks of a run as a grid, with a process group for each axis.

    mesh = Mesh({"pp": 2, "dp": 2, "tp": 2})       # on 8 ranks
    mesh.coordinate                                # rank 5: {"pp": 1, "dp": 0, "tp": 1}
    mesh.group("tp"), mesh.ranks("tp")             # the group of [4, 5]
    mesh.group(("pp", "dp"))                       # the flattened group of [1, 3, 5, 7]
    mesh.size("cp")                                # 1: an axis that the mesh does not have

The axes are the ones a step knows how to handle: pp, dp, ep, cp and tp. A mesh with another name would train
without an error, but nothing would be summed over its ranks.

The mesh only names ranks. The launcher decides which rank runs on which GPU, and it numbers the GPUs of a
node in succession, so the innermost axis stays inside a node.

Source: the interface of `torch.distributed.device_mesh.init_device_mesh`, cut down to what a step needs.
Copy this file together with coordinates.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import NamedTuple

import torch
import torch.distributed as dist

AXES = ("pp", "dp", "ep", "cp", "tp")
Axis = str | tuple[str, ...]


class Place(NamedTuple):
    """A rank's knowledge of the grid: its coordinate, and the ranks and the group for each group of axes.

    Axes of a key are listed outermost first, as in ("dp", "cp").
    """

    coordinate: dict[str, int]
    ranks: dict[tuple[str, ...], list[int]]
    groups: dict[tuple[str, ...], dist.ProcessGroup]


class Mesh:
    """The default group's ranks as a grid of `sizes`.

    sizes: the number of ranks along each axis, outermost first, such as {"pp": 2, "dp": 2, "cp": 1, "tp": 2}.
    device: of the tensors exchanged by the ranks; None: the GPU under NCCL, and the CPU otherwise.
    place: this rank's place, if it and all groups are known already; None: from `coordinates.py`.

    All ranks make the mesh together, because the groups of the axes are made here, each by its own ranks. A
    flattened group is made when it is first asked for, so all of its ranks must ask. Axes with the same ranks
    share one group, as all axes of size 1 do.

    Raises ValueError if the product of the sizes is not the number of ranks, and for an axis, here or in a
    method, that is not one of AXES.
    """

    def __init__(
        self,
        sizes: Mapping[str, int],
        device: torch.device | str | None = None,
        place: Place | None = None,
    ):
        self.sizes = dict(sizes)
        names(tuple(self.sizes))
        self.rank = dist.get_rank()
        world = dist.get_world_size()
        if prod(self.sizes.values()) != world:
            raise ValueError(
                f"the mesh {self.sizes} has {prod(self.sizes.values())} places and there are {world} "
                "ranks: choose sizes that multiply to the number of ranks"
            )
        self.device = _device() if device is None else torch.device(device)
        self._place = place
        self.coordinate = self._coordinate()
        self._groups: dict[tuple[int, ...], dist.ProcessGroup] = {}
        for axis in self.sizes if place is None else ():
            self.group(axis)

    def size(self, axis: Axis) -> int:
        """The number of ranks along `axis`, or of a flattened group; 1 for an axis the mesh does not have."""
        return prod(self.sizes.get(name, 1) for name in names(axis))

    def ranks(self, axis: Axis) -> list[int]:
        """The ranks of this rank's group along `axis`, as the world counts them, ascending.

        For a tuple, the ranks of the flattened group, in whatever order the axes are named, because a process
        group also counts its ranks in ascending order.
        """
        axes = self._outermost_first(axis)
        if self._place is not None:
            return list(self._place.ranks[axes])
        from .coordinates import axis_ranks

        return axis_ranks(self.rank, self.sizes, axes)

    def group(self, axis: Axis) -> dist.ProcessGroup:
        """The process group of this rank along `axis`; for a tuple, the flattened group of these axes."""
        if self._place is not None:
            return self._place.groups[self._outermost_first(axis)]
        ranks = tuple(self.ranks(axis))
        if ranks not in self._groups:
            made = dist.new_group(list(ranks), use_local_synchronization=True)
            assert isinstance(made, dist.ProcessGroup)
            self._groups[ranks] = made
        return self._groups[ranks]

    def __repr__(self) -> str:
        return f"Mesh({self.sizes}, rank={self.rank}, coordinate={self.coordinate})"

    def _outermost_first(self, axis: Axis) -> tuple[str, ...]:
        """The axes in the mesh's order, without axes the mesh does not have, which hold one rank each."""
        return tuple(name for name in self.sizes if name in names(axis))

    def _coordinate(self) -> dict[str, int]:
        if self._place is not None:
            return dict(self._place.coordinate)
        from .coordinates import coordinates

        return coordinates(self.rank, self.sizes)


def names(axis: Axis) -> tuple[str, ...]:
    """The axes as a tuple; ValueError for an axis that no mesh has."""
    axes = (axis,) if isinstance(axis, str) else tuple(axis)
    for name in axes:
        if name not in AXES:
            raise ValueError(
                f"{name!r} is not an axis of a mesh: the axes are {', '.join(AXES)}, and a mesh may lack some"
            )
    return axes


def _device() -> torch.device:
    if "nccl" in dist.get_backend():  # "cpu:gloo,cuda:nccl" where nothing records
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")
