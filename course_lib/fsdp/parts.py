"""The parts of a sharded module, namely each block and the root, and the moments of a backward.

Trained and frozen parameters, or parameters of two dtypes, do not share a row, so a part consists of units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.autograd.graph import register_multi_grad_hook

from .arguments import Group
from .units import Unit


class Part:
    """The units of a block, or of the root, which are gathered and freed together.

    due: how many backwards of the part are still to come, according to the recorded forwards.
    """

    def __init__(self, params: Iterable[nn.Parameter], group: Group):
        kinds: dict[object, list[nn.Parameter]] = {}
        for param in params:
            kinds.setdefault((param.dtype, param.device, param.requires_grad), []).append(param)
        self.units, self.due = [Unit(members, group) for members in kinds.values()], 0

    def start(self) -> None:
        for unit in self.units:
            unit.start()

    def wait(self) -> None:
        for unit in self.units:
            unit.wait()

    def free(self) -> None:
        for unit in self.units:
            unit.free()

    def reduce(self) -> Callable[[], None]:
        """Begin the reductions of all units. The returned function ends them."""
        ends = [unit.reduce() for unit in self.units if unit.trained]

        def end_all() -> None:
            for end in ends:
                end()

        return end_all

    def drop(self) -> None:
        """Free the part, after any gathers in flight have ended."""
        for unit in self.units:
            unit.drop()

    def stop(self) -> None:
        """Drop the units that were requested but not waited for."""
        for unit in self.units:
            if unit.work is not None:
                unit.drop()

    def forget(self) -> None:
        """Forget the gradients, and the backwards still to come."""
        self.due = 0
        for unit in self.units:
            for param in unit.params:
                param.grad = None


@dataclass(frozen=True)
class Use:
    """A recorded forward of a part.

    number: in the order of all forwards. before: the previous use in the same forward of the module.
    """

    part: Part
    number: int
    before: Use | None

    def and_before(self, count: int) -> list[Use]:
        """This use and at most `count` uses before it, latest first, as backward reaches them."""
        uses: list[Use] = [self]
        use = self.before
        while use is not None and len(uses) <= count:
            uses.append(use)
            use = use.before
        return uses


def parts_of(module: nn.Module, group: Group) -> tuple[Part, dict[nn.Module, Part]]:
    """(the root, {block: its part}), in the order of `module.blocks`, each block only once.

    If two blocks share a parameter, or a module outside the blocks also uses it, it belongs to the root.
    """
    blocks = dict.fromkeys(module.blocks)  # pyright: ignore[reportCallIssue, reportArgumentType]
    inside = {inner for block in blocks for inner in block.modules()}
    users: dict[nn.Parameter, list[nn.Module]] = {}
    for user in (*blocks, *(inner for inner in module.modules() if inner not in inside)):
        for param in user.parameters(recurse=user in blocks):
            users.setdefault(param, []).append(user)
    own: dict[nn.Module, list[nn.Parameter]] = {block: [] for block in blocks}
    rest = []
    for param in module.parameters():
        (first, *others) = users[param]
        (rest if others or first not in blocks else own[first]).append(param)
    return Part(rest, group), {block: Part(params, group) for block, params in own.items()}


def units_of(module: nn.Module, group: Group = None) -> tuple[list[list[Unit]], list[Unit]]:
    """(the units of each entry of `module.blocks`, the root's units), with every parameter in one unit.

    A block that is listed twice has the same units at both places. Trained and frozen parameters, and
    parameters of two dtypes, are in units of their own, so an entry can have several units, or none. Each
    unit broadcasts its parameters from the group's first rank, so all ranks must call this together. Raises
    ValueError if another wrapper has freed a parameter.
    """
    root, parts = parts_of(module, group)
    blocks: Iterable[nn.Module] = module.blocks  # pyright: ignore[reportAssignmentType]
    return [parts[block].units for block in blocks], root.units


# ---- moments of a backward


def in_backward() -> bool:
    """Whether a backward runs at this moment, as when a checkpoint computes a forward again."""
    return torch._C._current_graph_task_id() != -1


def after_backward(call: Callable[[], None]) -> None:
    """Use this in a hook of a backward, to call `call()` when the backward is over."""
    torch.autograd.Variable._execution_engine.queue_callback(call)  # type: ignore[attr-defined]


def before_backward(tensors: list[torch.Tensor], call: Callable[[], None]) -> None:
    """Call `call()` when the first gradient of any of `tensors` is ready, before backward goes on."""
    register_multi_grad_hook(tensors, lambda _: call(), mode="any")


def refuse_second_derivatives() -> None:
    """Call this in a hook of a backward. RuntimeError if the backward records a graph of its own."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            "a backward with create_graph=True: the gradients' own graph would read weights that are freed "
            "after their use. For second derivatives keep whole weights on every rank, as "
            "DistributedDataParallel does"
        )


def tensors_in(value: object) -> list[torch.Tensor]:
    """The tensors in a module's output that require a gradient, in lists, tuples, dicts and dataclasses."""
    if isinstance(value, torch.Tensor):
        return [value] if value.requires_grad else []
    if isinstance(value, Mapping):
        members: Iterable[object] = value.values()
    elif isinstance(value, list | tuple):
        members = value
    else:
        members = vars(value).values() if hasattr(value, "__dataclass_fields__") else ()
    return [tensor for member in members for tensor in tensors_in(member)]
