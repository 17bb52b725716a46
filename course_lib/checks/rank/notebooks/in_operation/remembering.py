"""Recipe (see `harness`) that captures a small run, lets it go on, and restores it in another one.

The run is here, too: the judge makes the same steps to know what is to come.
"""

from __future__ import annotations

import copy
import io
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.checks.rank.harness import describe, plain
from course_lib.checks.wire import Instructions, Place
from course_lib.operation.run import Training

_describe, _plain, _save, _load, _copy = describe, plain, torch.save, torch.load, copy.deepcopy
_Training, _manual_seed, _get_state, _rand = Training, torch.manual_seed, torch.get_rng_state, torch.rand
_Generator = torch.Generator
ROWS, WIDTH = 6, 4
BEYOND = 2  # steps that the captured run makes before another one is restored
MORE = 3  # steps of the restored run
LARGEST = 1e300  # sent for a number that is not finite
LOOK_AFTER = "a look at the run after restore"
PLAIN_TYPES = (int, float, str, bytes, type(None), Tensor)
LONGEST = 40  # characters of an entry's name that go back


@dataclass
class Look:
    """A run's parts. moments: of each parameter, with the number of steps; drawn, own: the next number of the
    default generator, and of the run's own."""

    parameters: list[list[float]] = field(default_factory=list)
    buffers: list[list[float]] = field(default_factory=list)
    moments: list[list[float]] = field(default_factory=list)
    rate: float = 0.0
    scheduled: int = 0
    step: Any = 0
    drawn: float = 0.0
    own: float = 0.0


@dataclass
class RememberReply:
    """The reply about a script.

    is_none: whether capture returned None; kind: the type of a result which is not a dict. error: of
    `raising`, "capture" or "restore"; file: why torch.load could not read the state; misfit: an entry that
    is not plain data, and its type; restored: the run right after it; losses: of the steps after that.
    """

    is_none: bool = False
    kind: str = ""
    error: Place | None = None
    raising: str = ""
    file: Place | None = None
    misfit: str = ""
    restored: Look = field(default_factory=Look)
    losses: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class RememberScript:
    """One script.

    name     of the script
    seed     of the run that is captured; other: of the one in which it is restored
    before   steps until it is captured
    adam     whether the optimizer is AdamW, else SGD with momentum
    late     the state becomes a file after the run has gone on, and not before
    twice    the state is restored in two runs, one after the other; the second is looked at
    """

    name: str
    seed: int
    other: int
    before: int
    adam: bool = True
    late: bool = False
    twice: bool = False


@dataclass(frozen=True)
class RememberInstructions(Instructions):
    scripts: list[RememberScript]

    def parts(self) -> list[str]:
        return [script.name for script in self.scripts]


def made(seed: int, adam: bool = True) -> Training:
    """A run before its first step; it seeds the default generator, from which its dropout draws."""
    _manual_seed(seed)
    # No bias before the BatchNorm: its gradient would be rounding alone, which AdamW makes a step of.
    first = nn.Linear(WIDTH, 5, bias=False)
    layers = first, nn.BatchNorm1d(5), nn.Dropout(0.4), nn.Linear(5, 1)
    model = nn.Sequential(*layers).double()
    if adam:
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    own = _Generator().manual_seed(seed + 1)
    return _Training(model, optimizer, scheduler, generator=own)


def advance(run: Training) -> float:
    """A step: its rows are drawn from its number, noise from the run's generator."""
    rows = _Generator().manual_seed(run.step)
    x = torch.randn(ROWS, WIDTH, generator=rows, dtype=torch.float64)
    noise = torch.randn(ROWS, 1, generator=run.generator, dtype=torch.float64)
    loss = (run.model(x) - x.sum(1, keepdim=True) - 0.3 * noise).square().mean()
    run.optimizer.zero_grad()
    loss.backward()
    run.optimizer.step()
    run.scheduler.step()
    run.step += 1
    return finite(float(loss.detach()))


