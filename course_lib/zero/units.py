"""The units of ZeRO-3: what is gathered at a time, and how its memory comes and goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import nn

from .offload import Home
from .shards import Bucket, Span
from .transport import Transport

Units = Iterable[nn.Module | type[nn.Module]] | type[nn.Module] | None


class Unit:
    """Parameters that are gathered together, and this rank's shards of them.

    module: in whose forward they are used. params: they are cut up and freed here.
    shard_of: each parameter's part on this rank, flat: what optimizers work on.
    active: how many forwards and backwards of the module are under way; above 0 the weights are here.
    unsent: gradients that wait for their reduce-scatter.
    """

    def __init__(
        self,
        module: nn.Module,
        params: Sequence[nn.Parameter],
        transport: Transport,
        home: Home,
    ):
        self.module, self.transport = module, transport
        self.active, self.unsent, self._here = 0, False, True
        kinds: dict[object, list[nn.Parameter]] = {}
        for param in params:
            kinds.setdefault((param.dtype, param.device, param.requires_grad), []).append(param)
        self.buckets = [Bucket(one, transport.rank, transport.n) for one in kinds.values()]
        self.trainable = [one for one in self.buckets if one.params[0].requires_grad]
        self.frozen = len(self.trainable) < len(self.buckets)
        self._shards: list[torch.Tensor] = []
        self._views = [bucket.views(bucket.flat) for bucket in self.buckets]
        self._ghosts = [[_ghost(p) for p in bucket.params] for bucket in self.buckets]
        self.shard_of: dict[nn.Parameter, nn.Parameter] = {}
        for bucket in self.buckets:
            transport.broadcast(bucket.flat)
            shard = home.empty(bucket.shard_numel, bucket.flat.dtype, bucket.flat.device)
            shard.copy_(bucket.own)
            self._shards.append(shard)
            for param, piece in zip(bucket.params, bucket.pieces(shard), strict=True):
                self.shard_of[param] = nn.Parameter(piece, requires_grad=param.requires_grad)
        self._free()

    def pieces(self) -> list[tuple[nn.Parameter, tuple[Span, nn.Parameter]]]:
        """Each parameter with its span and shard on this rank."""
        return [
            (param, (span, self.shard_of[param]))
            for bucket in self.buckets
            for param, span in zip(bucket.params, bucket.spans, strict=True)
        ]

    # ---- weights

    def enter(self) -> None:
        """A use begins: the weights must be here."""
        self.active += 1
        if not self._here:
            self._gather()

    def leave(self, entirely: bool = False) -> None:
        """A use, or with `entirely` every use, is over: after the last one the weights are freed."""
        self.active = 0 if entirely else max(0, self.active - 1)
        if self._here and not self.active:
            self._free()

    @torch.no_grad()
    def _gather(self) -> None:
        for bucket, shard, views in zip(self.buckets, self._shards, self._views, strict=True):
            bucket.flat.untyped_storage().resize_(bucket.flat.numel() * bucket.flat.element_size())
            if shard.device == bucket.flat.device:
                self.transport.all_gather(bucket.flat, shard)
            else:
                bucket.own.copy_(shard, non_blocking=True)
                self.transport.all_gather(bucket.flat, bucket.own)
            for param, view in zip(bucket.params, views, strict=True):
                param.data = view
        self._here = True

    def _free(self) -> None:
        for bucket, ghosts in zip(self.buckets, self._ghosts, strict=True):
            for param, ghost in zip(bucket.params, ghosts, strict=True):
                param.data = ghost
            bucket.flat.untyped_storage().resize_(0)
        self._here = False

    # ---- gradients

    def all_arrived(self) -> bool:
        return all(all(bucket.arrived) for bucket in self.trainable)

    @torch.no_grad()
    def send_gradients(self) -> Callable[[], None]:
        """Start the reduce-scatter; the function returned waits and adds to the shards' gradients."""
        self.unsent = False
        started = []
        for bucket in self.trainable:
            for i, param in enumerate(bucket.params):
                if param.grad is not None:  # left by a backward under no_sync
                    bucket.put(i, add=True)
                    param.grad = None
            whole, arrived = bucket.take_gradient()
            started.append((bucket, arrived, self.transport.reduce_scatter_mean(whole)))

        def finish() -> None:
            for bucket, arrived, wait in started:
                self._keep(bucket, wait(), arrived)

        return finish

    @torch.no_grad()
    def _keep(self, bucket: Bucket, mean: torch.Tensor, arrived: Sequence[bool]) -> None:
        present = bucket.present(mean, arrived)
        for param, piece, here in zip(bucket.params, bucket.pieces(mean), present, strict=True):
            shard = self.shard_of[param]
            if here and shard.grad is not None:
                shard.grad.add_(piece.to(shard.device))
            elif here:
                shard.grad = piece.to(shard.device)

    def drop_gradients(self) -> None:
        """Forget gradients that were not sent."""
        self.unsent = False
        for bucket in self.trainable:
            bucket.forget_gradient()


