"""Which part of a parameter a rank holds, and how parts become the whole again.

A parallel layer's parameters have the same names as the parameters of the layer it replaces. So the state
dicts of one process and of N ranks differ only in shapes. `load_full_state_dict` cuts and `full_state_dict`
joins, so a model can be saved on N ranks and loaded on M.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .conjugate import Group, all_gather, place


@dataclass(frozen=True)
class Cut:
    """The part of a whole tensor held by this rank of `group`.

    dim, size: the dimension that is cut, and its length in the whole.
    copies: how many ranks in succession hold the same part. There are n / copies parts, cut as
        `torch.tensor_split` does. If their number does not divide the size, the first parts are one element
        longer.
    """

    dim: int
    size: int
    group: Group = None
    copies: int = 1

    def bounds(self) -> tuple[int, int]:
        """Where the rank's part begins and ends in the whole."""
        rank, n = place(self.group)
        parts, index = n // self.copies, rank // self.copies
        each, longer = divmod(self.size, parts)
        return each * index + min(index, longer), each * (index + 1) + min(index + 1, longer)

    def part(self, whole: Tensor) -> Tensor:
        """This rank's part of `whole`, as a copy."""
        start, end = self.bounds()
        return whole.detach().narrow(self.dim, start, end - start).clone()

    def whole(self, part: Tensor) -> Tensor:
        """The parts of all ranks of the group put together; all of these ranks must call it."""
        if self.copies == 1:
            return all_gather(part.detach(), self.group, self.dim, self.size)
        pieces = all_gather(part.detach().unsqueeze(0), self.group, 0)
        return torch.cat(pieces[:: self.copies].unbind(), self.dim)


class Parallel(nn.Module):
    """A layer in which some parameters are cut; `cuts` lists them by their names in the layer."""

    cuts: dict[str, Cut]

    def __init__(self, group: Group = None):
        super().__init__()
        place(group)  # a rank outside the group gets its error now
        self.group = group
        self.cuts = {}

    def take(self, name: str, whole: Tensor, cut: Cut | None) -> nn.Parameter:
        """The rank's part of `whole`, to be the parameter `name`; cut None: all of it.

        All ranks get the values of the group's first rank, so that they agree even if they drew different
        ones. The first rank broadcasts them, and during the broadcast every rank holds the whole.
        """
        values = whole.detach().clone(memory_format=torch.contiguous_format)
        if place(self.group)[1] > 1 and values.numel():
            first = dist.get_process_group_ranks(self.group or dist.group.WORLD)[0]
            dist.broadcast(values, first, group=self.group)
        if cut is not None:
            self.cuts[name] = cut
            values = cut.part(values)
        return nn.Parameter(values, requires_grad=whole.requires_grad)


def full_state_dict(module: nn.Module) -> dict[str, Tensor]:
    """The state dict that the unsharded module would have, on every rank; all ranks must call it.

    Each rank sends (n-1)/n of the bytes of all cut tensors, or (n-1) parts for k and v if several ranks hold
    the same head.
    """
    cuts = _cuts(module)
    return {
        name: cuts[name].whole(value) if name in cuts else value.detach().clone()
        for name, value in module.state_dict().items()
    }


@torch.no_grad()
def load_full_state_dict(module: nn.Module, state_dict: Mapping[str, Tensor]) -> None:
    """Load the rank's parts of a state dict of the unsharded module, or of one from `full_state_dict`.

    Nothing is sent. Raises ValueError if a tensor has the shape of another model. As `load_state_dict` does,
    raises RuntimeError if names are missing or unexpected.
    """
    cuts, parts = _cuts(module), {}
    for name, value in state_dict.items():
        if name in cuts:
            cut = cuts[name]
            if value.dim() <= cut.dim or value.shape[cut.dim] != cut.size:
                raise ValueError(
                    f"{name} has shape {tuple(value.shape)} in the state dict, but {cut.size} is expected in "
                    f"dimension {cut.dim}: give the state of the unsharded model, of the same sizes"
                )
            value = cut.part(value)
        parts[name] = value
    module.load_state_dict(parts)


def _cuts(module: nn.Module) -> dict[str, Cut]:
    """Every cut parameter below `module`, by its name in the state dict."""
    return {
        f"{prefix}.{name}" if prefix else name: cut
        for prefix, layer in module.named_modules()
        if isinstance(layer, Parallel)
        for name, cut in layer.cuts.items()
    }
