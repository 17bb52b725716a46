"""In the rank: how backward begins, and what an object that is no agreed tensor is called."""

from __future__ import annotations

from typing import Any

import torch

_Tensor, _zeros = torch.Tensor, torch.zeros


class Hand(torch.autograd.Function):
    """A number whose backward hands `gradient`, as it is, to y.

    backward(y, gradient) does so too, but first imports what compares symbolic shapes: half a second.
    """

    @staticmethod
    def forward(ctx: Any, y: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        ctx.gradient = gradient
        return _zeros((), dtype=y.dtype, device=y.device)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.gradient, None


def told(one: Any) -> str:
    """ "float64[2, 3]", or the type of what is no tensor."""
    if isinstance(one, _Tensor):
        return f"{str(one.dtype)[6:]}{list(one.shape)}"
    return "None" if one is None else type(one).__name__
