"""The parts of a sharded module outside its algorithm: names of parameters, whole states, refusals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from .arguments import Group, broadcast, group_size
from .parts import Part, parts_of


class Sharded(nn.Module):
    """A wrapper of `module`, whose parameters are this rank's flat shards, one for each unit.

    module: has `blocks`, an nn.ModuleList. Parameters and buffers get the values of the group's first rank.
    Pass `parameters()` to any elementwise torch optimizer. After backward, `shard.grad` holds the mean over
    the ranks. A missing gradient counts as zeros, and the gradients of several backwards add up. Do not move
    or convert the module afterwards.

    root, parts: the units of all parameters outside the blocks, and of each block.

    Raises TypeError if the module has no blocks, and ValueError if it has no parameters, if another wrapper
    holds a parameter, or if a number of blocks ahead is below 0.
    """

    module: nn.Module

    def __init__(self, module: nn.Module, group: Group, *ahead: int):
        super().__init__()
        if not isinstance(getattr(module, "blocks", None), nn.ModuleList):
            raise TypeError(
                "the module's attribute `blocks` is not an nn.ModuleList: units are its blocks"
            )
        if min(ahead, default=0) < 0:
            raise ValueError(f"{min(ahead)} blocks ahead: the number is 0 or more")
        if not any(True for _ in module.parameters()):
            raise ValueError("the module has no parameters: there is nothing to shard")
        check_free(module)
        group_size(group)  # refuses a rank outside of it
        for buffer in module.buffers():
            broadcast(buffer, group)
        self.module = module
        self.root, self.parts = parts_of(module, group)
        names = {self.root: "the root"}
        names |= {self.parts[m]: name for name, m in module.named_modules() if m in self.parts}
        for part, name in names.items():
            for unit in part.units:
                unit.call(name)
                for param in (*unit.params, unit.shard):
                    param.held_by = type(self).__name__  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def units(self) -> list:
        """All units, first the root's units and then the units of the blocks."""
        return [unit for part in self._all() for unit in part.units]

    def _all(self) -> list[Part]:
        return [self.root, *self.parts.values()]

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """This rank's flat shards, as "shard.0" and so on."""
        for number, unit in enumerate(self.units):
            name = f"shard.{number}"
            yield (f"{prefix}.{name}" if prefix else name), unit.shard

    def full_state_dict(self) -> dict[str, torch.Tensor]:
        """The whole module's state dict, on the CPU of every rank. All ranks must call it, between steps.

        It gathers part by part, (N-1)/N P elements in all, and leaves nothing whole.
        """
        whole: dict[nn.Parameter, torch.Tensor] = {}
        for part in self._all():
            part.drop()
            part.wait()
            members = [param for unit in part.units for param in unit.params]
            whole |= {param: param.detach().to("cpu", copy=True) for param in members}
            part.free()
        return {
            name: whole[value]
            if isinstance(value, nn.Parameter)
            else value.detach().to("cpu", copy=True)
            for name, value in self.module.state_dict(keep_vars=True).items()
        }

    @torch.no_grad()
    def load_full_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take this rank's shards, and the buffers, from a whole state dict. Nothing is sent.

        Raises ValueError if names or shapes differ from the module's own.
        """
        own = self.module.state_dict(keep_vars=True)
        unlike = {
            name for name in own.keys() & state.keys() if own[name].shape != state[name].shape
        }
        if unlike := sorted(unlike | (own.keys() ^ state.keys())):
            raise ValueError(f"names or shapes do not fit the module's: {unlike}")
        values = {id(value): state[name] for name, value in own.items()}
        for unit in self.units:
            unit.load([values[id(param)] for param in unit.params])
        for buffer in self.module.buffers():
            if id(buffer) in values:
                buffer.copy_(values[id(buffer)])

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Raises RuntimeError, because a single rank's dictionary would hold no whole parameter."""
        raise RuntimeError("parameters are sharded: save full_state_dict(), called by all ranks")

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Raises RuntimeError, see `state_dict`."""
        raise RuntimeError("parameters are sharded: use load_full_state_dict(state)")

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(
            "the shards are cut: move or convert the module (.to, .cuda, .half) before it is wrapped"
        )


def check_free(module: nn.Module) -> None:
    """ValueError if any wrapper holds a parameter already, or if a parameter holds this rank's experts."""
    for name, param in module.named_parameters():
        if getattr(param, "shared_out", False):
            raise ValueError(
                f"{name} holds experts of this rank alone. Gradients of experts are summed over "
                "fewer ranks than others, and this wrapper has one group for all. `course_lib.mesh` has both"
            )
        if holder := getattr(param, "held_by", ""):
            raise ValueError(
                f"a {holder} holds {name} already: wrap a module, or a part of it, once"
            )
