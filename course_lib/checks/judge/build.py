"""Help for writing cases: tensors in awkward layouts, and one rank's part of a call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from course_lib.checks.judge.case import RankSide, Spec
from course_lib.checks.rank.harness import CallInstructions, EvaluateInstructions

GAP = -7  # stands between the elements of a strided argument; no rank should touch it
LAYOUTS = ("contiguous", "every_other", "transposed")


@dataclass
class Argument:
    """A tensor argument: its values, and how they lie in memory.

    layout "every_other": the elements of the last dimension have gaps between them; "transposed": the
    memory of a (columns, rows) tensor, two-dimensional values.
    """

    values: torch.Tensor
    layout: str = "contiguous"
    memory: torch.Tensor = field(init=False)
    view: list | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.layout == "contiguous":
            self.memory = self.values.contiguous()
            return
        if self.layout == "transposed":
            self.memory = self.values.t().contiguous()
            view = self.memory.t()
        else:
            *rest, last = self.values.shape
            self.memory = torch.full((*rest, 2 * last), GAP).to(self.values.dtype)
            view = self.memory[..., ::2]
            view.copy_(self.values)
        self.view = [list(view.shape), list(view.stride()), 0]

    def gaps(self, memory: torch.Tensor) -> torch.Tensor | None:
        """The memory between the elements; None if there are no gaps."""
        return memory[..., 1::2] if self.layout == "every_other" else None


def side(
    tensors: dict[str, Argument | torch.Tensor],
    *,
    returned: Sequence[str] = (),
    result: Spec | None = None,
    extra: Sequence[Any] = (),
    group: int | None = None,
    plain: bool = False,
    kind: type[CallInstructions] = CallInstructions,
    **more: Any,
) -> RankSide:
    """One rank's part of calling the student's function with tensors.

    tensors: arguments in order; returned: those to hand back after the call; result: the tensor that the
    function should return; extra: plain or described arguments after the tensors; group: index of the
    case's group to pass as group=; plain: the result comes back as plain data; kind, more: the type of the
    instructions, and its other fields.
    """
    arguments = {n: t if isinstance(t, Argument) else Argument(t) for n, t in tensors.items()}
    args = [tensor_of(name, argument) for name, argument in arguments.items()]
    args += [argument if isinstance(argument, dict) else {"value": argument} for argument in extra]
    outputs = {name: Spec.of(arguments[name].values) for name in returned}
    for name in returned:
        if arguments[name].layout == "every_other":
            outputs[f"{name}.memory"] = Spec.of(arguments[name].memory)
    if result is not None:
        outputs["result"] = result
    if group is not None:
        more["kwargs"] = {"group": {"group": group}}
    back = [*outputs, "result"] if plain else list(outputs)
    instructions = kind(args=args, outputs=back, plain=plain, **more)
    return RankSide({n: a.memory for n, a in arguments.items()}, instructions, outputs)


def tensor_of(name: str, argument: Argument) -> dict:
    described: dict = {"tensor": name}
    if argument.view is not None:
        described["view"] = argument.view
    return described


def evaluating(calls: Sequence[Any]) -> RankSide:
    """The side of a process that calls functions, see `harness.evaluate`."""
    return RankSide({}, EvaluateInstructions(list(calls)), {})


def absent() -> RankSide:
    """A rank that is in none of the groups and takes no part."""
    return RankSide({}, None, {})
