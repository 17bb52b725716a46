"""Recipe (see `harness`) that makes layers, runs them forward and backward, and reports the results.

The reply for the run "a" has those of these tensors that it expects:
"a.y" (the output), "a.again" (after the update), "a.grad.x" (of the input x), "a.p.weight" and
"a.grad.p.weight" (of the parameter of that name, or whose name ends so), "a.after.x" and "a.after.gradient"
(an input, and the output's gradient, when all is over), "a.drawn" (two numbers of the default generator after
forward); and values["a"] is a `LayerReply`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from course_lib.checks.rank import frozen, gpt, watching
from course_lib.checks.rank.agreed import Expects, as_agreed
from course_lib.checks.rank.backward import Hand, unregistered
from course_lib.checks.rank.counting import Saved, alive, more
from course_lib.checks.rank.harness import describe
from course_lib.checks.rank.memory import Patience
from course_lib.checks.rank.own_parts import own_parts, refuse_imports
from course_lib.checks.rank.watching import begun_and_waited, give_back_at_once, measured
from course_lib.checks.wire import Count, Instructions, Place
from course_lib.runtime.backend import device
from course_lib.runtime.moments import START

_Module = nn.Module
_LayerNorm = nn.LayerNorm
_ranks_of = dist.get_process_group_ranks
_get_default, _set_default = torch.get_default_dtype, torch.set_default_dtype
_named_parameters, _train = nn.Module.named_parameters, nn.Module.train

before_reading = refuse_imports  # DTensor takes a rank seconds to import, and an object may name it


@dataclass
class LayerReply:
    """The reply about a run.

    begun: operations begun before the layer was made, after that, after forward and after backward; held:
    bytes of the tensors that the layer brought with it; saved: bytes that forward keeps for backward, by
    PyTorch's hand or in any other place, the layer's own parameters left out; by_luck: whether backward met
    an operation that has none, and PyTorch warned of it; misfits: {name: text} of a tensor that came in
    another shape or not at all, with zeros in its place; refused: the ValueError that is an answer.
    """

    begun: list[Count] = field(default_factory=list)
    misfits: dict[str, str] = field(default_factory=dict)
    held: Count | None = None
    saved: Count | None = None
    by_luck: bool = False
    refused: Place | None = None


@dataclass(frozen=True)
class LayerInstructions:
    """One run.

    name       the prefix of all names in the reply
    inputs     the arguments, a list of [name, tensor]; floating-point ones ask for a gradient unless their
               names are in `fixed`
    expects    {name: [dtype, shape]} of the tensors in the reply
    object     which of the exercise's objects
    make       [arguments, keyword arguments] of the class; None: the object is called as it is
    norm       tensors, the weight and the bias of an nn.LayerNorm that is the class's first argument
    eps        the norm's
    model      description (see `gpt`) of a GPT that is the first argument: of a function that changes it
    kwargs     keyword arguments of the call
    group      which of the case's groups is passed as group=, to the class or, without `make`, to the call
    seed       the state of the default generator before the class is made
    backward   the tensor that is the output's gradient; None: no backward
    views      {name: [shape, stride]} of inputs, or of "gradient", that are views of the tensor that was sent
    pages      whether the process is measured from outside before the layer is made, after that, and after
               backward, as "NAME.pages.made" and "NAME.pages.backward"
    lr         after backward lr times its gradient is taken from every parameter, and the layer called again
    evaluates  whether the layer is put into evaluation first: layer.eval()
    refuses    whether a ValueError is an answer: the reply has it, and the run is over
    """

    name: str
    inputs: list[list[str]]
    expects: Expects
    object: int = 0
    make: list[Any] | None = None
    norm: list[str] = field(default_factory=list)
    eps: float = 1e-5
    model: dict[str, Any] | None = None
    kwargs: dict[str, Any] = field(default_factory=dict)
    group: int | None = None
    seed: int = 0
    fixed: list[str] = field(default_factory=list)
    backward: str | None = None
    views: dict[str, list[list[int]]] = field(default_factory=dict)
    pages: bool = False
    lr: float | None = None
    evaluates: bool = False
    refuses: bool = False


@dataclass(frozen=True)
class LayersInstructions(Instructions):
    """dtype: the default meanwhile."""

    runs: list[LayerInstructions]
    dtype: str = "float64"

    def parts(self) -> list[str]:
        return [run.name for run in self.runs]


def warm_up(instructions: LayersInstructions) -> None:
    """Before the student's objects are read: the memory that they take from then on counts, see `Moments`."""
    if any(run.pages for run in instructions.runs):
        give_back_at_once()
        watching.warm_up()
        measured(START)


