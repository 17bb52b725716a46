"""The unsharded linear layer in float64, against which the ranks' parts are held."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from course_lib.checks import kit

REFERENCE = ("course_lib.tensor_parallel",)
FLOAT = 8  # bytes


def drawn_linear(seed: int, sizes: Iterable[tuple[int, int]], bias: bool = True) -> list[nn.Linear]:
    """The layers that nn.Linear makes one after the other from a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return [nn.Linear(*size, bias=bias, dtype=torch.float64) for size in sizes]


@dataclass(frozen=True)
class Whole:
    """y = x A + b on one process, and its gradients where `g` is that of y. weight is (out, in)."""

    n: int
    seed: int
    weight: Tensor
    bias: Tensor | None
    x: Tensor
    g: Tensor

    @classmethod
    def draw(
        cls, draw: kit.Draw, n: int, features: tuple[int, int], shape: Sequence[int], bias: bool = True
    ) -> Whole:
        """A layer of `features` (in, out) that n ranks share, and inputs of `shape` besides the features."""
        seed = draw.integer(1, 1 << 30)
        (linear,) = drawn_linear(seed, [features], bias)
        x, g = (draw.normal(*shape, size, dtype=torch.float64) for size in features)
        kept = None if linear.bias is None else linear.bias.detach()
        return cls(n, seed, linear.weight.detach(), kept, x, g)

    @property
    def size_in(self) -> int:
        return self.weight.shape[1]

    @property
    def size_out(self) -> int:
        return self.weight.shape[0]

    @property
    def product(self) -> Tensor:
        """The output without the bias."""
        return self.x @ self.weight.T

    @property
    def y(self) -> Tensor:
        return self.product if self.bias is None else self.product + self.bias

    @property
    def for_x(self) -> Tensor:
        return self.g @ self.weight

    @property
    def for_weight(self) -> Tensor:
        return self.g.flatten(0, -2).T @ self.x.flatten(0, -2)

    @property
    def for_bias(self) -> Tensor:
        return self.g.flatten(0, -2).sum(0)

    @property
    def nbytes(self) -> int:
        """Of weight and bias."""
        return FLOAT * (self.weight.numel() + (0 if self.bias is None else self.bias.numel()))

    def part(self, k: int, tensor: Tensor, dim: int) -> Tensor:
        """Rank k's part, cut as torch.tensor_split cuts."""
        return tensor.tensor_split(self.n, dim)[k]
