"""Runs in the rank: trains with a module that gathers blocks ahead, notes its messages, and decides nothing.

The class has no method that gives whole parameters. So these are noted by the blocks' own layers when they
compute, in a forward without a graph. The reply has the tensors of `training`, and a `PrefetchedReply`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import MethodType
from typing import Any, Literal

import torch
from torch import nn

from course_lib.checks.rank import frozen, toys, watching
from course_lib.checks.rank.training import Session, TrainingInstructions, TrainingReply, keywords, warm_up  # noqa: F401
from course_lib.checks.wire import Count
from course_lib.ledger import rows
from course_lib.ledger.recorder import current_recorder
from course_lib.runtime.backend import device

FAILS = 1  # the block that raises, when the one behind it is on its way
MOST = 3 / 4  # of a block's bytes: two ranks' shards have half of them


class Failure(Exception):
    """Raised inside a block."""


@dataclass(frozen=True)
class Mark:
    """A block begins to compute, forward ("F") or backward ("B").

    begun: operations of the rank by then; open: those of them that it had not waited for; whole: blocks with
    memory behind their parameters.
    """

    kind: Literal["F", "B"]
    block: Count
    begun: Count
    open: list[Count]
    whole: list[Count]


@dataclass
class PrefetchedReply(TrainingReply):
    """The reply about a training run, and more.

    marks: of each step; after: operations that were open after each step's backward. left, failed, ended:
    blocks with memory behind their parameters, after each forward without a graph, after each that raised an
    error, after each step's backward; the number of blocks stands for the root. on_their_way: operations that
    were open after each forward that raised an error. swallowed: how many errors of a block the module's
    forward did not raise. elements: of all that parameters() gives; own: how many of these tensors are the
    model's own; twice: how many of them it gave before; with_gradient: how many had a gradient after the
    first backward.
    """

    marks: list[list[Mark]] = field(default_factory=list)
    after: list[list[Count]] = field(default_factory=list)
    left: list[list[Count]] = field(default_factory=list)
    failed: list[list[Count]] = field(default_factory=list)
    ended: list[list[Count]] = field(default_factory=list)
    on_their_way: list[list[Count]] = field(default_factory=list)
    swallowed: Count = 0
    elements: Count = 0
    own: Count = 0
    twice: Count = 0
    with_gradient: Count = 0


class _Arriving(torch.autograd.Function):
    """Identity; in backward it calls a function when the gradient of a block's output is there."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, call: Callable[[], None]) -> torch.Tensor:
        ctx.call = call
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple:
        ctx.call()
        return grads[0], None


class Looking:
    """Marks that a model's blocks and layers make inside their forward.

    So they are made while the weights are whole, whether the student's class adds hooks or wraps forward.
    """

    def __init__(self, model: toys.Toy):
        self.blocks = list(model.blocks)
        owners: dict[nn.Parameter, set[nn.Module]] = {p: set() for p in model.parameters()}
        for block in self.blocks:
            for p in block.parameters():
                owners[p].add(block)
        self.params = [[p for p in owners if owners[p] == {block}] for block in self.blocks]
        self.params.append([p for p in owners if len(owners[p]) != 1])  # the root's
        self.sizes = [sum(p.nbytes for p in params) for params in self.params]
        self.marks: list[list[Mark]] = []
        self.names = {p: name for name, p in model.named_parameters()}
        self.capturing: dict[str, torch.Tensor] | None = None
        self.failing = False
        for number, block in enumerate(self.blocks):
            first = next(inner for inner in block.modules() if not list(inner.children()))
            first.register_forward_pre_hook(lambda *_, k=number: self.computes(k))
        for inner in model.modules():
            if inner._parameters or inner in self.blocks:
                inner.forward = MethodType(self.runs, inner)  # a method, since deepcopy knows methods

    def runs(self, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """The module's forward, and the marks at its end."""
        out = type(module).forward(module, *args, **kwargs)
        self.capture(module)
        for number, block in enumerate(self.blocks):
            if block is module:
                out = self.leaves(number, out)
        return out

    def computes(self, block: int) -> None:
        if self.failing and block == FAILS:
            raise Failure
        self.mark("F", block)

    def leaves(self, block: int, out: Any) -> Any:
        if not out.requires_grad:
            return out
        return _Arriving.apply(out, lambda: self.mark("B", block))

    def mark(self, kind: Literal["F", "B"], block: int) -> None:
        if self.marks and self.capturing is None and not self.failing:
            begun = watching.begun_and_waited()[0]
            whole = [k for k in self.whole() if k < len(self.blocks)]
            self.marks[-1].append(Mark(kind, block, begun, still_open(), whole))

    def whole(self) -> list[int]:
        """Blocks with memory behind their parameters, for most of their bytes; the root comes after them."""
        return [
            k
            for k, (params, size) in enumerate(zip(self.params, self.sizes, strict=True))
            if params and behind(params) >= MOST * size
        ]

    def capture(self, module: nn.Module) -> None:
        if self.capturing is not None:
            for p in module._parameters.values():
                if p is not None:
                    self.capturing[self.names[p]] = frozen.clone(frozen.detach(p))


def behind(params: list[nn.Parameter]) -> int:
    """Bytes of memory behind the parameters, of which several may be in one row."""
    storages = [p.untyped_storage() for p in params]
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())


