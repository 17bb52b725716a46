"""Recipe (see `harness`) that drives a `checkpoint(function, *args)`, beside the function without it.

instructions: runs, a list of

    name      of the run
    kind      one of KINDS, with its sizes
    seed      of its numbers
    measured  whether bytes and FLOPs are counted

The reply has a `Told` for each run: differences between the two, and no verdict. Every run draws random
numbers of its own between forward and backward, and after backward, as a caller's program does.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.checks.rank.backward import type_of
from course_lib.checks.rank.counting import Saved, alive
from course_lib.checks.rank.harness import describe
from course_lib.checks.rank.memory import Patience
from course_lib.checks.rank.peak import Peak
from course_lib.checks.wire import Count, Place
from course_lib.models import GPT, GPTConfig

_Tensor, _clone, _detach, _equal = torch.Tensor, torch.clone, torch.Tensor.detach, torch.equal
_seed, _rand, _arange, _tensor = torch.manual_seed, torch.rand, torch.arange, torch.tensor
_randn, _is_floating = torch.randn, torch.Tensor.is_floating_point
_autocast, _bfloat16, _stack = torch.autocast, torch.bfloat16, torch.stack
LARGEST = 1e300  # sent for a difference that is not finite
Checkpoint = Callable[..., Any]


@dataclass
class Told:
    """The reply about a run; "plain" is the run without a checkpoint.

    misfit: the outputs as text, if they do not have the agreed form; detached: whether the loss knows no
    graph; unlike: the largest difference of the outputs; missing: names of gradients that plain has; beside:
    names of those that it does not have; off: {name: largest difference} of gradients that are not equal to
    the bit, size: plain's largest element there, factor: plain's share in it; between, after: whether the
    caller drew plain's random numbers there; repeated: whether those after backward were those between once
    more; called: how often the function ran in forward and backward; kept, peak: bytes kept for backward, and
    the most alive in forward; flops: of products, forward and backward.
    """

    error: Place | None = None
    misfit: str = ""
    detached: bool = False
    unlike: float = 0.0
    missing: list[str] = field(default_factory=list)
    beside: list[str] = field(default_factory=list)
    off: dict[str, float] = field(default_factory=dict)
    size: dict[str, float] = field(default_factory=dict)
    factor: dict[str, float] = field(default_factory=dict)
    between: bool = True
    after: bool = True
    repeated: bool = False
    called: list[Count] = field(default_factory=list)
    kept: Count = 0
    peak: Count = 0
    flops: list[Count] = field(default_factory=list)


# ---- what is checkpointed


class Layers(nn.Module):
    """Two layers and a residual, with dropout."""

    def __init__(self, width: int, dropout: float = 0.0):
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.down(self.dropout(torch.tanh(self.up(x)))))


class Kind(nn.Module):
    """A model and its inputs. outputs: those of forward, of which the `used` first are in the loss."""

    used = 1
    within: Callable[[], AbstractContextManager] = nullcontext

    def __init__(self, rows: int, width: int):
        super().__init__()
        self.inputs = {"x": _randn(rows, width)}
        self.needs = ("x",)
        self.calls = 0

    def count(self, module: Callable[..., Any]) -> Callable[..., Any]:
        """The same function; each of its calls is counted."""

        def counted(*args: Any) -> Any:
            self.calls += 1
            return module(*args)

        return counted

    def run(self, checkpoint: Checkpoint, **inputs: Tensor) -> Any:
        raise NotImplementedError


class Block(Kind):
    def __init__(self, rows: int, width: int, dropout: float = 0.0, layers: int = 2):
        super().__init__(rows, width)
        self.layers = nn.ModuleList([Layers(width, dropout) for _ in range(layers)])

    def run(self, checkpoint: Checkpoint, **inputs: Tensor) -> Any:
        x = inputs["x"]
        for layer in self.layers:
            x = checkpoint(self.count(layer), x)
        return x


class First(Block):
    """The input needs no gradient, as a batch does."""

    def __init__(self, rows: int, width: int):
        super().__init__(rows, width)
        self.needs = ()


class Arguments(Kind):
    """Tensors with and without a gradient, whole numbers, a number and None."""

    def __init__(self, rows: int, width: int):
        super().__init__(rows, width)
        self.layer = nn.Linear(width, width)
        self.inputs |= {"scale": _randn(width), "fixed": _randn(rows, width)}
        self.inputs["order"] = _arange(rows).flip(0)
        self.needs = ("x", "scale")

    def run(self, checkpoint: Checkpoint, **inputs: Tensor) -> Any:
        def function(
            x: Tensor, order: Tensor, factor: float, mask: None, fixed: Tensor, scale: Tensor
        ) -> Any:
            assert mask is None
            return torch.tanh(self.layer(x)[order] * factor) * scale + fixed

        order, fixed, scale = inputs["order"], inputs["fixed"], inputs["scale"]
        return checkpoint(self.count(function), inputs["x"], order, 0.5, None, fixed, scale)


class Outputs(Kind):
    """Three outputs, of which the last is in no loss."""

    used = 2

    def __init__(self, rows: int, width: int):
        super().__init__(rows, width)
        self.layer = nn.Linear(width, width)

    def run(self, checkpoint: Checkpoint, **inputs: Tensor) -> Any:
        def function(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            y = self.layer(x)
            return torch.tanh(y), y.square(), y.exp()

        return checkpoint(self.count(function), inputs["x"])


class Autocast(Block):
    """Forward is in bfloat16 under autocast; backward is outside."""

    @staticmethod
    def within() -> AbstractContextManager:
        return _autocast("cpu", dtype=_bfloat16)


class Nested(Block):
    def run(self, checkpoint: Checkpoint, **inputs: Tensor) -> Any:
        def function(x: Tensor) -> Tensor:
            for layer in self.layers:
                x = checkpoint(layer, x)
            return x

        return checkpoint(self.count(function), inputs["x"])


class Twice(Block):
    """The same layers for x, and for the result; and one that has a gradient already."""

    def run(self, checkpoint: Checkpoint, **inputs: Tensor) -> Any:
        x = inputs["x"]
        for layer in (*self.layers, self.layers[0]):
            x = checkpoint(self.count(layer), x)
        return x


class Chain(Kind):
    """Blocks of the course's GPT, each checkpointed."""

    def __init__(self, rows: int, width: int, blocks: int):
        super().__init__(rows, width)
        self.blocks = GPT(GPTConfig(layers=blocks, heads=4, width=width)).blocks
        self.positions = _arange(rows)
        self.inputs["x"] = self.inputs["x"][None]

    def run(self, checkpoint: Checkpoint, **inputs: Tensor) -> Any:
        x = inputs["x"]
        for block in self.blocks:
            x = checkpoint(self.count(lambda x, block=block: block(x, self.positions)), x)
        return x


