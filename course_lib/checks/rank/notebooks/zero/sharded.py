"""Runs in the rank: drives a student's unit and sharded module, and reports the results. Decides nothing.

`unit` works on the tensors "p0", "p1" and so on, which become the parameters, with gradients "g0.0" (first
backward), "g1.0" (second), and so on; one that is missing is None.

`module` trains as the recipes of `rank.training` do, and tells of the module's outputs besides, so that a
faulty full_state_dict() costs no more than its own line. Values: those of `rank.training`; "elements", how
many numbers the module's parameters() have on this rank; "state", the fault of
full_state_dict(), [kind, name] or None; "left", how many parameters still had a .grad when a later forward
began. Tensors: "out.STEP", of the step's first microbatch, and of one more forward at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from course_lib.checks.rank import frozen, toys, training, watching
from course_lib.checks.rank.training import Session, TrainingInstructions, TrainingReply, keywords
from course_lib.checks.wire import Count, Instructions
from course_lib.runtime.backend import device

_tanh = torch.tanh
FREED = ("out of bounds for storage", "setStorage")  # in PyTorch's error about a view without its memory


# ---- a unit


def storages(params: Sequence[torch.Tensor]) -> int:
    """Bytes of the memory behind tensors, each storage once."""
    sizes = {p.untyped_storage()._cdata: p.untyped_storage().nbytes() for p in params}
    return sum(sizes.values())


@dataclass
class UnitReply:
    """The reply about a unit, by the moments of its use.

    bytes: of the memory behind the parameters; begun: operations begun; whole: whether every parameter had
    its shape, and memory for it; shard: whether it is a parameter, and is trained; kept: bytes of a view that
    was made before a free(), after it and after the next gather(); left: of each reduce(), how many
    parameters still have a gradient.
    """

    bytes: dict[str, Count] = field(default_factory=dict)
    begun: dict[str, Count] = field(default_factory=dict)
    whole: dict[str, bool] = field(default_factory=dict)
    shard: tuple[bool, bool] = (False, False)
    kept: list[Count] = field(default_factory=list)
    left: list[Count] = field(default_factory=list)


@dataclass(frozen=True)
class UnitInstructions(Instructions):
    """params: how many parameters there are; trained: whether they are; graph: whether a product is kept over
    a free(), as autograd keeps it; group: which of the case's groups is passed as group=.
    """

    params: int
    trained: bool
    graph: bool
    group: int | None = None
    kwargs: dict[str, Any] = field(default_factory=dict)


class Driven:
    """A unit, its parameters, and the reply about them."""

    def __init__(self, made: Callable, tensors: dict, groups: list, instructions: UnitInstructions):
        count, self.tensors = instructions.params, tensors
        self.params = [frozen.Parameter(tensors[f"p{k}"].clone()) for k in range(count)]
        for p in self.params:
            p.requires_grad_(instructions.trained)
        self.shapes = [tuple(p.shape) for p in self.params]
        self.values = UnitReply()
        self.outputs: dict[str, Any] = {}
        self.unit = made(list(self.params), **keywords(instructions, groups))
        self.look("made")

    def look(self, when: str) -> None:
        """Note the memory behind the parameters, and how many operations were begun."""
        self.values.bytes[when] = storages(self.params)
        self.values.begun[when] = watching.begun_and_waited()[0]

    def whole(self, when: str) -> bool:
        """Every parameter has its shape and memory for it."""
        there = all(
            tuple(p.shape) == shape and p.untyped_storage().nbytes() >= p.nbytes
            for p, shape in zip(self.params, self.shapes, strict=True)
        )
        self.values.whole[when] = there
        return there

    def gathered(self, when: str) -> None:
        """gather(), and the parameters' values then; zeros if they have no memory."""
        self.unit.gather()
        self.look(when)
        there = self.whole(when)
        for k, (p, shape) in enumerate(zip(self.params, self.shapes, strict=True)):
            kept = (
                frozen.clone(frozen.detach(p))
                if there
                else frozen.zeros(shape, dtype=self.tensors[f"p{k}"].dtype, device=p.device)
            )
            self.outputs[f"{when}.{k}"] = kept

    def reduced(self, number: int) -> None:
        """Gradients arrive, reduce(): the shard's gradient, and how many parameters still have one.

        Zeros where the parameters have not their shapes, as no gradient fits then, and where there is none.
        """
        if not self.values.whole["second"]:
            self.outputs[f"mean.{number}"] = frozen.zeros_like(frozen.detach(self.unit.shard))
            return
        for k, p in enumerate(self.params):
            gradient = self.tensors.get(f"g{number}.{k}")
            if gradient is not None:
                p.grad = gradient.clone() if p.grad is None else p.grad + gradient
        self.unit.reduce()
        self.look(f"reduced {number}")
        self.values.left.append(sum(p.grad is not None for p in self.params))
        grad = self.unit.shard.grad
        nothing = frozen.zeros_like(frozen.detach(self.unit.shard))
        self.outputs[f"mean.{number}"] = nothing if grad is None else frozen.clone(frozen.detach(grad))


def warm_up(instructions: UnitInstructions | TrainingInstructions) -> None:
    """Of `module`, as in `rank.training`; a unit's memory is measured elsewhere (`held`)."""
    if isinstance(instructions, TrainingInstructions):
        training.warm_up(instructions)