def still_open() -> list[int]:
    """This rank's operations that it has not waited for."""
    recorder = current_recorder()
    log, size, count = recorder.log.rows.map, rows.ROW.size, recorder.state.rows
    return [k for k in range(count) if not log[k * size + rows.FLAGS_AT] & rows.WAITED]


@dataclass(frozen=True)
class PrefetchedInstructions(TrainingInstructions):
    """A training, and more.

    raising      steps with a forward in which block 1 raises an error: once before the step's forwards, and
                 once between its backward and the optimizer's step, after which gathered weights are old
    evaluating   steps with a forward without a graph between its backward and the optimizer's step
    together     whether the forwards of a step's microbatches all come before one backward
    """

    raising: list[int] = field(default_factory=list)
    evaluating: list[int] = field(default_factory=list)
    together: bool = False


class Training:
    """A student's module in training."""

    def __init__(self, session: Session, make: Callable, instructions: PrefetchedInstructions, groups: list):
        self.session, self.instructions = session, instructions
        self.looking = Looking(session.model)
        self.shards: list[torch.Tensor] = []  # that the optimizer steps on
        self.made = make(session.model, **keywords(instructions, groups))
        self.like = {name: (tuple(p.shape), p.dtype) for name, p in session.named.items()}
        shards, own = list(self.made.parameters()), set(session.named.values())
        self.values = PrefetchedReply(
            elements=sum(p.numel() for p in shards),
            own=sum(p in own for p in shards),
            twice=len(shards) - len(set(map(id, shards))),
        )

    def whole(self) -> list[tuple[str, torch.Tensor]]:
        """The parameters as a forward without a graph uses them."""
        captured = self.evaluate()
        zeros = {name: torch.zeros(shape, dtype=dtype) for name, (shape, dtype) in self.like.items()}
        return list((zeros | captured).items())

    def evaluate(self) -> dict[str, torch.Tensor]:
        """A forward without a graph, and the parameters that it used.

        The copies are the check's, so that this forward is not measured.
        """
        watch = self.session.watch
        memory, watch.memory = watch.memory, False
        self.looking.capturing = {}
        described = self.instructions.steps[0][0]
        x, _ = toys.batch(described, self.session.dtype)
        with frozen.no_grad():
            self.made(x.to(device()))
        captured, self.looking.capturing = self.looking.capturing, None
        watch.memory = memory
        self.values.left.append(self.looking.whole())
        return captured

    def fail(self, step: int) -> None:
        """A forward in which a block raises an error."""
        self.looking.failing = True
        x, _ = toys.batch(self.instructions.steps[step][0], self.session.dtype)
        try:
            self.made(x.to(device()))
            self.values.swallowed += 1
        except Failure:
            pass
        finally:
            self.looking.failing = False
        self.values.failed.append(self.looking.whole())
        self.values.on_their_way.append(still_open())

    def accumulate(self, step: int) -> None:
        self.looking.marks.append([])
        if not self.instructions.together:
            self.session.accumulate(step, self.made, None)
        else:
            losses = []
            microbatches = self.instructions.steps[step]
            for described in microbatches:
                x, y = (t.to(device()) for t in toys.batch(described, self.session.dtype))
                losses.append(frozen.mse_loss(self.made(x), y) / len(microbatches))
            sum(losses).backward()  # type: ignore[union-attr]
            self.session.moment()
        if not step:
            self.values.with_gradient = sum(p.grad is not None for p in self.shards)
        self.values.after.append(still_open())
        self.values.ended.append(self.looking.whole())


def module(
    objects: list, tensors: dict, groups: list, instructions: PrefetchedInstructions
) -> tuple[PrefetchedReply, dict[str, Any]]:
    """A module whose parameters() are shards, and an optimizer of these."""
    warnings.filterwarnings("ignore", module="course_lib")  # a student's own are shown
    session = Session(instructions)
    training = Training(session, objects[0], instructions, groups)
    named, session.named = session.named, {}  # shapes alone are needed
    shards = [p for p in training.made.parameters() if p.requires_grad]
    make, defaults = session.optimizer()
    optimizer = make(shards, **defaults)
    training.shards = shards
    del named, shards
    session.started(training.whole)
    for step in range(len(instructions.steps)):
        raises = step in instructions.raising
        if raises:
            training.fail(step)
        training.accumulate(step)
        if raises:
            training.fail(step)
        if step in instructions.evaluating:
            training.evaluate()
        optimizer.step()
        optimizer.zero_grad()
        session.stepped(step, training.whole)
    reply, kept = session.reply()
    return replace(training.values, **vars(reply), marks=training.looking.marks), kept
