"""Recipe (see `harness`) that drives a class which counts the bytes that autograd keeps for backward.

The reply has a `MeterReply` for each run. The memory of a forward is that of PyTorch's operations in it,
whichever part of the code holds it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.checks.rank import frozen
from course_lib.checks.rank.harness import describe, plain
from course_lib.checks.rank.peak import Peak
from course_lib.checks.wire import Count, Instructions, Place
from course_lib.models import GPT, GPTConfig

_collect = gc.collect


@dataclass
class MeterReply:
    """The reply about a run.

    total, by_module: the object's after the block, as plain data; later: its total after one more
    forward outside; copied: bytes that forward has at most beside those of a forward without it; unpacked: of
    backward; held: bytes of forward's operations that are there after backward; left: hooks that the modules
    have after the block, and had not before; entered: whether `with ... as` gives the object itself; passed:
    whether an error inside came out of the block.
    """

    error: Place | None = None
    total: Any = None
    by_module: Any = None
    later: Any = None
    copied: Count = 0
    unpacked: Count = 0
    held: Count = 0
    left: int = 0
    entered: bool = False
    passed: bool = False


@dataclass(frozen=True)
class MeterRun:
    """One run.

    name      of the run
    model     {"kind": one of MODELS, sizes}
    rows      of the input
    seed      of the input's numbers, and of the weights
    passes    how many forwards are inside; all but the last are given up before the next begins
    fails     whether an error is raised inside, after the last forward
    returned  whether the gradients of the input and of all parameters go back, as "name.0", "name.1", ...
    """

    name: str
    model: dict[str, Any]
    rows: int
    seed: int
    passes: int
    fails: bool
    returned: bool


@dataclass(frozen=True)
class MeterInstructions(Instructions):
    runs: list[MeterRun]

    def parts(self) -> list[str]:
        return [run.name for run in self.runs]


class Views(nn.Module):
    """Two parts of one result are multiplied, and the product goes through a layer."""

    def __init__(self, width: int, part: int, end: int):
        super().__init__()
        self.part = part
        self.wide = nn.Linear(width, 4 * part, bias=False)
        self.tail = nn.Linear(part, end, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.wide(x)
        return self.tail(y[:, : self.part] * y[:, self.part : 2 * self.part])


class Own(nn.Module):
    """A parameter that is used transposed, a buffer, and a layer."""

    def __init__(self, width: int, part: int, end: int):
        super().__init__()
        self.scale: Tensor
        self.weight = nn.Parameter(torch.ones(part, width) / width)
        self.register_buffer("scale", torch.ones(part))
        self.tail = nn.Linear(part, end, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.tail(x @ self.weight.t() * self.scale)


class GPTBlock(nn.Module):
    """A block of the course's GPT, whose input is a matrix of one sequence."""

    def __init__(self, heads: int, width: int):
        super().__init__()
        self.block = GPT(GPTConfig(layers=1, heads=heads, width=width)).blocks[0]

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x[None], frozen.arange(len(x)))


def layers(width: int, part: int, end: int) -> nn.Module:
    inner = nn.Sequential(nn.Linear(part, end), nn.Sigmoid())
    return nn.Sequential(nn.Linear(width, part), nn.Tanh(), inner)


def repeated(width: int, part: int, end: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, part), nn.GELU(), nn.Linear(part, end))


MODELS: dict[str, Callable[..., nn.Module]] = {
    "layers": layers, "views": Views, "own": Own, "repeated": repeated, "block": GPTBlock,
}  # fmt: skip


class Stopped(Exception):
    """Raised inside the block."""


class MeteredModel:
    """One object of the student's, and a model."""

    def __init__(self, made: Callable[[nn.Module], Any], run: MeterRun):
        self.made, self.passes, self.fails = made, run.passes, run.fails
        self.model, self.x = model_and_input(run)
        leaves = leaves_of(self.model, self.x) if run.returned else []
        self.gradients = {f"{run.name}.{k}": frozen.zeros_like(leaf) for k, leaf in enumerate(leaves)}
        self.values = MeterReply()

    def go(self) -> None:
        plain_peak, y = self.forward()
        plain_back, _ = self.backward(y)
        del y
        hooks = hooks_of(self.model)
        meter = self.made(self.model)
        peak = self.inside(meter)
        self.values.left = hooks_of(self.model) - hooks
        self.values.total, self.values.by_module = plain(meter.total), plain(meter.by_module)
        if peak is not None:
            watched, y = peak
            self.values.copied = max(0, watched.highest - plain_peak.highest)
            back, gradients = self.backward(y)
            self.values.unpacked = max(0, back.highest - plain_back.highest)
            self.gradients = dict(zip(self.gradients, gradients, strict=False))
            del y, peak, gradients
            _collect()
            self.values.held = watched.still_alive()
        self.model(self.x)
        self.values.later = plain(meter.total)

    def inside(self, meter: Any) -> tuple[Peak, Tensor] | None:
        """The last forward, watched; None if an error ended the block."""
        result = None
        try:
            with meter as entered:
                self.values.entered = entered is meter
                for _ in range(self.passes - 1):
                    self.model(self.x)
                result = self.forward()
                if self.fails:
                    raise Stopped
        except Stopped:
            self.values.passed = True
        return None if self.fails else result

    def forward(self) -> tuple[Peak, Tensor]:
        with Peak([self.x, *self.model.parameters(), *self.model.buffers()]) as peak:
            y = self.model(self.x)
        return peak, y

    def backward(self, y: Tensor) -> tuple[Peak, list[Tensor]]:
        """The gradients of the input and of all parameters, which have none afterwards."""
        leaves = leaves_of(self.model, self.x)
        with Peak([y, *leaves]) as peak:
            y.square().sum().backward()
        gradients = [leaf.grad for leaf in leaves if leaf.grad is not None]
        for leaf in leaves:
            leaf.grad = None
        return peak, gradients


def model_and_input(run: MeterRun) -> tuple[nn.Module, Tensor]:
    """Both are drawn from the run's seed."""
    sizes = dict(run.model)
    frozen.manual_seed(run.seed)
    model = MODELS[sizes.pop("kind")](**sizes)
    generator = frozen.Generator().manual_seed(run.seed)
    return model, frozen.randn(run.rows, sizes["width"], generator=generator).requires_grad_()


def leaves_of(model: nn.Module, x: Tensor) -> list[Tensor]:
    return [x, *model.parameters()]


def hooks_of(model: nn.Module) -> int:
    return sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules())


def meters(
    objects: list, tensors: dict[str, torch.Tensor], groups: list, instructions: MeterInstructions
) -> tuple[dict[str, MeterReply], dict[str, Any]]:
    """Every run of the instructions, one after the other."""
    values: dict[str, MeterReply] = {}
    outputs: dict[str, Any] = {}
    for described in instructions.runs:
        run = MeteredModel(objects[0], described)
        try:
            run.go()
        except Exception as error:
            if isinstance(error, NotImplementedError) and not values and not str(error):
                raise
            run.values.error = describe(error)
        values[described.name] = run.values
        outputs |= run.gradients
    return values, outputs
