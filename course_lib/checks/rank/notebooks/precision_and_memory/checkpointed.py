"""The blocks that are checkpointed in notebook 09, and a step of them: a forward and a backward.

The rank makes the step with the student's checkpoint, and the judge without one. Both draw the same numbers
from a seed, so the tensors of the two steps are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.checks.rank import frozen
from course_lib.models import GPT, GPTConfig

_ones_like = torch.ones_like
_randint = torch.randint
_autocast, _float16 = torch.autocast, torch.float16
_fork, _with_graph = torch.random.fork_rng, torch.enable_grad
Checkpoint = Callable[..., Any]


class Layers(nn.Module):
    """Two layers and a residual, with dropout."""

    def __init__(self, width: int, dropout: float = 0.0):
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(self.down(self.dropout(torch.tanh(self.up(x)))))


class Kind(nn.Module):
    """A model and its inputs. outputs: how many forward has, of which the `used` first are in the loss."""

    outputs = used = 1
    within: Callable[[], AbstractContextManager] = nullcontext

    def __init__(self, rows: int, width: int):
        super().__init__()
        self.inputs = {"x": frozen.randn(rows, width)}
        self.needs = ("x",)

    def run(self, checkpoint: Checkpoint, **inputs: Tensor) -> Any:
        raise NotImplementedError


class Block(Kind):
    def __init__(self, rows: int, width: int, dropout: float = 0.0, layers: int = 2):
        super().__init__(rows, width)
        self.layers = nn.ModuleList([Layers(width, dropout) for _ in range(layers)])

    def run(self, checkpoint: Checkpoint, **inputs: Tensor) -> Any:
        x = inputs["x"]
        for layer in self.layers:
            x = checkpoint(layer, x)
        return x


class First(Block):
    """The input needs no gradient, as a batch does."""

    def __init__(self, rows: int, width: int):
        super().__init__(rows, width, layers=1)
        self.needs = ()


class Arguments(Kind):
    """Tensors with and without a gradient, whole numbers, a number and None."""

    def __init__(self, rows: int, width: int):
        super().__init__(rows, width)
        self.layer = nn.Linear(width, width)
        self.inputs |= {"scale": frozen.randn(width), "fixed": frozen.randn(rows, width)}
        self.inputs["order"] = frozen.arange(rows).flip(0)
        self.needs = ("x", "scale")

    def run(self, checkpoint: Checkpoint, **inputs: Tensor) -> Any:
        def function(
            x: Tensor, order: Tensor, factor: float, mask: None, fixed: Tensor, scale: Tensor
        ) -> Any:
            assert mask is None
            return torch.tanh(self.layer(x)[order] * factor) * scale + fixed

        order, fixed, scale = inputs["order"], inputs["fixed"], inputs["scale"]
        return checkpoint(function, inputs["x"], order, 0.5, None, fixed, scale)


class Outputs(Kind):
    """Three outputs, of which the last is in no loss."""

    outputs, used = 3, 2

    def __init__(self, rows: int, width: int):
        super().__init__(rows, width)
        self.layer = nn.Linear(width, width)

    def run(self, checkpoint: Checkpoint, **inputs: Tensor) -> Any:
        def function(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            y = self.layer(x)
            return torch.tanh(y), y.square(), y.exp()

        return checkpoint(function, inputs["x"])


class Autocast(Kind):
    """Forward is in float16 under autocast, whose default is bfloat16; backward is outside.

    Whole numbers, of which every sum is exact: it is rounded to float16 alone, the same on all machines.
    """

    def __init__(self, rows: int, width: int):
        super().__init__(rows, width)
        self.inputs["x"] = _randint(-3, 4, (rows, width)).float()
        self.layer = nn.Linear(width, width, bias=False)
        self.layer.weight = frozen.Parameter(_randint(-7, 8, (width, width)).float())

    @staticmethod
    def within() -> AbstractContextManager:
        return _autocast("cpu", dtype=_float16)

    def run(self, checkpoint: Checkpoint, **inputs: Tensor) -> Any:
        return checkpoint(lambda x: x + self.layer(x), inputs["x"])


class Nested(Block):
    def run(self, checkpoint: Checkpoint, **inputs: Tensor) -> Any:
        def function(x: Tensor) -> Tensor:
            for layer in self.layers:
                x = checkpoint(layer, x)
            return x

        return checkpoint(function, inputs["x"])


class Twice(Block):
    """The same layers for x, and for the result; and one that has a gradient already."""

    def run(self, checkpoint: Checkpoint, **inputs: Tensor) -> Any:
        x = inputs["x"]
        for layer in (*self.layers, self.layers[0]):
            x = checkpoint(layer, x)
        return x


class Chain(Kind):
    """Blocks of the course's GPT, each checkpointed."""

    def __init__(self, rows: int, width: int, blocks: int):
        super().__init__(rows, width)
        self.blocks = GPT(GPTConfig(layers=blocks, heads=4, width=width)).blocks
        self.positions = frozen.arange(rows)
        self.inputs["x"] = self.inputs["x"][None]

    def run(self, checkpoint: Checkpoint, **inputs: Tensor) -> Any:
        x = inputs["x"]
        for block in self.blocks:
            x = checkpoint(lambda x, block=block: block(x, self.positions), x)
        return x


