"""A checkpoint by hooks: autograd keeps a number instead of each tensor, and asks for the tensors later.

`torch.autograd.graph.saved_tensors_hooks` calls one function for each tensor an operation keeps, and another
function when backward needs the tensor. Here the first function only counts. The second function runs the
checkpointed function again when it is first called, and finds the tensors by their count, since the same
function keeps the same tensors in the same order.

The graph is the caller's own, so there is no backward inside of backward. Therefore `torch.autograd.grad`
works, and a first block does not need an argument with a gradient. The second run can also stop *early*,
because once the last kept tensor has been computed, nothing after it is needed. In a transformer's block this
saves the last addition. In a tensor-parallel block it saves an all-reduce.

Source: PyTorch's `torch.utils.checkpoint`, `use_reentrant=False`, whose `early_stop` is on by default.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from .checkpointing import Surroundings


def lazy_checkpoint(function: Callable[..., Any], *args: Any, early_stop: bool = True) -> Any:
    """The value of `function(*args)`, for which only the arguments are kept for backward.

    forward: runs the function with a graph in which numbers stand for tensors. backward: runs it again when
    the first tensor is needed; with early_stop, only until the last kept tensor is ready. Each tensor is
    freed after its use. A second backward through the same graph runs the function again.
    """
    if not torch.is_grad_enabled():
        return function(*args)
    recomputation = _Recomputation(function, args, early_stop)
    with saved_tensors_hooks(recomputation.keep, recomputation.give):
        return function(*args)


class _Place:
    """Replaces, in the graph, the tensor that was kept as number `index`."""

    __slots__ = ("__weakref__", "index")

    def __init__(self, index: int):
        self.index = index


class _Enough(Exception):
    """The last kept tensor is ready."""


class _Arguments(torch.autograd.Function):
    """Lets autograd keep tensors, so that outer hooks see them and a change in place is an error."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        return anchor.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise AssertionError("no gradient flows here")


class _Recomputation:
    """One checkpointed call. places: by number, for as long as the graph has them."""

    def __init__(self, function: Callable[..., Any], args: tuple, early_stop: bool):
        self.function, self.early_stop = function, early_stop
        self.others = [None if isinstance(arg, Tensor) else arg for arg in args]
        self.at = [index for index, arg in enumerate(args) if isinstance(arg, Tensor)]
        anchor = torch.empty(0, requires_grad=True)
        self.kept: Any = _Arguments.apply(anchor, *(args[index] for index in self.at)).grad_fn
        self.needs = [args[index].requires_grad for index in self.at]
        self.surroundings = Surroundings()
        self.places: list[weakref.ref[_Place]] = []
        self.tensors: dict[int, Tensor] = {}

    def keep(self, tensor: Tensor) -> _Place:
        place = _Place(len(self.places))
        self.places.append(weakref.ref(place))
        return place

    def give(self, place: _Place) -> Tensor:
        if place.index not in self.tensors:
            self.run_again()
        return self.tensors.pop(place.index)

    def run_again(self) -> None:
        self.tensors.clear()
        args = list(self.others)
        for index, tensor, needed in zip(self.at, self.kept.saved_tensors, self.needs, strict=True):
            args[index] = tensor.detach().requires_grad_(needed)
        count = 0

        def note(tensor: Tensor) -> Tensor:
            nonlocal count
            if self.places[count]() is not None:  # the graph may have been freed in part
                self.tensors[count] = tensor.detach()
            count += 1
            if self.early_stop and count == len(self.places):
                raise _Enough
            return tensor.detach()

        hooks = saved_tensors_hooks(note, lambda tensor: tensor)
        with torch.enable_grad(), self.surroundings.again(), contextlib.suppress(_Enough), hooks:
            self.function(*args)
        if count != len(self.places):
            raise RuntimeError(
                f"the second run kept {count} tensors and the first one {len(self.places)}: a checkpointed "
                "function must compute the same twice. Does it depend on something that has changed since?"
            )