def unit(
    objects: list, tensors: dict, groups: list, instructions: UnitInstructions
) -> tuple[UnitReply, dict[str, Any]]:
    """A unit is made, gathered twice, freed; its shard changes; it is gathered, reduced twice, freed."""
    driven = Driven(objects[0], tensors, groups, instructions)
    made = driven.unit
    driven.outputs["shard"] = frozen.clone(frozen.detach(made.shard))
    driven.values.shard = isinstance(made.shard, frozen.Parameter), bool(made.shard.requires_grad)
    driven.gathered("first")
    made.gather()
    driven.look("again")
    kept = product = None
    if instructions.graph:
        weight = driven.params[0]
        kept = frozen.detach(weight)
        product = _tanh(tensors["x"] @ weight).sum() if driven.values.whole["first"] else None
    made.free()
    driven.look("freed")
    kept_bytes = [] if kept is None else [kept.untyped_storage().nbytes()]
    with frozen.no_grad():
        made.shard.copy_(2 * made.shard)
    driven.gathered("second")
    if kept is not None:
        kept_bytes.append(kept.untyped_storage().nbytes())
        back = None
        if product is not None and kept_bytes[1] >= kept.nbytes:
            product.backward()
            back = driven.params[0].grad
        nothing = frozen.zeros(driven.shapes[0], dtype=tensors["p0"].dtype, device=kept.device)
        driven.outputs["back"] = nothing if back is None else frozen.clone(frozen.detach(back))
    driven.values.kept = kept_bytes
    if instructions.trained:
        for p in driven.params:
            p.grad = None  # that of the product
        driven.reduced(0)
        driven.reduced(1)
    made.free()
    driven.look("end")
    return driven.values, driven.outputs


# ---- a module


class Wrapped:
    """A sharded module in training, and the faults of its full_state_dict()."""

    def __init__(self, session: Session, made: Any):
        self.session, self.made = session, made
        self.like = {name: (tuple(p.shape), p.dtype) for name, p in session.named.items()}
        self.fault: tuple[str, str] | None = None
        self.ran, self.left = False, 0

    def whole(self) -> list[tuple[str, torch.Tensor]]:
        """full_state_dict(), with zeros for tensors that cannot be read."""
        state = self.made.full_state_dict()
        entries = []
        for name, (shape, dtype) in self.like.items():
            entry = state.get(name) if isinstance(state, dict) else None
            kind = self.kind(entry, shape, dtype)
            if kind:
                self.fault = self.fault or (kind, name)
                entry = frozen.zeros(shape, dtype=dtype, device=device())
            entries.append((name, entry))
        return entries

    @staticmethod
    def kind(entry: Any, shape: tuple, dtype: torch.dtype) -> str:
        """The fault of an entry; "" if it has none."""
        if not isinstance(entry, frozen.Tensor):
            return "missing"
        if entry.untyped_storage().nbytes() < entry.nbytes:
            return "freed"
        return "" if (tuple(entry.shape), entry.dtype) == (shape, dtype) else "shape"

    def gradients_left(self) -> int:
        """Parameters of the module, its shards aside, that still have a gradient with elements."""
        shards = {id(p) for p in self.made.parameters()}
        held = [p for p in self.session.model.parameters() if id(p) not in shards]
        return sum(p.grad is not None and p.grad.numel() > 0 for p in held)

    def run(self, x: torch.Tensor) -> torch.Tensor:
        self.left = self.left or (self.gradients_left() if self.ran else 0)
        self.ran = True
        with noted(lambda: "That was in forward."):
            return self.made(x)

    def accumulate(self, step: int, run: Callable[[torch.Tensor], torch.Tensor]) -> None:
        with noted(self.in_backward):
            self.session.accumulate(step, run, None)

    def in_backward(self) -> str:
        more = f" {self.left} parameters had a .grad from an earlier backward." if self.left else ""
        return f"That was in backward.{more}"


@contextmanager
def noted(text: Callable[[], str]) -> Iterator[None]:
    """An error that says that memory was freed gets a note with this text, unless it has one."""
    try:
        yield
    except RuntimeError as error:
        if any(said in str(error) for said in FREED) and not getattr(error, "__notes__", None):
            error.add_note(text())
        raise


@dataclass
class ModuleReply(TrainingReply):
    """The reply about a training run, and more.

    elements: numbers that the module's parameters() have on this rank; state: the fault of full_state_dict(),
    (kind, name), or None; left: how many parameters still had a .grad when a later forward began.
    """

    elements: Count = 0
    state: tuple[str, str] | None = None
    left: Count = 0


def module(
    objects: list, tensors: dict, groups: list, instructions: TrainingInstructions
) -> tuple[ModuleReply, dict[str, Any]]:
    """A module that keeps a shard of each parameter: an optimizer over its parameters, full_state_dict()."""
    session = Session(instructions)
    wrapped = Wrapped(session, objects[0](session.model, **keywords(instructions, groups)))
    session.named = {}  # nothing here holds on to the whole parameters
    make, defaults = session.optimizer()
    optimizer = make([p for p in wrapped.made.parameters() if p.requires_grad], **defaults)
    session.started(wrapped.whole)
    outputs: dict[str, torch.Tensor] = {}

    def first_output(step: int, x: torch.Tensor) -> torch.Tensor:
        out = wrapped.run(x)
        outputs.setdefault(f"out.{step}", frozen.clone(frozen.detach(out)))
        return out

    steps = instructions.steps
    for step in range(len(steps)):
        wrapped.accumulate(step, lambda x, step=step: first_output(step, x))
        optimizer.step()
        optimizer.zero_grad()
        session.stepped(step, wrapped.whole)
    session.moment(training=False)
    values, kept = session.reply()
    x, _ = toys.batch(steps[0][0], session.dtype)
    first_output(len(steps), x.to(device()))
    elements = sum(p.numel() for p in wrapped.made.parameters())
    of_module = ModuleReply(**vars(values), elements=elements, state=wrapped.fault, left=wrapped.left)
    return of_module, kept | outputs