class Deep(Kind):
    """Many layers in one checkpoint."""

    def __init__(self, rows: int, width: int, blocks: int):
        super().__init__(rows, width)
        layers = [nn.Sequential(nn.Linear(width, width, bias=False), nn.Tanh()) for _ in range(blocks)]
        self.layers = nn.Sequential(*layers)

    def run(self, checkpoint: Checkpoint, **inputs: Tensor) -> Any:
        return checkpoint(self.layers, inputs["x"])


KINDS: dict[str, Callable[..., Kind]] = {
    "block": Block, "first": First, "arguments": Arguments, "outputs": Outputs, "autocast": Autocast,
    "nested": Nested, "twice": Twice, "chain": Chain, "deep": Deep,
}  # fmt: skip


# ---- a step


class Step:
    """A forward and a backward of a kind: a loss of the outputs that are used.

    A caller's program draws random numbers of its own between the two, and after backward.
    """

    def __init__(self, kind: str, sizes: dict, seed: int):
        frozen.manual_seed(seed)
        self.model = model = KINDS[kind](**sizes)
        frozen.manual_seed(seed + 1)
        self.inputs = {name: frozen.clone(tensor) for name, tensor in model.inputs.items()}
        for name in model.needs:
            self.inputs[name].requires_grad_()
        self.leaves = dict(model.named_parameters()) | {name: self.inputs[name] for name in model.needs}
        for leaf in model.parameters():
            leaf.grad = _ones_like(leaf) if isinstance(model, Twice) else None
        self.outputs: list[Any] = []
        self.drawn: dict[str, Tensor] = {}

    def forward(self, checkpoint: Checkpoint) -> Any:
        made = self.model.run(checkpoint, **self.inputs)
        self.outputs = list(made) if isinstance(made, list | tuple) else [made]
        return made

    @property
    def changed(self) -> list[str]:
        """The inputs that need a gradient now, and did not before."""
        return [
            name
            for name, tensor in self.inputs.items()
            if tensor.requires_grad and name not in self.model.needs
        ]

    @property
    def has_form(self) -> bool:
        """Whether forward gave as many tensors as it has outputs."""
        return len(self.outputs) == self.model.outputs and all(
            isinstance(y, frozen.Tensor) for y in self.outputs
        )

    def loss(self) -> Tensor:
        used = self.outputs[: self.model.used]
        return frozen.stack([output.float().square().sum() for output in used]).sum()

    def tensors(self) -> dict[str, Any]:
        """ "out.0", ...; "grad.NAME" of each parameter and input, or None; "between" and "after"."""
        outputs = {f"out.{k}": _kept(output) for k, output in enumerate(self.outputs)}
        return {**outputs, **{f"grad.{name}": leaf.grad for name, leaf in self.leaves.items()}, **self.drawn}


def _kept(value: Any) -> Any:
    return frozen.clone(frozen.detach(value)) if isinstance(value, frozen.Tensor) else value


def draw() -> Tensor:
    """The caller's own random numbers."""
    return frozen.rand(3)


def plainly(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


def plain_step(kind: str, sizes: dict, seed: int) -> dict[str, Tensor]:
    """The tensors of a step without a checkpoint."""
    with _fork(devices=[]), _with_graph():
        step = Step(kind, sizes, seed)
        with step.model.within():
            step.forward(plainly)
        step.drawn["between"] = draw()
        step.loss().backward()
        step.drawn["after"] = draw()
        return step.tensors()
