"""Recipe (see `harness`) that calls functions, forward and backward, and reports the results of each call.

The reply for the call "a" has those of these tensors that it expects: "a.y" (an output), "a.grad.x" (of the
input x), "a.after.x" (an input, when all is over); and values["a"] is a `CallReply`.

A stub's NotImplementedError, which has no text, is not caught at the first call.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from course_lib.checks.rank import frozen, watching
from course_lib.checks.rank.agreed import Expects, as_agreed
from course_lib.checks.rank.backward import Hand
from course_lib.checks.rank.counting import Saved, alive
from course_lib.checks.rank.harness import describe
from course_lib.checks.rank.memory import Patience
from course_lib.checks.rank.operators import without_operators
from course_lib.checks.rank.peak import Peak
from course_lib.checks.rank.watching import give_back_at_once, measured
from course_lib.checks.wire import Count, Instructions, Place
from course_lib.runtime.moments import START

_random_like = torch.randn_like
_thresholds, _collect_after = gc.get_threshold, gc.set_threshold
OFTEN = 20  # objects


@dataclass
class CallReply:
    """The reply about a call.

    error: the exception that was raised, with zeros for all tensors; misfits: {name: text} of a tensor that
    came in another shape or not at all, with zeros in its place; saved: bytes that forward keeps for
    backward, the inputs among them if it keeps these; forward, backward: the most bytes alive at any moment
    of each, without the inputs and given gradients; flops: {"forward", "backward"} of products of matrices,
    two for each multiplication.
    """

    error: Place | None = None
    misfits: dict[str, str] = field(default_factory=dict)
    saved: Count | None = None
    forward: Count | None = None
    backward: Count | None = None
    flops: dict[str, Count] = field(default_factory=dict)


@dataclass(frozen=True)
class FunctionCall:
    """One call.

    name        the prefix of all names in the reply
    inputs      the first arguments, a list of [name, tensor]
    outputs     names of the returned tensors: one, or as many as the tuple has parts
    expects     {name: [dtype, shape]} of the tensors in the reply
    object      which of the exercise's objects
    kwargs      keyword arguments, plain or {"tuple": list}, {"dtype": name}, {"group": index}
    gradients   {output: tensor}; empty: no backward
    measured    whether bytes are counted: of tensors, and in a call of its own, in which nothing looks on, of
                the process, from outside, as "NAME.pages.forward" and "NAME.pages.backward"
    args        the arguments after the inputs, as kwargs
    asking      whether each input that is not of whole numbers asks for a gradient
    """

    name: str
    inputs: list[list[str]]
    outputs: list[str]
    expects: Expects
    object: int = 0
    kwargs: dict[str, Any] = field(default_factory=dict)
    gradients: dict[str, str] = field(default_factory=dict)
    measured: bool = False
    args: list[Any] = field(default_factory=list)
    asking: bool = True


@dataclass(frozen=True)
class FunctionInstructions(Instructions):
    """refused: see `without_operators`."""

    calls: list[FunctionCall]
    refused: list[list[str]] = field(default_factory=list)

    def parts(self) -> list[str]:
        return [call.name for call in self.calls]


def warm_up(instructions: FunctionInstructions) -> None:
    """Before the student's objects are read: the memory that they take from then on counts, see `Moments`."""
    if any(call.measured for call in instructions.calls):
        give_back_at_once()  # from the first: a heap with holes would be filled here and there
        watching.warm_up()
        measured(START)


def calls(
    objects: list, tensors: dict[str, torch.Tensor], groups: list, instructions: FunctionInstructions
) -> tuple[dict[str, CallReply], dict[str, Any]]:
    """Every call of the instructions, one after the other."""
    values: dict[str, CallReply] = {}
    outputs: dict[str, torch.Tensor] = {}
    patience = Patience(instructions.enough)
    with without_operators(instructions.refused):
        for described in instructions.calls:
            call = Call(described, objects, tensors, groups, patience)
            try:
                call.go()
            except Exception as error:
                if isinstance(error, NotImplementedError) and not values and not str(error):
                    raise
                call.values.error = describe(error)
            values[call.name] = call.values
            outputs |= {f"{call.name}.{name}": tensor for name, tensor in call.tensors().items()}
    return values, outputs


