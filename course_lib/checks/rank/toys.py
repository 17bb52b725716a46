"""Small models in which the usual traps sit. A description is plain data, and gives the same model anywhere.

    {"name": "traps", "seed": 7, "width": 6}

Every model is a `Toy`: input (batch, width), output (batch, width), computed block by block. The judge
makes the same model as the ranks, and nothing of it needs to be sent.
"""

from __future__ import annotations

import torch
from torch import nn


class Toy(nn.Module):
    """Blocks, one after the other. Subclasses set `blocks`, in the order of forward."""

    blocks: nn.ModuleList

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


class Block(nn.Module):
    """x + tanh(W x + b): gradients stay of one size, however many blocks there are."""

    def __init__(self, width: int, bias: bool = True):
        super().__init__()
        self.linear = nn.Linear(width, width, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.linear(x))


class Plain(Toy):
    """`depth` blocks."""

    def __init__(self, width: int, depth: int = 2):
        super().__init__()
        self.blocks = nn.ModuleList([Block(width) for _ in range(depth)])


class Wider(nn.Module):
    """x + V tanh(W x), with any number of features between."""

    def __init__(self, width: int, inner: int):
        super().__init__()
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(x)))


class Uneven(Toy):
    """Blocks of different sizes, so that a message tells the block by its bytes."""

    def __init__(self, width: int, inner: list[int]):
        super().__init__()
        self.blocks = nn.ModuleList([Wider(width, features) for features in inner])


class Nested(nn.Module):
    """A module inside a module inside a module, with a buffer that forward writes."""

    def __init__(self, width: int):
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(width), nn.Sequential(Block(width)))
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.scale * self.inner(x)


class Traps(Toy):
    """Frozen, tied, used twice, nested, a single number, and, unless left out, registered but never used."""

    def __init__(self, width: int, unused: bool = True):
        super().__init__()
        first, twice, last = Block(width), Block(width), Block(width)
        frozen = Block(width)
        frozen.requires_grad_(False)
        last.linear.weight = first.linear.weight
        if unused:
            self.unused = nn.Linear(width, 2)
        self.blocks = nn.ModuleList([first, twice, frozen, Nested(width), twice, last])


class Sometimes(Toy):
    """The middle block takes part only where the input's first element is positive."""

    def __init__(self, width: int):
        super().__init__()
        self.blocks = nn.ModuleList([Block(width) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, middle, last = self.blocks
        x = first(x) if x[0, 0] <= 0 else middle(first(x))
        return last(x)


class Frozen(Toy):
    """The middle one of three blocks is frozen."""

    def __init__(self, width: int):
        super().__init__()
        self.blocks = nn.ModuleList([Block(width) for _ in range(3)])
        self.blocks[1].requires_grad_(False)


class Headed(Frozen):
    """The same, between an embedding and a head, which belong to no block. A block has a frozen bias.

    spare: a trained block, and the root, have a parameter each that is never used.
    """

    def __init__(self, width: int, spare: bool = False):
        super().__init__(width)
        if spare:
            self.spare = nn.Parameter(torch.randn(width))
            self.blocks[0].register_parameter("spare", nn.Parameter(torch.randn(width)))
        self.get_parameter("blocks.2.linear.bias").requires_grad_(False)
        self.embedding, self.head = nn.Linear(width, width, bias=False), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(super().forward(self.embedding(x)))


class Shift(nn.Module):
    """x + a buffer of random numbers, which forward does not write."""

    shift: torch.Tensor

    def __init__(self, width: int):
        super().__init__()
        self.register_buffer("shift", torch.randn(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.shift


class Shifted(Toy):
    """A buffer that makes the ranks differ until it is broadcast."""

    def __init__(self, width: int):
        super().__init__()
        self.blocks = nn.ModuleList([Block(width), Shift(width), Block(width)])


MODELS = {
    "plain": Plain, "traps": Traps, "sometimes": Sometimes, "frozen": Frozen, "shifted": Shifted,
    "uneven": Uneven, "headed": Headed,
}  # fmt: skip


def build(description: dict) -> Toy:
    """The model of a description: name, seed, dtype ("float64"), and the model's own arguments.

    Buffers and parameters follow from the seed alone; the caller's random state is left as it was.
    """
    arguments = dict(description)
    kind, dtype = MODELS[arguments.pop("name")], getattr(torch, arguments.pop("dtype", "float64"))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(arguments.pop("seed"))
        return kind(**arguments).to(dtype)


def batch(description: dict, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of {"seed", "samples", "width"}: normal numbers, the same for the same seed.

    "sign" (1 or -1) fixes the sign of the first input, for models that look at it.
    """
    generator = torch.Generator().manual_seed(description["seed"])
    shape = (2, description["samples"], description["width"])
    x, y = torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)
    if "sign" in description:
        x[0, 0] = description["sign"] * (x[0, 0].abs() + 0.1)
    return x, y