class Deep(Kind):
    """Many layers in one checkpoint."""

    def __init__(self, rows: int, width: int, blocks: int):
        super().__init__(rows, width)
        layers = [nn.Sequential(nn.Linear(width, width, bias=False), nn.Tanh()) for _ in range(blocks)]
        self.layers = nn.Sequential(*layers)

    def run(self, checkpoint: Checkpoint, **inputs: Tensor) -> Any:
        return checkpoint(self.count(self.layers), inputs["x"])


KINDS: dict[str, Callable[..., Kind]] = {
    "block": Block, "first": First, "arguments": Arguments, "outputs": Outputs, "autocast": Autocast,
    "nested": Nested, "twice": Twice, "chain": Chain, "deep": Deep,
}  # fmt: skip


# ---- a run


def plainly(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


@dataclass
class Step:
    """The tensors of one forward and backward."""

    outputs: list[Any] = field(default_factory=list)
    gradients: dict[str, Any] = field(default_factory=dict)
    between: Any = None
    after: Any = None


class Run:
    """One kind, with a checkpoint and without."""

    def __init__(self, checkpoint: Checkpoint, described: dict, patience: Patience):
        self.checkpoint, self.patience = checkpoint, patience
        self.name, self.seed, self.measured = (described[key] for key in ("name", "seed", "measured"))
        _seed(self.seed)
        self.model = KINDS[described["kind"]](**described["sizes"])
        self.reply = Told()

    def go(self) -> None:
        wanted = self.step(plainly, False)
        self.model.calls = 0
        step = self.step(self.checkpoint, self.measured)
        if not (self.reply.misfit or self.reply.detached):
            self.compare(step, wanted)

    def step(self, checkpoint: Checkpoint, measured: bool) -> Step:
        """Forward and backward: a loss of the outputs that are used, on top of a gradient that is there."""
        _seed(self.seed + 1)
        step, model = Step(), self.model
        inputs = {name: _clone(tensor) for name, tensor in model.inputs.items()}
        for name in model.needs:
            inputs[name].requires_grad_()
        leaves = dict(model.named_parameters()) | {name: inputs[name] for name in model.needs}
        for leaf in model.parameters():
            leaf.grad = torch.ones_like(leaf) if isinstance(model, Twice) else None
        known = [*inputs.values(), *model.parameters()]
        before = alive() if measured else {}
        peak = Peak(known, self.patience, f"{self.name}.peak")
        saved = Saved(model.parameters())
        with model.within(), saved if measured else nullcontext(), peak if measured else nullcontext():
            made = model.run(checkpoint, **inputs)
        step.outputs = list(made) if isinstance(made, list | tuple) else [made]
        if checkpoint is not plainly:
            self.reply.called = [model.calls]
        if measured:
            self.reply.peak, self.reply.flops = peak.highest, [peak.flops]
            self.reply.kept = self.patience.measured(
                f"{self.name}.kept", lambda: saved.nbytes + saved.beside(before, made)
            )
            peak.start_again()
        step.between = _rand(3)
        self.backward(step, peak if measured else nullcontext(), checkpoint)
        step.after = _rand(3)
        step.gradients = {name: leaf.grad for name, leaf in leaves.items()}
        if measured:
            self.reply.flops.append(peak.flops)
        return step

    def backward(self, step: Step, watched: Any, checkpoint: Checkpoint) -> None:
        tensors = [output for output in step.outputs if isinstance(output, _Tensor)]
        if len(tensors) != len(step.outputs) or len(tensors) != max(1, self.model_outputs()):
            self.reply.misfit = ", ".join(type_of(output) for output in step.outputs) or "nothing"
            return
        loss = _stack([output.float().square().sum() for output in tensors[: self.model.used]]).sum()
        if not loss.requires_grad:
            self.reply.detached = True
            return
        model = self.model
        model.calls = 0
        with watched:
            loss.backward()
        if checkpoint is not plainly:
            self.reply.called.append(model.calls)

    def model_outputs(self) -> int:
        return 3 if isinstance(self.model, Outputs) else 1

    def compare(self, step: Step, wanted: Step) -> None:
        reply = self.reply
        for ours, theirs in zip(step.outputs, wanted.outputs, strict=True):
            if (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
                reply.misfit = f"{type_of(ours)} instead of {type_of(theirs)}"
                return
            reply.unlike = max(reply.unlike, largest(ours, theirs))
        for name, theirs in wanted.gradients.items():
            ours = step.gradients[name]
            if theirs is None or ours is None:
                reply.missing += [name] if theirs is not None else []
                reply.beside += [name] if ours is not None else []
            elif not _equal(ours, theirs):
                reply.off[name] = largest(ours, theirs)
                reply.size[name] = float(theirs.abs().max())
                reply.factor[name] = share(ours, theirs)
        reply.between = _equal(step.between, wanted.between)
        reply.after = _equal(step.after, wanted.after)
        reply.repeated = _equal(step.after, step.between)


def largest(ours: Tensor, theirs: Tensor) -> float:
    off = float((_detach(ours).double() - _detach(theirs).double()).abs().max())
    return off if off < LARGEST else LARGEST


def share(ours: Tensor, theirs: Tensor) -> float:
    """How much of `theirs` is in `ours`: 2 if it was counted twice."""
    ours, theirs = _detach(ours).double(), _detach(theirs).double()
    value = float((ours * theirs).sum() / (theirs * theirs).sum().clamp(min=1e-300))
    return value if abs(value) < LARGEST else LARGEST


def checkpoints(
    objects: list, tensors: dict[str, torch.Tensor], groups: list, instructions: dict
) -> tuple[dict[str, Told], dict[str, Any]]:
    """Every run of the instructions, one after the other."""
    values: dict[str, Told] = {}
    patience = Patience(instructions["enough"])
    for described in instructions["runs"]:
        run = Run(objects[0], described, patience)
        try:
            run.go()
        except Exception as error:
            if isinstance(error, NotImplementedError) and not values and not str(error):
                raise
            run.reply.error = describe(error)
        values[described["name"]] = run.reply
    return values, {}
