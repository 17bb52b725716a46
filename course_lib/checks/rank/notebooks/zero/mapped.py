"""A recipe (see `harness`) that trains with an optimizer whose states are to lie in mapped files."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from course_lib.checks.rank import frozen, toys, training, watching
from course_lib.checks.rank.training import Session, TrainingInstructions, warm_up  # noqa: F401
from course_lib.checks.wire import Count
from course_lib.runtime.moments import ANONYMOUS, BASE

_pointer = torch.Tensor.data_ptr
_open, _read, _close = os.open, os.read, os.close


@dataclass
class MappedReply(training.TrainingReply):
    """The reply about a training run, and more for each step. outside: names of the states that lie in no
    file of the folder, of parameters by their number; states: how many tensors were looked at."""

    outside: list[list[str]] = field(default_factory=list)
    states: list[Count] = field(default_factory=list)


@dataclass(frozen=True)
class MappedInstructions(TrainingInstructions):
    """neighbour: whether another optimizer, made from the same folder, trains another model meanwhile."""

    neighbour: bool = False


def mapped_state(
    objects: list, tensors: dict, groups: list, instructions: MappedInstructions
) -> tuple[MappedReply, dict[str, Any]]:
    """`objects[0](optimizer_cls, folder)` is a class of optimizers; one of them trains the model.

    After each step the rank is measured as "anonymous".
    """
    folder = tempfile.mkdtemp()
    watching.measured(BASE)
    session = Session(replace(instructions, memory=False))  # moments of its own, below
    make, defaults = session.optimizer()
    optimizer = objects[0](make, folder)(list(session.named.values()), **defaults)
    other = Neighbour(objects[0](make, folder), defaults, instructions) if instructions.neighbour else None
    session.started()
    outside_after: list[list[str]] = []
    states_after: list[int] = []
    for step in range(len(instructions.steps)):
        session.accumulate(step, session.model, None)
        optimizer.step()
        if other is not None:
            other.step()
        optimizer.zero_grad()
        outside, count = states_outside(optimizer, folder)
        outside_after.append(outside)
        states_after.append(count)
        watching.measured(ANONYMOUS)
        session.stepped(step)  # keeps copies of parameters, which are not to be counted
    shutil.rmtree(folder, ignore_errors=True)
    values, kept = session.reply()
    return MappedReply(**vars(values), outside=outside_after, states=states_after), kept


class Neighbour:
    """Another model in training, with an optimizer of its own and other gradients."""

    def __init__(self, made: Any, defaults: dict, instructions: MappedInstructions):
        self.model = toys.build({**instructions.model, "seed": 1})
        self.optimizer = made(list(self.model.parameters()), **defaults)

    def step(self) -> None:
        for p in self.model.parameters():
            p.grad = torch.ones_like(p)
        self.optimizer.step()


def states_outside(optimizer: Any, folder: str) -> tuple[list[str], int]:
    """(names of states that are in no shared mapping of a file in `folder`, how many states there are)."""
    ranges, outside, count = mappings(folder), [], 0
    for number, state in enumerate(optimizer.state.values()):
        for name, value in state.items():
            if not isinstance(value, frozen.Tensor) or value.dim() == 0:
                continue
            count += 1
            first = _pointer(value)
            last = first + value.numel() * value.element_size()
            if not any(begin <= first and last <= end for begin, end in ranges):
                outside.append(f"{name} of parameter {number}")
    return outside, count


def mappings(folder: str) -> list[tuple[int, int]]:
    """The address ranges into which files of `folder` are mapped so that writes reach them."""
    ranges = []
    for line in text_of("/proc/self/maps").splitlines():
        addresses, flags, *_, path = [*line.split(maxsplit=5), ""][:6]
        if path.startswith(f"{folder}/") and flags.endswith("s"):
            begin, _, end = addresses.partition("-")
            ranges.append((int(begin, 16), int(end, 16)))
    return ranges


def text_of(path: str) -> str:
    fd = _open(path, os.O_RDONLY)
    try:
        parts = []
        while part := _read(fd, 1 << 16):
            parts.append(part)
    finally:
        _close(fd)
    return b"".join(parts).decode()
