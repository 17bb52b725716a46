"""Functions that are believed, so their results have the kinds of a signature, and are not looked into.

A loss over a cut vocabulary computes with this rank's own bounds. Two imaginary ranks that run the program of
one rank cannot see these bounds. So such a function is tested against one process and then trusted.

In backward, the gradient of a part is a part, and the gradient of a term is a copy, since a sum hands its
gradient on to every term. The gradient of a copy is a copy if the result is also a copy. But if each rank has
another result, like replicas on different rows, it is a term.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from course_lib.axis_types.kinds import Kind, P, R

Kinds = Mapping[str, Kind]


class Types(Protocol):
    """The methods of the types needed by a trusted function."""

    def of(self, x: Tensor) -> dict[str, Kind]: ...
    def set(self, x: Tensor, **kinds: Kind) -> Tensor: ...
    def expect(self, x: Tensor, name: str = "the tensor", **kinds: Kind) -> None: ...
    def not_looking(self) -> contextlib.AbstractContextManager[None]: ...


def believed(
    types: Types, function: Callable, name: str, arguments: Mapping[str, Kinds], out: Kinds,
    parameters: tuple[nn.Parameter, ...] = (),
) -> Callable:  # fmt: skip
    """`function`, of which only the arguments' kinds are checked. `parameters` are the ones it uses."""
    signature = inspect.signature(function)

    def trusted(*args: Any, **named: Any) -> Any:
        bound = signature.bind(*args, **named)
        for argument, kinds in arguments.items():
            types.expect(bound.arguments[argument], f"{argument} of {name}", **kinds)
        values, form = tree_flatten((args, named))
        places = [place for place, value in enumerate(values) if isinstance(value, Tensor)]

        def call(inputs: tuple[Tensor, ...]) -> Tensor:
            filled = list(values)
            for place, value in zip(places, inputs, strict=True):
                filled[place] = value
            others, names = tree_unflatten(filled, form)
            return function(*others, **names)

        inputs = [values[place] for place in places]
        result = _Trusted.apply(types, call, out, len(inputs), *inputs, *parameters)
        types.set(result, **out)
        return result

    return trusted


@contextlib.contextmanager
def forward_replaced(module: nn.Module, forward: Callable) -> Iterator[None]:
    """Within this context, the module's own forward is another function."""
    module.forward = forward
    try:
        yield
    finally:
        del module.forward


class _Trusted(torch.autograd.Function):
    """forward: the function, with a graph of its own. backward: that graph's gradients."""

    @staticmethod
    def forward(
        ctx: Any, types: Types, call: Callable, out: Kinds, count: int, *tensors: Tensor
    ) -> Tensor:
        inputs = tuple(x.detach().requires_grad_(x.requires_grad) for x in tensors[:count])
        with types.not_looking(), torch.enable_grad():
            result = call(inputs)
        ctx.types, ctx.result, ctx.out = types, result, out
        ctx.tensors, ctx.leaves = tensors, (*inputs, *tensors[count:])
        return result.detach().clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        leaves = [leaf for leaf in ctx.leaves if leaf.requires_grad]
        with ctx.types.not_looking():
            made = iter(torch.autograd.grad(ctx.result, leaves, grads[0], allow_unused=True))
            gradients = [next(made) if leaf.requires_grad else None for leaf in ctx.leaves]
        for x, gradient in zip(ctx.tensors, gradients, strict=True):
            if gradient is not None:
                kinds = {
                    axis: dual(kind, ctx.out.get(axis, R)) for axis, kind in ctx.types.of(x).items()
                }
                ctx.types.set(gradient, **kinds)
        return None, None, None, None, *gradients


def dual(kind: Kind, out: Kind) -> Kind:
    """The kind of an input's gradient."""
    if kind == P:
        return R
    return P if kind == R and out != R else kind
