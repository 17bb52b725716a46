"""Recipe (see `harness`) that kills a small run at given moments, and calls `train` again.

A kill is an exception that is none of Exception, raised once: by the step, by `batches`, or by the disk. The
next call finds the disk as it is at that moment. Everything that is called afterwards is noted,
since a process that is killed calls nothing.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from course_lib.checks.rank.harness import describe
from course_lib.checks.rank.notebooks.capstone.small_run import WIDTH, Part, batch, errors_of
from course_lib.checks.wire import Instructions, Place
from course_lib.operation.disk import Disk
from course_lib.operation.folder import Folder

_Disk, _Folder, _describe, _tensor, _float64 = Disk, Folder, describe, torch.tensor, torch.float64
_all_reduce, _broadcast, _barrier = dist.all_reduce, dist.broadcast_object_list, dist.barrier
_make_folder, _remove_folder = tempfile.mkdtemp, shutil.rmtree
MOST = 600  # events of a call
LARGEST = 1e300  # sent for a loss that is not a finite number
NOTHING, BATCH, STEP, DISK = "", "batch", "step", "disk"  # the place where a call is killed

Event = tuple[str, int]  # such as ("batch", 3); the number is 0 where there is none


class Killed(BaseException):
    """The process is killed here."""


@dataclass
class CallReply:
    """The reply about a call of `train`.

    events: "made", "held", "looked" (at the disk), "read" (the first time), "batch", "stepped", "saved" (with
    the number of steps), "killed", in their order; after: of them those after the kill. losses: of a list;
    kind: the type of another result. returned: whether it returned at all.
    """

    events: list[Event] = field(default_factory=list)
    after: list[Event] = field(default_factory=list)
    losses: list[float] | None = None
    kind: str = ""
    returned: bool = False
    error: Place | None = None


@dataclass
class LifeReply:
    """The replies about the calls on one disk."""

    calls: list[CallReply] = field(default_factory=list)


@dataclass
class SurvivingReply:
    """The lives of a script: one, or one for each operation of the disk."""

    lives: list[LifeReply] = field(default_factory=list)

    def complete_as(self, name: str, instructions: SurvivingInstructions) -> bool:
        """Whether there is a life, and in each life a reply about every call of the script."""
        calls = next(len(script.calls) for script in instructions.scripts if script.name == name)
        return bool(self.lives) and all(len(life.calls) == calls for life in self.lives)


@dataclass(frozen=True)
class CallScript:
    """One call. dies: of what, and in which batch, which step, or which operation on the disk."""

    steps: int
    every: int
    dies: Event = (NOTHING, 0)


@dataclass(frozen=True)
class SurvivingScript:
    """Calls on one disk.

    name      of the script
    seed      of the run
    calls     one after the other
    replaces  whether a step replaces its tensors, instead of changing them
    sweep     the first call is killed in its first operation on the disk, and all is done once more with its
              second one, and so on, until it is killed no more
    """

    name: str
    seed: int
    calls: list[CallScript]
    replaces: bool = False
    sweep: bool = False


@dataclass(frozen=True)
class SurvivingInstructions(Instructions):
    scripts: list[SurvivingScript]
    rank: int = 0
    ranks: int = 1

    def parts(self) -> list[str]:
        return [script.name for script in self.scripts]


class Life:
    """One call: its events, and the kill."""

    def __init__(self, dies: Event):
        self.dies, self.dead, self.reply = dies, False, CallReply()
        self.on_death: Callable[[], None] = lambda: None

    def note(self, what: str, number: int = 0) -> None:
        if len(self.reply.events) == MOST:
            raise Killed  # a loop that ends nowhere else
        self.reply.events.append((what, number))
        if self.dead:
            self.reply.after.append((what, number))

    def may_die(self, what: str, number: int) -> bool:
        """Whether the kill comes here; it is for the caller to raise it, at the right moment."""
        if self.dead or self.dies != (what, number):
            return False
        self.note("killed")
        self.dead = True
        return True

    def killed(self) -> Killed:
        self.on_death()
        return Killed()


class Watched:
    """A disk whose operations are noted, and of which one may be the last."""

    def __init__(self, disk: Any, life: Life):
        self.disk, self.life, self.done, self.has_read = disk, life, 0, False

    def write(self, name: str, data: bytes) -> None:
        if self.dies():
            self.disk.write(name, bytes(data)[: len(data) // 2])
            raise self.life.killed()
        self.disk.write(name, data)

    def sync(self, name: str) -> None:
        self.alive()
        self.disk.sync(name)

    def rename(self, old: str, new: str) -> None:
        self.alive()
        self.disk.rename(old, new)
        number = new.removeprefix("step-")
        if number != new and number.isdecimal():
            self.life.note("saved", int(number))

    def remove(self, name: str) -> None:
        self.alive()
        self.disk.remove(name)

    def sync_folder(self) -> None:
        self.alive()
        self.disk.sync_folder()

    def read(self, name: str) -> bytes:
        if not self.has_read:
            self.has_read = True
            self.life.note("read")
        return self.disk.read(name)

    def names(self) -> list[str]:
        self.life.note("looked")
        return self.disk.names()

    def dies(self) -> bool:
        self.done += 1
        return self.life.may_die(DISK, self.done)

    def alive(self) -> None:
        if self.dies():
            raise self.life.killed()


class Making:
    """`make` and `batches` of a call."""

    def __init__(self, script: SurvivingScript, instructions: SurvivingInstructions, life: Life):
        self.script, self.rank, self.ranks, self.life = script, instructions.rank, instructions.ranks, life
        self.last = 0  # number of the batch that was asked for

    def batches(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.life.may_die(BATCH, number):
            raise self.life.killed()
        self.life.note("batch", number)
        self.last = number
        inputs, targets = batch(self.script.seed, number, self.ranks)
        return _tensor(inputs, dtype=_float64), _tensor(targets, dtype=_float64)

    def make(self) -> tuple[Callable[..., float], Callable[[], dict]]:
        self.life.note("made")
        start = Part(self.script.seed, self.rank)
        state = {name: _tensor(getattr(start, name), dtype=_float64) for name in ("weight", "momentum")}

        def step(inputs: torch.Tensor, targets: torch.Tensor) -> float:
            part, rows = Part(0, 0), inputs.tolist()
            part.weight, part.momentum = state["weight"].tolist(), state["momentum"].tolist()
            terms = _tensor(part.terms(rows, self.rank), dtype=_float64)
            if self.ranks > 1:
                _all_reduce(terms)
            loss, errors = errors_of(terms.tolist(), targets.tolist())
            part.update(rows, errors, self.rank)
            for name in state:
                new = _tensor(getattr(part, name), dtype=_float64)
                if self.script.replaces:
                    state[name] = new
                else:
                    state[name].copy_(new)
            if self.life.may_die(STEP, self.last):
                raise self.life.killed()  # after the update, before the loss is returned
            self.life.note("stepped")
            return loss

        def held() -> dict:
            self.life.note("held")
            box = [(self.rank * WIDTH, (self.rank + 1) * WIDTH)]
            return {name: (tensor, box) for name, tensor in state.items()}

        return step, held


def call(train: Any, making: Making, script: CallScript, disk: Any) -> CallReply:
    reply = making.life.reply
    watched = Watched(disk, making.life)
    try:
        losses = train(making.make, making.batches, script.steps, watched, script.every)
        reply.returned = True
        if isinstance(losses, list | tuple) and all(type(loss) in (int, float) for loss in losses):
            reply.losses = [float(loss) if abs(loss) < LARGEST else LARGEST for loss in losses[:MOST]]
        else:
            reply.kind = type(losses).__name__
    except Exception as error:
        if making.ranks > 1 or isinstance(error, NotImplementedError):
            raise  # the other ranks may wait for this one
        reply.error = _describe(error)
    except Killed:
        pass
    return reply


def in_memory(
    train: Any, instructions: SurvivingInstructions, script: SurvivingScript, last: int
) -> LifeReply:
    """The calls of a life on a disk in memory. last: the operation that kills the first call, 0 for none."""
    life_reply, files = LifeReply(), {}
    for number, call_script in enumerate(script.calls):
        disk = _Disk(files)
        life = Life((DISK, last) if last and number == 0 else call_script.dies)
        kept: list[dict[str, bytes]] = []
        life.on_death = lambda disk=disk, kept=kept: kept.append(contents(disk))
        life_reply.calls.append(call(train, Making(script, instructions, life), call_script, disk))
        files = kept[0] if kept else contents(disk)
    return life_reply


def contents(disk: Disk) -> dict[str, bytes]:
    """The files in the cache, which outlive a process."""
    return {name: disk.read(name) for name in disk.names()}


def in_a_folder(train: Any, instructions: SurvivingInstructions, script: SurvivingScript) -> LifeReply:
    """The calls of a life in a folder that all ranks see."""
    shared = [_make_folder() if instructions.rank == 0 else ""]
    _broadcast(shared, src=0)
    reply = LifeReply()
    for call_script in script.calls:
        making = Making(script, instructions, Life(call_script.dies))
        reply.calls.append(call(train, making, call_script, _Folder(shared[0])))
        _barrier()
    if instructions.rank == 0:
        _remove_folder(shared[0], ignore_errors=True)
    return reply


def lived(train: Any, instructions: SurvivingInstructions, script: SurvivingScript) -> SurvivingReply:
    if instructions.ranks > 1:
        return SurvivingReply([in_a_folder(train, instructions, script)])
    if not script.sweep:
        return SurvivingReply([in_memory(train, instructions, script, 0)])
    lives: list[LifeReply] = []
    for last in range(1, MOST):
        life = in_memory(train, instructions, script, last)
        lives.append(life)
        if life.calls[0].returned or life.calls[0].error is not None:
            break
    return SurvivingReply(lives)


def lives(
    objects: list, tensors: dict, groups: list, instructions: SurvivingInstructions
) -> tuple[dict[str, SurvivingReply], dict[str, Any]]:
    """Every script, one after the other."""
    return {script.name: lived(objects[0], instructions, script) for script in instructions.scripts}, {}
