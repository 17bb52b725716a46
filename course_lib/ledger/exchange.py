"""A rank's parts in an all-to-all: the parts it sends to the members, and those it expects from them.

The parts can be unequal, and a backend does not compare them. If a rank expects less than is sent, gloo
ends its process, and if it expects more, the rest is whatever was in memory before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_numel, _element_size = torch.Tensor.numel, torch.Tensor.element_size
_as_base = torch._C.DisableTorchFunctionSubclass


@dataclass(frozen=True)
class Part:
    """The part that goes to a member, or comes from it. rows: it counts rows instead of elements.

    of: the members that share these rows equally, if there is no whole number of rows for each.
    """

    nbytes: int
    count: int
    rows: bool
    of: int = 0

    def __str__(self) -> str:
        share = f"1/{self.of} of " if self.of else ""
        unit = ("row" if self.rows else "element") + ("" if self.count == 1 else "s")
        return f"{share}{self.count:,} {unit} ({self.nbytes:,} bytes)"


@dataclass(frozen=True)
class Exchange:
    """A rank's parts, in the order of the group's members, its own among them."""

    goes: tuple[Part, ...]
    comes: tuple[Part, ...]

    def bytes_sent(self, place: int) -> int:
        """To the others; place: of the rank in the group."""
        return sum(part.nbytes for part in self.goes) - self.goes[place].nbytes

    def carried(self, place: int) -> float:
        """Bytes of an all-to-all with equal parts that takes as long. The fuller direction decides."""
        n = len(self.goes)
        came = sum(part.nbytes for part in self.comes) - self.comes[place].nbytes
        return max(self.bytes_sent(place), came) * n / (n - 1) if n > 1 else 0.0


def parts(tensors: Tensor | Sequence[Tensor], splits: Sequence[int], n: int) -> tuple[Part, ...]:
    """The parts of a list of n tensors, or of one tensor, cut by `splits` or into equally many rows."""
    with _as_base():  # a subclass may report another size
        if not isinstance(tensors, Tensor):
            return tuple(Part(_numel(x) * _element_size(x), _numel(x), False) for x in tensors)
        rows = tensors.shape[0] if tensors.dim() else 1
        nbytes = _numel(tensors) * _element_size(tensors)
        if not splits:
            return (
                Part(nbytes // n, rows, True, n)
                if rows % n
                else Part(nbytes // n, rows // n, True),
            ) * n
        each = nbytes // max(1, rows)
        return tuple(Part(each * count, count, True) for count in splits)
