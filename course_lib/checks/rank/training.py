"""Recipes (see `harness`) that train a toy model for a few steps with a student's class, and report on it.

The reply has the tensors "start.NAME", "grad.STEP.NAME",
"param.STEP.NAME", "end.NAME" (parameters after the last step), "buffer.NAME", with the parameters'
names in the model; and a `TrainingReply`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from course_lib.checks.rank import frozen, toys, watching
from course_lib.checks.wire import Count, Instructions
from course_lib.runtime.backend import device
from course_lib.runtime.moments import BASE, START

_optimizers = {name: getattr(torch.optim, name) for name in ("SGD", "Adam", "AdamW", "Adagrad")}

Whole = Callable[[], Iterable[tuple[str, torch.Tensor]]]


@dataclass
class TrainingReply:
    """The reply about a training run.

    passes: of each backward, see `watching.Watch`; begun: operations begun so far, after the model was
    wrapped, after each backward and each step (where memory is watched the rank is measured there, too, as
    "held.0" and so on); without: gradients that are None, zeros stand for them.
    """

    passes: list[list[watching.Pass]] = field(default_factory=list)
    begun: list[Count] = field(default_factory=list)
    without: list[str] = field(default_factory=list)


@dataclass
class OptimizerReply(TrainingReply):
    """The reply about a sharded optimizer, and more.

    left: how many parameters had a .grad after a backward, at most.
    """

    left: Count = 0


@dataclass(frozen=True)
class TrainingInstructions(Instructions):
    """A model, and the steps of its training.

    model        a description for `toys.build`; the same shapes on every rank, "seed" may differ
    optimizer    [name in torch.optim, keyword arguments]
    steps        a list of steps, each a list of microbatches: descriptions for `toys.batch`
    tell         which tensors go back: "start", "grads", "params", "end", "buffers"
    kwargs       keyword arguments of the student's class
    group        which of the case's groups is passed as group=; None: not passed
    once         whether an optimizer's parameters come as an iterator, as model.parameters() gives them
    no_sync      whether all microbatches of a step but the last run under the class's no_sync()
    memory       whether memory is watched (see `watching`)
    """

    model: dict[str, Any]
    optimizer: list[Any]
    steps: list[list[dict[str, Any]]]
    tell: list[str]
    kwargs: dict[str, Any] = field(default_factory=dict)
    group: int | None = None
    once: bool = False
    no_sync: bool = False
    memory: bool = False


class Session:
    """One model in training on this rank, and the reply about it."""

    def __init__(self, instructions: TrainingInstructions):
        self.instructions = instructions
        self.tell = set(instructions.tell)
        if instructions.memory:
            watching.measured(BASE)
        self.model = toys.build(instructions.model).to(device())
        self.named = dict(self.model.named_parameters())
        self.dtype = next(iter(self.named.values())).dtype
        self.watch = watching.Watch(self.model, instructions.memory)
        self.tensors: dict[str, torch.Tensor] = {}
        self.without: list[str] = []
        self.begun: list[int] = []

    def optimizer(self) -> tuple[type[torch.optim.Optimizer], dict]:
        name, defaults = self.instructions.optimizer
        return _optimizers[name], dict(defaults)

    def keep(self, what: str, tensors: Iterable[tuple[str, torch.Tensor | None]], like=None) -> None:
        for name, tensor in tensors:
            full = f"{what}.{name}"
            if tensor is None:
                self.without.append(full)
                tensor = frozen.zeros_like(self.named[name])
            self.tensors[full] = frozen.clone(frozen.detach(tensor))

    def moment(self, training: bool = True) -> None:
        """A backward or a step is over: note the memory, and how many operations were begun."""
        if self.instructions.memory:
            watching.settle()
        self.watch.held(len(self.begun), training)
        self.begun.append(watching.begun_and_waited()[0])

    def started(self, whole: Whole | None = None) -> None:
        """The model is wrapped. whole: gives the parameters by name; the model's own when left out."""
        self.moment()
        if "start" in self.tell:
            self.keep("start", (whole or self.named.items)())
        if "buffers" in self.tell:
            self.keep("buffer", self.model.named_buffers())

    def accumulate(
        self, step: int, run: Callable[[torch.Tensor], torch.Tensor], no_sync: Callable | None
    ) -> None:
        """Forward and backward over the microbatches of a step; the loss is the mean over all of them."""
        microbatches = self.instructions.steps[step]
        for number, described in enumerate(microbatches):
            last = number == len(microbatches) - 1
            quiet = no_sync() if no_sync is not None and not last else contextlib.nullcontext()
            x, y = (tensor.to(device()) for tensor in toys.batch(described, self.dtype))
            with quiet:
                loss = frozen.mse_loss(run(x), y) / len(microbatches)
                self.watch.backward_begins()
                loss.backward()
                del loss
        del x, y
        self.moment()

    def gradients(self, step: int) -> None:
        if "grads" in self.tell:
            kept = ((n, p.grad) for n, p in self.named.items() if p.requires_grad)
            self.keep(f"grad.{step}", kept)

    def stepped(self, step: int, whole: Whole | None = None) -> None:
        """A step is over. whole: as in `started`."""
        self.moment()
        last = step == len(self.instructions.steps) - 1
        kinds = ["end"] if "end" in self.tell and last else []
        kinds += [f"param.{step}"] if "params" in self.tell else []
        parameters = (whole or self.named.items)() if kinds else ()
        for kind in kinds:
            self.keep(kind, parameters)

    def reply(self) -> tuple[TrainingReply, dict[str, torch.Tensor]]:
        """The training is over: memory after it, beside the copies for the reply, is not a peak."""
        self.watch.memory = False
        return TrainingReply(self.watch.passes, self.begun, self.without), self.tensors


