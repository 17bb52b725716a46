"""Where each piece of each parameter is in the flat shards an optimizer knows.

This file knows two kinds of sharded modules, and both have the whole module as `.module`:

    a shard for each parameter     as in `course_lib.zero.Zero3Module`. `named_parameters()` are flat shards
                                   under the parameters' names, and often empty
    a shard for each unit          as in `PrefetchedModule`. It has `units`, each with `params` and a flat
                                   `shard`. The unit's parameters are laid in a row, which is filled up with
                                   zeros until N divides it, and the shard is rank r's part of the row

    params    a a a a a   b b   c c c c                  of a unit
    row     [ a a a | a a b | b c c | c c 0 ]            on 4 ranks
    shard           [ a a b ]                            of rank 1, with two slices, of a and of b
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .arguments import Group, all_gather
from .pieces import Piece


@dataclass(frozen=True)
class Slice:
    """A piece of the parameter `name`. Its values begin at element `low` of `shard`."""

    name: str
    piece: Piece
    shard: Tensor
    low: int = 0

    @property
    def numel(self) -> int:
        return self.piece.values.numel()

    def of(self, row: Tensor) -> Piece:
        """The same slice of a row like the shard, for example of the optimizer's state."""
        return self.piece.of(row[self.low : self.low + self.numel])


class ModuleSlices:
    """A rank's slices of a module.

    pieces: by the parameters' names.
    """

    def __init__(self, slices: Iterable[Slice]):
        self._of_shard: dict[int, list[Slice]] = {}
        self.pieces: dict[str, Piece] = {}
        for part in slices:
            self._of_shard.setdefault(id(part.shard), []).append(part)
            self.pieces[part.name] = part.piece

    def of(self, shard: Tensor) -> list[Slice]:
        """The slices in a shard; ValueError for another tensor."""
        if id(shard) not in self._of_shard:
            raise ValueError(
                "the optimizer has a parameter that is not one of the module's: make the optimizer of "
                "module.parameters(), after the module was wrapped"
            )
        return self._of_shard[id(shard)]

    def names(self, shards: Iterable[Tensor]) -> list[str]:
        """The names of the parameters of which these shards hold slices."""
        return [part.name for shard in shards for part in self.of(shard)]


def layout_of(module: nn.Module, group: Group = None) -> ModuleSlices:
    """The slices this rank holds of a sharded module of one of the two kinds.

    group: the ranks that together hold each parameter once. All of them must call.
    If each parameter has a shard, one all-gather sends 8 bytes per parameter, because a rank learns where its
    pieces begin from the sizes of the pieces on the ranks before it.

    Raises TypeError for a module without `.module`, ValueError if the shards do not fit the module's
    parameters and the group.
    """
    shapes = {name: param.shape for name, param in inner(module).named_parameters()}
    shards = dict(module.named_parameters())
    if shards.keys() == shapes.keys():
        return ModuleSlices(_of_parameters(shapes, shards, group))
    units = getattr(module, "units", None)
    if units is None or any(getattr(unit, "shard", None) is None for unit in units):
        raise ValueError(
            f"names do not fit: {sorted(shards.keys() ^ shapes.keys())} are names of a shard or of a "
            "parameter, but not of both, and there are no `units`, each with a `shard`"
        )
    layout = ModuleSlices(part for unit in units for part in _of_unit(module, unit, group))
    if layout.pieces.keys() != shapes.keys():
        raise ValueError(f"no unit holds {sorted(shapes.keys() - layout.pieces.keys())}")
    return layout


def inner(module: nn.Module) -> nn.Module:
    """The module inside the wrapper; TypeError if there is none."""
    wrapped = getattr(module, "module", None)
    if not isinstance(wrapped, nn.Module):
        raise TypeError(
            f"a {type(module).__name__} has no `.module`: pass a module whose parameters are flat shards, "
            "such as Zero3Module. A module of fully_shard has its own functions for checkpoints"
        )
    return wrapped


def _of_parameters(
    shapes: dict[str, torch.Size], shards: dict[str, nn.Parameter], group: Group
) -> list[Slice]:
    """Each shard is one slice. Ranks hold the elements of a parameter in ascending order."""
    device = next(iter(shards.values())).device
    sizes = torch.tensor([shard.numel() for shard in shards.values()], device=device)
    all_sizes = sizes.new_empty(dist.get_world_size(group), len(sizes))
    all_gather(all_sizes.view(-1), sizes, group=group)
    starts = all_sizes[: dist.get_rank(group)].sum(0).tolist()
    slices = []
    for (name, shard), start, total in zip(
        shards.items(), starts, all_sizes.sum(0).tolist(), strict=True
    ):
        if total != shapes[name].numel():
            raise ValueError(
                f"the ranks hold {total} elements of {name}, which has {shapes[name].numel()}: `group` must "
                "be the ranks that hold each parameter once, and a shard must hold no padding"
            )
        slices.append(Slice(name, Piece(shapes[name], start, shard.detach().view(-1)), shard))
    return slices


def _of_unit(module: nn.Module, unit: Any, group: Group) -> list[Slice]:
    """The slices in the shard of a unit, one for each of its parameters, often without elements."""
    names = {id(param): name for name, param in inner(module).named_parameters()}
    params: Sequence[Tensor] = list(unit.params)
    n, shard = dist.get_world_size(group), unit.shard
    total, size = sum(param.numel() for param in params), shard.numel()
    if any(id(param) not in names for param in params) or size != -(-total // n):
        raise ValueError(
            f"a unit of {total} elements has a shard of {size} on {n} ranks, where {-(-total // n)} are "
            "expected: `group` must be the ranks that hold each parameter once"
        )
    slices, begin, own = [], 0, dist.get_rank(group) * size
    for param in params:
        low = min(max(begin, own), begin + param.numel())
        high = max(low, min(begin + param.numel(), own + size))
        place = low - own if high > low else 0
        values = shard.detach().view(-1)[place : place + high - low]
        slices.append(
            Slice(names[id(param)], Piece(param.shape, low - begin, values), shard, place)
        )
        begin += param.numel()
    return slices
