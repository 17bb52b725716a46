"""A backward in two halves: the gradient of the input now, the gradients of the weights later.

Nearly all weights are in linear layers. y = x w^T has two products in its backward, for x and for w, and
neither needs the other:

    dx = dy w        the layer before needs it immediately, in I
    dw = dy^T x      only the optimizer needs it, in W

So while the forward of such a microbatch runs, each `F.linear` is replaced by a function whose backward
computes dx and puts (w, x, dy) aside. All other parameters (biases, norms, embeddings) cost next to nothing
and get their gradients in I, and so do linear layers whose input needs no gradient. For W, the action I keeps
x and dy of each linear layer, but it frees everything else.

Source: Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, section 2.1 (its code calls it
WeightGradStore). This works for any model that calls `F.linear`, as `nn.Linear` does. A linear layer that
computes in another way has its whole backward in I, which is slower but just as right. The same holds for any
linear layer under autocast.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode


class LaterWeights(TorchFunctionMode):
    """Forwards inside this context keep the weights' half of their backward for `finish`.

    with LaterWeights() as later:
        y = module(x)
    y.backward(dy)      # I: x.grad is ready, the gradients of linear weights are not
    later.finish()      # W: they are added

    around: a context in which every `finish` runs, for a stopwatch.
    """

    around: ClassVar[AbstractContextManager[object]] = nullcontext()

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[tuple[Tensor, Tensor, Tensor]] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.linear and torch.is_grad_enabled():
            return self._linear(*args, **kwargs)
        return func(*args, **kwargs)

    def finish(self) -> None:
        """Add the weights' gradients and free the tensors. Hooks of the weights run as in any backward."""
        with LaterWeights.around:
            for weight, x, dy in self.kept:
                dw = dy.flatten(0, -2).t() @ x.flatten(0, -2)
                torch.autograd.backward((weight,), (dw,))
            self.kept.clear()

    def _linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        waits = weight.is_leaf and weight.requires_grad and input.requires_grad and input.dim() > 1
        if not waits or torch.is_autocast_enabled(input.device.type):
            return F.linear(input, weight, bias)
        return _Linear.apply(input, bias, (weight, self.kept))


class _Linear(torch.autograd.Function):
    """forward: x w^T + bias. backward: dx and the bias's gradient; w, x and dy are put aside.

    `aside`: the weight and the list for it. It is a tuple because autograd must not see the weight, or it
    would call the weight's hooks in I, before the gradient is ready.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, aside: tuple[Tensor, list]) -> Tensor:
        weight, ctx.kept = aside
        ctx.save_for_backward(x, weight)
        return F.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (dy,), (x, weight) = gradients, ctx.saved_tensors
        ctx.kept.append((weight, x, dy))
        for_bias = dy.flatten(0, -2).sum(0) if ctx.needs_input_grad[1] else None
        return dy @ weight, for_bias, None
