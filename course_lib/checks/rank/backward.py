"""In the rank: how backward begins, PyTorch's warnings meanwhile, and a value's form in words."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from course_lib.checks.rank import frozen

UNREGISTERED = "an autograd kernel was not registered"


class Hand(torch.autograd.Function):
    """A number whose backward hands `gradient`, as it is, to y.

    backward(y, gradient) does so too, but first imports modules for symbolic shapes: half a second.
    """

    @staticmethod
    def forward(ctx: Any, y: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        ctx.gradient = gradient
        return frozen.zeros((), dtype=y.dtype, device=y.device)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.gradient, None


@contextmanager
def unregistered() -> Iterator[list[str]]:
    """PyTorch's warnings within that backward meets an operation without a backward, such as a collective.

    Other warnings are shown as ever.
    """
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", message=f".*{UNREGISTERED}")
        yield texts
    for warning in caught:
        if UNREGISTERED in str(warning.message):
            texts.append(str(warning.message))
        else:
            warnings.showwarning(warning.message, warning.category, warning.filename, warning.lineno)


def type_of(value: Any) -> str:
    """ "float64[2, 3]", or the type of an object that is not a tensor."""
    if isinstance(value, frozen.Tensor):
        return f"{str(value.dtype)[6:]}{list(value.shape)}"
    return "None" if value is None else type(value).__name__