class Keywords(Protocol):
    """Instructions with keyword arguments, and perhaps a group."""

    @property
    def kwargs(self) -> dict[str, Any]: ...
    @property
    def group(self) -> int | None: ...


def keywords(instructions: Keywords, groups: list) -> dict[str, Any]:
    """The keyword arguments of the student's class."""
    group = {} if instructions.group is None else {"group": groups[instructions.group]}
    return {**instructions.kwargs, **group}


def warm_up(instructions: TrainingInstructions) -> None:
    """Memory that libraries allocate once, at their first use, must not count as the class's.

    The harness calls it before it reads the student's objects.
    """
    if not instructions.memory:
        return
    watching.give_back_at_once()
    # Over NCCL on the GPU: cuBLAS takes a workspace of 32 MB there for each thread that multiplies.
    # On the CPU: MKL takes buffers at the first product that is as large as those of the training.
    model = toys.build({"name": "plain", "width": 448, "seed": 0, "dtype": "float32"}).to(device())
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        model(torch.ones(128, 448, device=device())).sum().backward()
        optimizer.step()
    watching.settle(watching.WARM)
    del model, optimizer
    watching.measured(START)


def replicas(
    objects: list, tensors: dict, groups: list, instructions: TrainingInstructions
) -> tuple[TrainingReply, dict[str, Any]]:
    """A module around a module: forward, backward, finish_gradient_synchronization(), optimizer.step()."""
    session = Session(instructions)
    wrapped = objects[0](session.model, **keywords(instructions, groups))
    make, defaults = session.optimizer()
    optimizer = make([p for p in session.named.values() if p.requires_grad], **defaults)
    session.started()
    for step in range(len(instructions.steps)):
        optimizer.zero_grad()
        session.accumulate(step, wrapped, wrapped.no_sync if instructions.no_sync else None)
        wrapped.finish_gradient_synchronization()
        session.gradients(step)
        optimizer.step()
        session.stepped(step)
    return session.reply()


def sharded_optimizer(
    objects: list, tensors: dict, groups: list, instructions: TrainingInstructions
) -> tuple[OptimizerReply, dict[str, Any]]:
    """An optimizer of a whole model, frozen parameters too, that keeps a shard of the state."""
    session = Session(instructions)
    make, defaults = session.optimizer()
    every = list(session.named.values())
    params = iter(every) if instructions.once else every
    optimizer = objects[0](params, make, **defaults, **keywords(instructions, groups))
    session.started()
    left = 0
    for step in range(len(instructions.steps)):
        quiet = optimizer.no_sync if instructions.no_sync else None
        session.accumulate(step, session.model, quiet)
        left = max(left, sum(p.grad is not None for p in every))
        optimizer.step()
        optimizer.zero_grad()
        session.stepped(step)
    values, kept = session.reply()
    return OptimizerReply(**vars(values), left=left), kept
