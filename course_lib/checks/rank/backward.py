"""In the rank: how backward begins, PyTorch's warnings meanwhile, and a name for an object that is not an
agreed tensor."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_Tensor, _zeros = torch.Tensor, torch.zeros
UNREGISTERED = "an autograd kernel was not registered"


class Hand(torch.autograd.Function):
    """A number whose backward hands `gradient`, as it is, to y.

    backward(y, gradient) does so too, but first imports modules for symbolic shapes: half a second.
    """

    @staticmethod
    def forward(ctx: Any, y: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        ctx.gradient = gradient
        return _zeros((), dtype=y.dtype, device=y.device)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.gradient, None


@contextmanager
def unregistered() -> Iterator[list[str]]:
    """PyTorch's warnings within that backward meets an operation without a backward, such as a collective.

    Other warnings are shown as ever.
    """
    found: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", message=f".*{UNREGISTERED}")
        yield found
    for one in caught:
        if UNREGISTERED in str(one.message):
            found.append(str(one.message))
        else:
            warnings.showwarning(one.message, one.category, one.filename, one.lineno)


def told(one: Any) -> str:
    """ "float64[2, 3]", or the type of an object that is not a tensor."""
    if isinstance(one, _Tensor):
        return f"{str(one.dtype)[6:]}{list(one.shape)}"
    return "None" if one is None else type(one).__name__