def look(run: Training) -> Look:
    """The parts of a run; no generator is moved."""
    moments = []
    for parameter in run.model.parameters():
        state = run.optimizer.state.get(parameter, {})
        named = [
            state[name] for name in ("step", "exp_avg", "exp_avg_sq", "momentum_buffer") if name in state
        ]
        moments.append([value for part in named for value in listed(part)])
    return Look(
        [listed(parameter) for parameter in run.model.parameters()],
        [listed(buffer) for buffer in run.model.buffers()],
        moments,
        finite(float(run.optimizer.param_groups[0]["lr"])),
        int(run.scheduler.last_epoch),
        _plain(run.step) if isinstance(run.step, int) else f"a {type(run.step).__name__}",
        next_of(_get_state()),
        next_of(run.generator.get_state()) if isinstance(run.generator, _Generator) else -1.0,
    )


def next_of(state: Tensor) -> float:
    """The number that a generator in this state draws next."""
    generator = _Generator()
    generator.set_state(state)
    return float(_rand((), generator=generator, dtype=torch.float64))


def listed(values: Any) -> list[float]:
    if not isinstance(values, Tensor):
        return [finite(float(values))] if isinstance(values, int | float) else []
    return [finite(float(value)) for value in values.detach().flatten()]


def finite(value: float) -> float:
    return value if math.isfinite(value) else LARGEST


def through_a_file(state: Any, reply: RememberReply) -> Any:
    """The state as torch.load reads it; one that cannot be a file is copied."""
    try:
        file = io.BytesIO()
        _save(state, file)
        file.seek(0)
        return _load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        reply.file = _describe(error)
        reply.misfit = misfit(state)
    try:
        return _copy(state)
    except Exception:
        return state


def misfit(state: Any) -> str:
    """The first entry of a dict that is neither plain data nor a collection, and its type."""
    for name, value in state.items() if type(state) is dict else ():
        if not isinstance(value, (*PLAIN_TYPES, dict, list, tuple)):
            return f"a value of type {type(value).__name__} in its entry {str(name)[:LONGEST]!r}"
    return ""


def able_to_go_on(run: Training, step: int) -> None:
    """A step or a generator of another type is a mistake in that alone. With a right one the run goes on."""
    if not isinstance(run.step, int):
        run.step = step
    if not isinstance(run.generator, _Generator):
        run.generator = _Generator()


def follow(script: RememberScript, capture: Any, restore: Any, reply: RememberReply) -> None:
    run = made(script.seed, script.adam)
    for _ in range(script.before):
        advance(run)
    reply.raising = "capture"
    state = capture(run)
    if state is None:
        reply.is_none = True
        return
    reply.kind = "" if isinstance(state, dict) else type(state).__name__
    if not script.late:
        state = through_a_file(state, reply)
    for _ in range(BEYOND):
        advance(run)
    if script.late:
        state = through_a_file(state, reply)
    elif not script.twice:
        reply.raising = "capture"
        capture(run)  # of the run as it is now; the state that is restored is still the first
    reply.raising = "restore"
    if script.twice:
        first = made(script.other + 1, script.adam)
        restore(first, state)
        able_to_go_on(first, script.before)
        for _ in range(MORE):
            advance(first)
    other = made(script.other, script.adam)
    restore(other, state)
    reply.raising = LOOK_AFTER
    reply.restored = look(other)
    able_to_go_on(other, script.before)
    reply.raising = "a step after restore"
    reply.losses = [advance(other) for _ in range(MORE)]
    reply.raising = ""


def scripts(
    objects: list, tensors: dict[str, torch.Tensor], groups: list, instructions: RememberInstructions
) -> tuple[dict[str, RememberReply], dict[str, Any]]:
    """Every script of the instructions, one after the other."""
    capture, restore = objects
    replies = {}
    for script in instructions.scripts:
        reply = replies[script.name] = RememberReply()
        try:
            follow(script, capture, restore, reply)
        except Exception as error:
            if isinstance(error, NotImplementedError) and not str(error) and reply.raising == "capture":
                raise
            reply.error = _describe(error)
    return replies, {}
