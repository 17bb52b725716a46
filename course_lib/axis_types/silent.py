"""Process groups without other ranks, so a collective only changes types and returns immediately.

Inside `silent_world`, this process is rank 0 of the mesh. `dist.get_rank`, `dist.new_group` and the
collectives work as on a real rank. Afterwards, the previous groups are restored, if there were any.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed import distributed_c10d as c10d

from course_lib.dry.absent import Done, StoreOfOne, backend_of_nobody
from course_lib.ledger.axes import differing_axes
from course_lib.ledger.group import FAMILIES, reduction
from course_lib.ledger.tensors import flatten


class Listener(Protocol):
    """It is told of the collectives; `axes` are the axes along which the group's ranks differ."""

    def summed(self, x: Tensor, axes: tuple[str, ...], how: str) -> None: ...
    def gathered(self, out: list[Tensor], x: Tensor, axes: tuple[str, ...]) -> None: ...
    def scattered(self, out: Tensor, x: Tensor, axes: tuple[str, ...], how: str) -> None: ...
    def sent_to_all(self, x: Tensor, axes: tuple[str, ...]) -> None: ...
    def refused(self, op: str) -> None: ...


class SilentGroup(ProcessGroup):
    """The group of a rank whose peers do not exist."""

    def __init__(self, size: int, axes: tuple[str, ...], listener: Listener):
        super().__init__(0, size)  # pyright: ignore[reportCallIssue]
        # C++ asks a group for the backend of a device. No operation gets there.
        kind = ProcessGroup.BackendType.CUSTOM
        self._register_backend(torch.device("cpu"), kind, backend_of_nobody(0, size))
        self.size_, self.axes, self.listener = size, axes, listener

    def getRank(self) -> int:
        return 0

    def getSize(self) -> int:
        return self.size_

    def getBackendName(self) -> str:
        return "silent"

    def allreduce(self, tensors: Any, *args: Any, **_: Any) -> Done:
        for tensor in flatten(tensors):
            self.listener.summed(tensor, self.axes, reduction(args))
        return Done(tensors)

    allreduce_coalesced = allreduce  # pyright: ignore[reportAssignmentType]

    def broadcast(self, x: Any, *_: Any, **__: Any) -> Done:
        for tensor in flatten(x):
            self.listener.sent_to_all(tensor, self.axes)
        return Done(x)

    def barrier(self, *_: Any, **__: Any) -> Done:
        return Done([])

    def gathering(self, out: Any, x: Any, *_: Any, **__: Any) -> Done:
        self.listener.gathered(flatten(out), flatten(x)[0], self.axes)
        return Done(out)

    def scattering(self, out: Any, x: Any, *args: Any, **_: Any) -> Done:
        whole = flatten(x)
        if len(whole) > 1:
            self.listener.refused("reduce_scatter of a list (reduce_scatter_tensor is typed)")
        self.listener.scattered(flatten(out)[0], whole[0], self.axes, reduction(args))
        return Done(out)


def _refusing(name: str) -> Callable:
    def method(self: SilentGroup, *_: Any, **__: Any) -> Done:
        self.listener.refused(name)
        return Done([])

    return method


for _family, _names in FAMILIES.items():
    for _name in _names.split():
        _typed = _family != "exchanging"
        setattr(SilentGroup, _name, vars(SilentGroup)[_family] if _typed else _refusing(_name))
for _name in ("send", "recv", "recv_anysource", "reduce", "gather", "scatter"):
    setattr(SilentGroup, _name, _refusing(_name))


@contextlib.contextmanager
def silent_world(sizes: Mapping[str, int], listener: Listener) -> Iterator[None]:
    """Make this process rank 0 of a mesh of `sizes`, and restore the previous groups afterwards."""
    made: list[SilentGroup] = []

    def new_group(ranks: Any = None, *_: Any, **__: Any) -> Any:
        members = list(range(prod(sizes.values())) if ranks is None else ranks)
        if 0 not in members:
            return dist.GroupMember.NON_GROUP_MEMBER
        made.append(SilentGroup(len(members), differing_axes(members, sizes), listener))
        register(made[-1], members)
        return made[-1]

    before, of_torch = c10d._world.default_pg, dist.new_group
    try:
        c10d._update_default_pg(new_group())
        dist.new_group = c10d.new_group = new_group
        yield
    finally:
        dist.new_group = c10d.new_group = of_torch
        c10d._update_default_pg(before)
        for group in made:
            forget(group)


def register(group: SilentGroup, ranks: list[int]) -> None:
    """Tell PyTorch which ranks the group has, as `new_group` does."""
    world: Any = c10d._world
    name: Any = f"silent {id(group)}"
    world.pg_map[group] = ("gloo", StoreOfOne())
    world.pg_names[group] = name
    world.pg_group_ranks[group] = {rank: place for place, rank in enumerate(sorted(ranks))}
    group._set_group_name(name)


def forget(group: SilentGroup) -> None:
    world = c10d._world
    for kept in (world.pg_map, world.pg_names, world.pg_group_ranks):
        kept.pop(group, None)