def layers(
    objects: list, tensors: dict[str, torch.Tensor], groups: list, instructions: LayersInstructions
) -> tuple[dict[str, LayerReply], dict[str, Any]]:
    """Every run of the instructions, one after the other."""
    values, outputs, patience = {}, {}, Patience(instructions.enough)
    with own_parts(), known_groups(groups), default_dtype(instructions.dtype):
        for described in instructions.runs:
            run = LayerOnRank(described, objects, tensors, groups, patience)
            run.go()
            values[described.name] = run.values
            outputs |= {f"{described.name}.{name}": t for name, t in run.tensors().items()}
    return values, outputs


@contextmanager
def known_groups(groups: list) -> Iterator[None]:
    """Within, dist.new_group returns that of the `groups` which has the ranks, if there is one.

    Where some ranks hold the same part, a layer makes a group of them. A rank that is not in one of the
    groups has a placeholder for it, which is passed by.
    """
    make = dist.new_group
    known = {frozenset(_ranks_of(group)): group for group in groups if isinstance(group, dist.ProcessGroup)}

    def new_group(ranks: Any = None, *args: Any, **kwargs: Any) -> Any:
        group = None if ranks is None else known.get(frozenset(ranks))
        return make(ranks, *args, **kwargs) if group is None else group

    dist.new_group = new_group
    try:
        yield
    finally:  # ranks are kept under NCCL, for other exercises
        dist.new_group = make


@contextmanager
def default_dtype(name: str) -> Iterator[None]:
    before = _get_default()
    _set_default(getattr(torch, name))
    try:
        yield
    finally:  # ranks are kept under NCCL, for other exercises
        _set_default(before)