class Call:
    """One call of one function."""

    def __init__(self, call: FunctionCall, objects: list, tensors: dict, groups: list, patience: Patience):
        self.instructions, self.name, self.patience = call, call.name, patience
        self.function = objects[call.object]
        self.copied = asking if call.asking else frozen.clone
        self.inputs = {name: self.copied(tensors[tensor]) for name, tensor in call.inputs}
        self.args = [argument(described, groups) for described in call.args]
        self.kwargs = {name: argument(described, groups) for name, described in call.kwargs.items()}
        self.gradients = {name: tensors[tensor] for name, tensor in call.gradients.items()}
        self.results: dict[str, Any] = {}
        self.values = CallReply()

    def go(self) -> None:
        outside = self.from_outside() if self.instructions.measured else {}
        peak = self.watching() if self.instructions.measured else None
        outputs = self.named(self.forward(peak))
        self.results |= {name: _keep(output) for name, output in outputs.items()}
        if self.gradients:
            self.backward(outputs, peak)
        self.results |= outside

    def watching(self) -> Peak:
        """Counts the bytes alive, apart from the inputs and the given gradients."""
        known = [*self.inputs.values(), *self.gradients.values()]
        return Peak(known, self.patience, f"{self.name}.forward")

    def call(self, inputs: dict[str, torch.Tensor]) -> Any:
        return self.function(*inputs.values(), *self.args, **self.kwargs)

    def named(self, made: Any) -> dict[str, Any]:
        """The outputs by their names, as far as there are any; where there are too many, all under each."""
        parts = list(made) if isinstance(made, list | tuple) else [made]
        names = self.instructions.outputs
        if len(parts) > len(names):
            return dict.fromkeys(names, made)
        return dict(zip(names, parts, strict=False))

    def from_outside(self) -> dict[str, Any]:
        """A call in which nothing of ours looks on and the process is measured. Its results are judged.

        The process has not seen these values before: a student's function could remember an earlier result.
        A call on other values comes first, in which libraries load their parts. Objects in circles of
        references are collected soon: the solution cannot determine the moment.
        """
        often = _thresholds()
        _collect_after(OFTEN, *often[1:])
        others = {
            name: _random_like(tensor) if frozen.is_floating_point(tensor) else tensor
            for name, tensor in self.inputs.items()
        }
        try:
            self.unwatched(others, lambda *_: None)
            return self.unwatched(self.inputs, measured)
        finally:  # ranks are kept under NCCL, for other exercises
            _collect_after(*often)

    def unwatched(self, values: dict[str, torch.Tensor], measured: Callable[..., None]) -> dict[str, Any]:
        inputs = {name: self.copied(frozen.detach(tensor)) for name, tensor in values.items()}
        measured(f"{self.name}.pages.base")
        outputs = self.named(self.call(inputs))
        measured(f"{self.name}.pages.forward")
        if ends := self.ends(outputs):
            frozen.backward(ends, inputs=leaves(inputs))
        measured(f"{self.name}.pages.backward")
        results = {name: _keep(output) for name, output in outputs.items()}
        return results | {f"grad.{name}": tensor.grad for name, tensor in inputs.items() if ends}

    def forward(self, peak: Peak | None) -> Any:
        """peak: counts the bytes and FLOPs of this call; None: the call is not counted."""
        if peak is None or not self.instructions.measured:
            with peak or nullcontext():
                return self.call(self.inputs)
        before = alive()
        with Saved() as saved, peak:
            made = self.call(self.inputs)
        self.values.forward = peak.highest
        self.values.saved = self.patience.measured(
            f"{self.name}.saved", lambda: saved.nbytes + saved.beside(before, made)
        )
        self.values.flops["forward"] = peak.flops
        return made

    def backward(self, outputs: dict[str, Any], peak: Peak | None) -> None:
        """From the outputs' gradients to those of the inputs."""
        if not (ends := self.ends(outputs)):
            return
        if peak is not None:
            peak.start_again(f"{self.name}.backward")
        with peak or nullcontext():
            frozen.backward(ends, inputs=leaves(self.inputs))
        if peak is not None and self.instructions.measured:
            self.values.backward = peak.highest
            self.values.flops["backward"] = peak.flops
        self.results |= {f"grad.{name}": tensor.grad for name, tensor in self.inputs.items()}

    def ends(self, outputs: dict[str, Any]) -> list[Any]:
        """Where backward begins; an output of another shape has no gradient."""
        return [
            Hand.apply(output, self.gradients[name].to(output.dtype))
            for name, output in outputs.items()
            if name in self.gradients
            and isinstance(output, frozen.Tensor)
            and output.requires_grad
            and output.shape == self.gradients[name].shape
        ]

    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors of the reply, all of them in the shape that was agreed."""
        self.results |= {f"after.{name}": tensor for name, tensor in self.inputs.items()}
        return as_agreed(self.results, self.instructions.expects, self.values.misfits)


def argument(described: Any, groups: list) -> Any:
    match described:
        case {"tuple": parts}:
            return tuple(argument(part, groups) for part in parts)
        case {"dtype": name}:
            return getattr(torch, name)
        case {"group": index}:
            return groups[index]
    return described


def asking(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that asks for a gradient, if it is not of whole numbers."""
    return frozen.clone(tensor).requires_grad_(frozen.is_floating_point(tensor))


def leaves(inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    return [tensor for tensor in inputs.values() if tensor.requires_grad]


def _keep(value: Any) -> Any:
    return frozen.clone(frozen.detach(value)) if isinstance(value, frozen.Tensor) else value