def _ghost(param: torch.Tensor) -> torch.Tensor:
    """What a parameter shows while its memory is freed: NaN in its shape, from one element.

    A kernel that is given freed storage ends the process; this is only seen to be wrong.
    """
    value = float("nan") if param.dtype.is_floating_point or param.dtype.is_complex else 0
    return torch.full((), value, dtype=param.dtype, device=param.device).expand(param.shape)


# ---- which parameters belong together


def unit_parameters(module: nn.Module, units: Units) -> list[tuple[nn.Module, list[nn.Parameter]]]:
    """The units' modules with the parameters that each has to itself; last the rest, with `module`."""
    chosen = _chosen(module, units)
    owners: dict[nn.Parameter, list[nn.Module]] = {}
    visited: set[tuple[int, int]] = set()

    def visit(one: nn.Module, unit: nn.Module) -> None:
        unit = one if one in chosen else unit
        if (id(one), id(unit)) in visited:
            return
        visited.add((id(one), id(unit)))
        for param in one._parameters.values():
            if param is not None:
                owners.setdefault(param, []).append(unit)
        for child in one.children():
            visit(child, unit)

    visit(module, module)
    grouped: dict[nn.Module, list[nn.Parameter]] = {unit: [] for unit in [*chosen, module]}
    for param, users in owners.items():
        shared = any(user is not users[0] for user in users)
        grouped[module if shared else users[0]].append(param)
    return [(unit, params) for unit, params in grouped.items() if params]


def _chosen(module: nn.Module, units: Units) -> list[nn.Module]:
    """The modules that `units` names, in the module's own order, without the module itself."""
    inside = [one for one in module.modules() if one is not module]
    if units is None:
        return _layers(module) or list(module.children())
    given = [units] if isinstance(units, type) else list(units)
    classes = tuple(one for one in given if isinstance(one, type))
    others = [one for one in given if not isinstance(one, type)]
    for one in others:
        if not any(one is known for known in module.modules()):
            raise ValueError(f"units holds a {type(one).__name__} that is not inside the module")
    chosen = [one for one in inside if isinstance(one, classes) or any(one is m for m in others)]
    if classes and not any(isinstance(one, classes) for one in module.modules()):
        names = ", ".join(one.__name__ for one in classes)
        raise ValueError(f"units names {names}, but the module has no submodule of that class")
    return chosen


def _layers(module: nn.Module) -> list[nn.Module]:
    """The elements of the outermost ModuleLists and Sequentials."""
    if isinstance(module, nn.ModuleList | nn.Sequential):
        found = []
        for child in module.children():
            found += _layers(child) if isinstance(child, nn.ModuleList) else [child]
        return found
    return [layer for child in module.children() for layer in _layers(child)]


def tensors_in(value: object, seen: set[int] | None = None) -> list[torch.Tensor]:
    """The tensors that require a gradient in what a module takes or returns, however nested."""
    seen = set() if seen is None else seen
    if isinstance(value, torch.Tensor):
        return [value] if value.requires_grad else []
    if id(value) in seen or isinstance(value, str | bytes | int | float | nn.Module | type(None)):
        return []
    seen.add(id(value))
    if isinstance(value, Mapping):
        members: Iterable[object] = value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        members = value
    else:
        members = getattr(value, "__dict__", {}).values()
    return [tensor for member in members for tensor in tensors_in(member, seen)]
