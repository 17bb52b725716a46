"""The units of ZeRO-3: parameters that are gathered together, and when they take and free memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import nn

from .bucket import Bucket
from .shards import Home
from .transport import Transport

Units = Iterable[nn.Module | type[nn.Module]] | type[nn.Module] | None


class Unit(Bucket):
    """Parameters that are gathered, freed and reduced together, and this rank's shards of them.

    params: of one dtype and device, all frozen or all trained. Between uses they have no memory.
    name: of the module in whose forward they are gathered. The unit's rows have this name as their `label`,
        so that a ledger that compares the ranks' collectives can tell two units of the same size apart.
    uses: how many forwards and backwards are under way; above 0 the parameters are here.
    forwards: forwards that have begun but not ended.  unsent: whether gradients wait for `reduce`.
    """

    def __init__(
        self, params: Sequence[nn.Parameter], transport: Transport, home: Home, name: str = ""
    ):
        super().__init__(params, transport, home)  # row (n * shard,), broadcast; master (shard,)
        self.name = name
        label(self.flat, name)
        self.trained = params[0].requires_grad
        self.ghosts = [ghost(param) for param in params]
        self.uses, self.here, self.unsent = 0, True, False
        self.forwards: list[Use] = []
        self.free()

    def _make_master(self) -> torch.Tensor:
        """A copy in every case, because `own` is freed with the row."""
        return self.home.empty(self.shard_numel, self.own.dtype, self.own.device).copy_(self.own)

    def shard_here(self) -> torch.Tensor:
        """The master, on the parameters' device."""
        if self.master.device == self.own.device:
            return self.master
        return self.own.copy_(self.master, non_blocking=True)

    @torch.no_grad()
    def gather(self) -> None:
        """Begin a use: give the parameters their memory, and fill it with all ranks' shards."""
        self.uses += 1
        if not self.here:
            self.flat.untyped_storage().resize_(self.flat.nbytes)
            self.transport.all_gather(self.flat, self.shard_here())  # (shard,) -> (n * shard,)
            self.show(self.row_views)
            self.here = True

    def free(self, entirely: bool = False) -> None:
        """End a use, or with `entirely` every use. After the last use, give the memory back."""
        self.uses = 0 if entirely else max(0, self.uses - 1)
        if self.here and not self.uses:
            self.show(self.ghosts)
            self.flat.untyped_storage().resize_(0)
            self.here = False

    @torch.no_grad()
    def reduce(self) -> Callable[[], None]:
        """Start the reduce-scatter; the returned function adds the mean to the shards' gradients."""
        self.add_left()  # of a backward under no_sync
        whole, arrived = self.take_gradient()
        label(whole, self.name)
        wait = self.transport.start_reduce_scatter_mean(whole)  # (n * shard,) -> (shard,)
        self.unsent = False

        def finish() -> None:
            mean = wait()
            self.give(mean, self.present(mean, arrived), add=True)

        return finish


def label(row: torch.Tensor, name: str) -> None:
    row.label = name  # pyright: ignore[reportAttributeAccessIssue]


class Use:
    """A forward of the unit's module. began: whether its backward has begun but not ended."""

    def __init__(self, unit: Unit):
        self.unit, self.began = unit, False


def ghost(param: torch.Tensor) -> torch.Tensor:
    """The tensor a parameter shows while its memory is freed, NaN in its shape from one element.

    A kernel that read freed storage would end the process, whereas NaN can be seen.
    """
    value = float("nan") if param.dtype.is_floating_point or param.dtype.is_complex else 0
    return torch.full((), value, dtype=param.dtype, device=param.device).expand(param.shape)


# ---- which parameters belong together


def unit_parameters(module: nn.Module, units: Units) -> list[tuple[nn.Module, list[nn.Parameter]]]:
    """Each unit's module with the parameters that no other unit uses, and last `module` with the rest."""
    chosen = _chosen(module, units)
    owners: dict[nn.Parameter, list[nn.Module]] = {}
    visited: set[tuple[int, int]] = set()

    def visit(inner: nn.Module, unit: nn.Module) -> None:
        unit = inner if inner in chosen else unit
        if (id(inner), id(unit)) in visited:
            return
        visited.add((id(inner), id(unit)))
        for param in inner._parameters.values():
            if param is not None:
                owners.setdefault(param, []).append(unit)
        for child in inner.children():
            visit(child, unit)

    visit(module, module)
    grouped: dict[nn.Module, list[nn.Parameter]] = {unit: [] for unit in [*chosen, module]}
    for param, users in owners.items():
        shared = any(user is not users[0] for user in users)
        grouped[module if shared else users[0]].append(param)
    return [(unit, params) for unit, params in grouped.items() if params]


def _chosen(module: nn.Module, units: Units) -> list[nn.Module]:
    """The modules named by `units`, in the module's own order, without the module itself."""
    inside = [inner for inner in module.modules() if inner is not module]
    if units is None:
        return _layers(module) or list(module.children())
    chosen_by = [units] if isinstance(units, type) else list(units)
    classes = tuple(kind for kind in chosen_by if isinstance(kind, type))
    others = [unit for unit in chosen_by if not isinstance(unit, type)]
    for other in others:
        if not any(other is known for known in module.modules()):
            raise ValueError(f"units holds a {type(other).__name__} that is not inside the module")
    chosen = [
        inner for inner in inside if isinstance(inner, classes) or any(inner is m for m in others)
    ]
    if classes and not any(isinstance(inner, classes) for inner in module.modules()):
        names = ", ".join(kind.__name__ for kind in classes)
        raise ValueError(f"units names {names}, but the module has no submodule of that class")
    return chosen


def _layers(module: nn.Module) -> list[nn.Module]:
    """The elements of the outermost ModuleLists, ModuleDicts and Sequentials."""
    if isinstance(module, nn.ModuleList | nn.ModuleDict | nn.Sequential):
        layers = []
        for child in module.children():
            container = isinstance(child, nn.ModuleList | nn.ModuleDict)
            layers += _layers(child) if container else [child]
        return layers
    return [layer for child in module.children() for layer in _layers(child)]


def check_gathered(name: str, kind: str, unit: Unit) -> None:
    """Raise RuntimeError if the submodule `name` is about to compute with weights that are not here."""
    if not unit.here:
        raise RuntimeError(
            f"{name} computes, and its weights were not gathered: the forward of {kind}, the unit that they "
            "belong to, does not run. Name units whose forward runs: units=[...]"
        )
