"""The module of ZeRO-3, as a program uses it: arguments, names, no_sync, saving, refusals.

The algorithm is in `stage3.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from .arguments import check_distinct, check_free
from .offload import Place, home
from .saving import Piece, load_pieces, save_pieces
from .shards import Span
from .stage3 import Zero3
from .transport import Collective, Group, Transport
from .units import Units, check_gathered


class Zero3Module(Zero3):
    """`module` with its parameters sharded over `group`, gathered unit by unit when they are used.

    `parameters()` are this rank's flat shards, one for each parameter, under the parameter's name (empty if
    other ranks hold all of it). Pass them to any elementwise torch optimizer. Parameters and buffers get the
    values of the group's first rank. Gradients are means over the ranks and add up until the optimizer's
    `zero_grad`. A parameter that no rank used has no gradient. Do not move or convert the module afterwards.

    group: the ranks that hold replicas. They call forward and backward alike, each on its own data.
    units: submodules, each of which is gathered as a whole, or classes of submodules. By default, the units
        are the elements of every ModuleList, ModuleDict and Sequential, or the children if there is none.
        Parameters that are outside all units, or shared by several units (tied weights), belong to the whole
        module's forward. A unit's weights are gathered only in its own `forward`, which runs on all ranks or
        on none. A submodule that computes without its weights raises RuntimeError.
    offload: where the shards are kept: None, "cpu", a folder or a MappedFile (`offload.py`). The optimizer's
        states are also kept there, and its step runs there. For states in a mapped file, call `keep_state`
        after the first step.
    reduce_scatter, all_gather: functions (output, input, group) to use instead of PyTorch's.

    Raises ValueError if the module has no parameters or is wrapped already, or if a unit is outside it;
    RuntimeError for a backward inside another one (a reentrant checkpoint), and with create_graph=True.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        group: Group = None,
        units: Units = None,
        offload: Place = None,
        reduce_scatter: Collective | None = None,
        all_gather: Collective | None = None,
    ):
        check_wrappable(module)
        transport = Transport(group, reduce_scatter, all_gather)
        super().__init__(module, transport, home(offload), units)
        self._guard()
        shard_of = {param: shard for param, _, shard in self._shards()}
        self._named = {name: shard_of[param] for name, param in self.module.named_parameters()}
        for param, _, shard in self._shards():
            param.held_by = shard.held_by = type(self).__name__  # pyright: ignore[reportAttributeAccessIssue]

    def _guard(self) -> None:
        """Make every submodule check that its own weights are here before it computes."""
        unit_of = {param: unit for unit in self.units for param in unit.params}
        for name, inner in self.module.named_modules():
            own = [p for p in inner._parameters.values() if p is not None]
            for unit in dict.fromkeys(unit_of[param] for param in own):
                at, of = name or type(inner).__name__, unit.name
                inner.register_forward_pre_hook(
                    lambda *_, at=at, of=of, unit=unit: check_gathered(at, of, unit)
                )

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """This rank's flat shards under the names of the whole parameters."""
        for name, shard in self._named.items():
            yield (f"{prefix}.{name}" if prefix else name), shard

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """In here, backward keeps full gradients on this rank. The next backward outside sends the sum.

        K microbatches then send 2K + 1 times (N-1)/N P instead of 3K times, but full gradients take up
        memory.
        """
        before, self.synchronises = self.synchronises, False
        try:
            yield
        finally:
            self.synchronises = before

    # ---- saving

    def full_state_dict(self) -> dict[str, torch.Tensor]:
        """The whole module's state dict, on the CPU of every rank, for any number of ranks to load.

        All ranks must call this method, which gathers unit by unit.
        """
        whole: dict[int, torch.Tensor] = {}
        for unit in self.units:
            unit.gather()
            whole |= {id(p): p.detach().to("cpu", copy=True) for p in unit.params}
            unit.free()
        return {
            name: whole[id(value)] if id(value) in whole else value.detach().to("cpu", copy=True)
            for name, value in self.module.state_dict(keep_vars=True).items()
        }

    @torch.no_grad()
    def load_full_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Take this rank's shards, and the buffers, from a whole state dict. Nothing is sent.

        Raises ValueError if names or shapes differ from the module's own.
        """
        own = self.module.state_dict(keep_vars=True)
        if own.keys() != state.keys():
            raise ValueError(
                f"names do not fit: missing {sorted(own.keys() - state.keys())}, unknown "
                f"{sorted(state.keys() - own.keys())}"
            )
        for name, value in own.items():
            if state[name].shape != value.shape:
                raise ValueError(
                    f"{name} has the shape {tuple(state[name].shape)}; {tuple(value.shape)} is expected"
                )
        shards = {id(param): (span, shard) for param, span, shard in self._shards()}
        for name, value in own.items():
            if id(value) in shards:
                span, shard = shards[id(value)]
                shard.copy_(state[name].reshape(-1)[span.start : span.stop])
            else:
                value.copy_(state[name])

    def optimizer_state_dict(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """This rank's part of the state of an optimizer of `parameters()`, as `saving.py` describes it."""
        number = {id(shard): i for i, shard in enumerate(self._named.values())}
        groups = [[number[id(p)] for p in group["params"]] for group in optimizer.param_groups]
        rank, n = self.transport.rank, self.transport.n
        return save_pieces(optimizer, self._pieces(), groups, rank, n)

    def load_optimizer_state_dict(
        self, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]
    ) -> None:
        """Load a dictionary joined by `merge_state_dicts`, or saved by torch.optim or by this rank."""
        load_pieces(optimizer, self._pieces(), state, self.transport.rank, self.transport.n)

    def _shards(self) -> list[tuple[nn.Parameter, Span, nn.Parameter]]:
        """Each parameter with its span and its shard on this rank."""
        return [
            held
            for unit in self.units
            for held in zip(unit.params, unit.spans, unit.shards, strict=True)
        ]

    def _pieces(self) -> list[Piece]:
        number = {id(shard): i for i, shard in enumerate(self._named.values())}
        pieces = [Piece(number[id(s)], p.shape, span, s) for p, span, s in self._shards()]
        return sorted(pieces, key=lambda piece: piece.index)

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


def check_wrappable(module: nn.Module) -> None:
    """ValueError if the module has no parameters or is wrapped already, or if parameters share memory."""
    params = list(module.parameters())
    if not params:
        raise ValueError("the module has no parameters: there is nothing to shard")
    check_free(params)
    check_distinct(params)