class LayerOnRank:
    """One layer, made and run on this rank."""

    def __init__(
        self,
        run: LayerInstructions,
        objects: list,
        tensors: dict[str, torch.Tensor],
        groups: list,
        patience: Patience,
    ):
        self.instructions, self.groups, self.sent, self.patience = run, groups, tensors, patience
        self.object = objects[run.object]
        self.inputs: dict[str, torch.Tensor] = {}
        for name, tensor in run.inputs:
            value = self.viewed(name, frozen.clone(tensors[tensor]))
            self.inputs[name] = value.requires_grad_(value.is_floating_point() and name not in run.fixed)
        self.gradient = self.viewed("gradient", tensors[run.backward]) if run.backward else None
        self.results: dict[str, Any] = {}
        self.values = LayerReply()

    def viewed(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor, or a view of it where one is asked for."""
        view = self.instructions.views.get(name)
        if not view:
            return tensor
        size, stride = view
        return frozen.as_strided(tensor, size, stride)

    def go(self) -> None:
        """Make and run; where a ValueError is an answer, tell it."""
        try:
            self.run()
        except ValueError as error:
            if not self.instructions.refuses:
                raise
            self.values.refused = describe(error)

    def run(self) -> None:
        layer = self.made()
        self.parameters = parameters(layer)
        kwargs = dict(self.instructions.kwargs)
        if self.instructions.make is None:
            kwargs |= self.group()
        before = alive()
        with Saved(self.parameters.values()) as saved:
            y = layer(*self.inputs.values(), **kwargs)
        self.measure("saved", lambda: saved.nbytes + saved.beside(before, y))
        self.moment()
        self.results["drawn"] = frozen.rand(2, dtype=torch.float64)
        self.results["y"] = frozen.clone(frozen.detach(y)) if isinstance(y, frozen.Tensor) else y
        if self.gradient is not None:
            self.backward(y)
        self.count_pages("backward")
        self.moment()
        if self.instructions.lr is not None:
            with frozen.no_grad():
                for parameter in self.parameters.values():
                    if parameter.grad is not None:
                        parameter -= self.instructions.lr * parameter.grad
                self.results["again"] = layer(*self.inputs.values(), **kwargs)

    def made(self) -> Any:
        """The layer, or the object itself."""
        self.moment()
        if self.instructions.make is None:
            self.moment()
            return self.object
        args, kwargs = self.instructions.make
        if self.instructions.norm:
            args = [self.norm(), *args]
        before = alive()
        self.count_pages("base")
        if self.instructions.model is not None:
            args = [gpt.build(self.instructions.model), *args]
        frozen.manual_seed(self.instructions.seed)
        layer = self.object(*args, **kwargs, **self.group())
        del args  # of a model that was changed nothing must be left over but the layer's own tensors
        if isinstance(layer, _Module):
            layer.to(device())
            _train(layer, not self.instructions.evaluates)
        self.measure("held", lambda: more(alive(), before))
        self.count_pages("made")
        self.moment()
        return layer

    def measure(self, key: str, count: Callable[[], int]) -> None:
        nbytes = self.patience.measured(f"{self.instructions.name}.{key}", count)
        setattr(self.values, key, nbytes)

    def count_pages(self, moment: str) -> None:
        """From outside, where the layer is large enough to be seen there."""
        if self.instructions.pages:
            measured(f"{self.instructions.name}.pages.{moment}")

    def norm(self) -> nn.LayerNorm:
        weight, bias = (frozen.clone(self.sent[name]) for name in self.instructions.norm)
        norm = _LayerNorm(len(weight), eps=self.instructions.eps)
        norm.weight, norm.bias = frozen.Parameter(weight), frozen.Parameter(bias)
        return norm

    def group(self) -> dict[str, Any]:
        group = self.instructions.group
        return {} if group is None else {"group": self.groups[group]}

    def moment(self) -> None:
        self.values.begun.append(begun_and_waited()[0])

    def backward(self, y: Any) -> None:
        """From the output's gradient to those of inputs and parameters.

        An output of another shape gets zeros, so that the other ranks do not wait for this one in vain.
        """
        if not isinstance(y, frozen.Tensor) or not y.requires_grad:
            return
        fits = self.gradient is not None and y.shape == self.gradient.shape
        try:
            with unregistered() as warned:
                frozen.backward(Hand.apply(y, self.gradient.to(y.dtype) if fits else frozen.zeros_like(y)))
            self.values.by_luck = bool(warned)
        except Exception:
            if fits:  # else the shape is the mistake, which is told
                raise
        for name, tensor in self.inputs.items():
            self.results[f"grad.{name}"] = tensor.grad if fits else None

    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors of the reply, all of them in the shape that was agreed."""
        for name, parameter in getattr(self, "parameters", {}).items():
            for called in (name, name.rpartition(".")[2]):
                self.results.setdefault(f"p.{called}", parameter)
                self.results.setdefault(f"grad.p.{called}", parameter.grad)
        self.results |= {f"after.{name}": tensor for name, tensor in self.inputs.items()}
        self.results["after.gradient"] = self.gradient
        return as_agreed(self.results, self.instructions.expects, self.values.misfits)


def parameters(layer: Any) -> dict[str, torch.Tensor]:
    return dict(_named_parameters(layer)) if isinstance(layer, _Module) else {}
