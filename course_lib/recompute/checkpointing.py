"""Keep only a function's arguments instead of all its backward needs, and run it again in backward.

Forward runs the function without a graph, so autograd keeps nothing from inside it. Backward runs the
function once more, now with a graph, and goes through that graph immediately. So only one checkpointed
function at a time has its inside in memory. The price is one more forward, which is a third of a step's
FLOPs.

The second run must compute the same values as the first. In addition to the arguments, three things decide
this:

* Random numbers. Dropout must drop the same elements, so the generator's state is kept (5 KB on the CPU).
  Afterwards the caller's stream of random numbers continues as if nothing had been drawn.
* Autocast. Backward usually runs outside of it, but the second run needs the dtypes of the first.
* The parameters, which a function uses without receiving them as arguments. They must not change between
  forward and backward. Their gradients arrive by themselves, as in any backward.

There are two limits, as in PyTorch's reentrant version. First, `torch.autograd.grad` finds no gradients of
parameters, because a backward inside of backward adds them to `.grad`. Second, if the function reaches a
tensor with a graph through a closure, the same backward also walks that graph. `lazy_checkpoint` has neither
limit.

Sources: Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016, section 3. PyTorch's
`torch.utils.checkpoint`, `use_reentrant=True`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor


def checkpoint(function: Callable[..., Any], *args: Any) -> Any:
    """The value of `function(*args)`, a tensor or a tuple of tensors; its inside is not kept for backward.

    args: tensors, with or without a gradient, and anything else. Only arguments and parameters get gradients.
    forward: runs the function without a graph; keeps its tensor arguments and 5 KB of random state. backward:
    runs it again, and then backward through it. The gradients equal those without a checkpoint to the bit.
    """
    # If none of its inputs needs a gradient, an autograd.Function records nothing. Then a first block, whose
    # inputs are tokens, would get no gradients for its weights. An empty tensor that needs a gradient
    # prevents this.
    anchor = torch.empty(0, requires_grad=True)
    return _Checkpoint.apply(anchor, function, *args)


class _Checkpoint(torch.autograd.Function):
    """forward: the function's value. backward: runs the function again, for the gradients through it."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, function: Callable[..., Any], *args: Any) -> Any:
        ctx.function = function
        ctx.surroundings = Surroundings()
        ctx.others = [None if isinstance(arg, Tensor) else arg for arg in args]
        ctx.tensors = [index for index, arg in enumerate(args) if isinstance(arg, Tensor)]
        ctx.save_for_backward(*(args[index] for index in ctx.tensors))
        ctx.set_materialize_grads(
            False
        )  # None instead of a tensor of zeros for an output that is not used
        return function(*args)  # a Function's forward runs without a graph

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        args = list(ctx.others)
        for index, tensor in zip(ctx.tensors, ctx.saved_tensors, strict=True):
            args[index] = tensor.detach().requires_grad_(tensor.requires_grad)
        with torch.enable_grad(), ctx.surroundings.again():
            outputs = ctx.function(*args)
        outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
        pairs = [
            (output, gradient)
            for output, gradient in zip(outputs, gradients, strict=True)
            if gradient is not None and output.requires_grad
        ]
        if pairs:
            ends, arrived = zip(*pairs, strict=True)
            torch.autograd.backward(ends, arrived)
        return None, None, *(arg.grad if isinstance(arg, Tensor) else None for arg in args)


class Surroundings:
    """The state on which a function's value depends in addition to its arguments: generators and autocast."""

    def __init__(self) -> None:
        self.random = torch.get_rng_state()
        self.on_gpu = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
        self.autocast = [
            {
                "device_type": kind,
                "enabled": torch.is_autocast_enabled(kind),
                "dtype": torch.get_autocast_dtype(kind),
                "cache_enabled": torch.is_autocast_cache_enabled(),
            }
            for kind in (("cpu", "cuda") if self.on_gpu is not None else ("cpu",))
        ]

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """Within, the state is the same as when this object was made; afterwards it is the caller's again."""
        devices = [] if self.on_gpu is None else [torch.cuda.current_device()]
        with torch.random.fork_rng(devices), contextlib.ExitStack() as stack:
            torch.set_rng_state(self.random)
            if self.on_gpu is not None:
                torch.cuda.set_rng_state(self.on_gpu)
            for settings in self.autocast:
                stack.enter_context(torch.autocast(**settings))
            yield
