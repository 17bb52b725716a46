"""A linear layer cut over ranks by columns or by rows, and why columns come before rows.

y = x A, A (in, out). `nn.Linear` keeps weight = A transposed, (out, in), so columns of A are rows of
`weight`.

    column-parallel    A = [A_0 | A_1]    y_r = x A_r          x whole, y cut along features, nothing sent
    row-parallel       A = [A_0 ; A_1]    y = sum of x_r A_r   x cut along features, terms to be added

The output of a column-parallel layer is cut as a row-parallel layer expects its input, and an elementwise
operation in between (an activation function) works on parts as on the whole. So a pair of layers, column
first and row second, communicates once in forward (the sum) and once in backward (the gradient of x). With
row first and column second, the ranks would have to add up the wide tensor in the middle, before the
activation function, and gather the result.

Source: Shoeybi et al., "Megatron-LM", 2019, section 3; the arguments are the same as in fairscale's
`nn/model_parallel/layers.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .conjugate import (
    Group,
    all_gather,
    all_gather_reduce_scatter,
    all_gather_split,
    all_reduce_identity,
    identity_all_reduce,
    reduce_scatter,
    reduce_scatter_all_gather,
    split_all_gather,
)
from .cut import Cut, Parallel
from .given import check_linear
from .replicated import sum_gradients

Sequences = Literal["keep", "regather"] | None


class ColumnParallelLinear(Parallel):
    """`nn.Linear` whose output features are cut over the ranks.

    in_features, out_features, bias: of the whole layer; any sizes. If the number of ranks does not divide
        out_features, the first ranks hold one more feature, as `torch.tensor_split` cuts.
    gather_output: True returns the whole (..., out_features) on every rank, else the rank's part of it.
    sequence: None takes a whole x (..., seq, in_features); "keep" and "regather" take the rank's part of the
        sequence, (..., seq / n, in_features), gather it, and return all of the sequence. "keep" holds the
        gathered input for backward; "regather" holds only the rank's part, and gathers again.
    linear: an nn.Linear to be cut, instead of a new one. It says itself whether there is a bias.

    weight: (the rank's features, in_features); bias likewise. They are parts of the weights drawn by
    `nn.Linear` on the group's first rank, so a seed gives the same weights as in one process.

    If x (the whole sequence) has M bytes and the whole output O bytes, each rank sends

        sequence      forward                       backward
        None          0                             2 (n-1)/n M
        "keep"        (n-1)/n M                     (n-1)/n M
        "regather"    (n-1)/n M                     2 (n-1)/n M
        gather_output (n-1)/n O more                0

    Raises ValueError if x has another number of features, if the sequence cannot be cut, or if `linear` has
    other sizes or hooks; TypeError if it is not an nn.Linear.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        gather_output: bool = True,
        group: Group = None,
        *,
        sequence: Sequences = None,
        linear: nn.Linear | None = None,
    ):
        super().__init__(group)
        self.in_features, self.out_features = in_features, out_features
        self.gather_output, self.sequence = gather_output, checked(sequence)
        linear = linear or nn.Linear(in_features, out_features, bias)
        check_linear(linear, in_features, out_features)
        self.weight = self.take("weight", linear.weight, self.cut(0))
        self.bias = None if linear.bias is None else self.take("bias", linear.bias, self.cut(0))

    def cut(self, dim: int) -> Cut:
        return Cut(dim, self.out_features, self.group)

    def forward(self, x: Tensor) -> Tensor:
        (y,) = column_parallel(x, [self])
        return all_gather_split(y, self.group, -1, self.out_features) if self.gather_output else y

    def local(self) -> tuple[Tensor, Tensor | None]:
        """The weight and the bias this rank computes with."""
        return self.weight, self.bias

    def extra_repr(self) -> str:
        held = self.weight.shape[0]
        return f"{self.in_features}, {self.out_features} (here {held}), sequence={self.sequence!r}"


class RowParallelLinear(Parallel):
    """`nn.Linear` whose input features are cut over the ranks.

    in_features, out_features, bias: of the whole layer; any sizes, as in `ColumnParallelLinear`.
    input_is_parallel: True takes the rank's features of x, such as the output of a column-parallel layer that
        does not gather; False takes the whole x and uses the rank's features.
    sequence: None returns the whole (..., seq, out_features) on every rank; "keep" and "regather" the rank's
        part of the sequence, (..., seq / n, out_features).
    linear: an nn.Linear to be cut, instead of a new one. It says itself whether there is a bias.

    weight: (out_features, the rank's features), drawn as in `ColumnParallelLinear`. bias: whole on every
    rank, and added once, after the sum. On parts of the sequence, its gradient is summed over the ranks.

    If the whole output has M bytes and the whole input I bytes, each rank sends

        sequence             forward             backward
        None                 2 (n-1)/n M         0
        "keep", "regather"   (n-1)/n M           (n-1)/n M, and 2 (n-1)/n of the bias's bytes
        not input_is_parallel                    (n-1)/n I more

    Raises ValueError if x has another number of features, if the sequence cannot be cut, or if `linear` has
    other sizes or hooks; TypeError if it is not an nn.Linear.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        input_is_parallel: bool = False,
        group: Group = None,
        *,
        sequence: Sequences = None,
        linear: nn.Linear | None = None,
    ):
        super().__init__(group)
        self.in_features, self.out_features = in_features, out_features
        self.input_is_parallel, self.sequence = input_is_parallel, checked(sequence)
        linear = linear or nn.Linear(in_features, out_features, bias)
        check_linear(linear, in_features, out_features)
        self.weight = self.take("weight", linear.weight, Cut(1, in_features, group))
        self.bias = None if linear.bias is None else self.take("bias", linear.bias, None)

    def forward(self, x: Tensor) -> Tensor:
        expected = self.weight.shape[1] if self.input_is_parallel else self.in_features
        check_features(self, x, expected)
        if not self.input_is_parallel:
            x = split_all_gather(x, self.group)
        y = F.linear(x, self.weight)
        if self.sequence is None:
            y = all_reduce_identity(y, self.group)
            return y if self.bias is None else y + self.bias
        y = reduce_scatter_all_gather(y, self.group)
        (bias,) = sum_gradients(self.group, self.bias)
        return y if bias is None else y + bias

    def extra_repr(self) -> str:
        held = self.weight.shape[1]
        return f"{self.in_features} (here {held}), {self.out_features}, sequence={self.sequence!r}"


def column_parallel(x: Tensor, layers: Sequence[ColumnParallelLinear]) -> list[Tensor]:
    """The rank's features of several column-parallel layers on the same input.

    Query, key and value share the gradient of x, so one all-reduce (or one all-gather and one reduce-scatter)
    serves all of them.
    """
    first = layers[0]
    check_features(first, x, first.in_features)
    local = [layer.local() for layer in layers]
    if first.sequence == "regather":
        weights, biases = zip(*local, strict=True)
        return list(_GatheredLinear.apply(first.group, x, len(layers), *weights, *biases))
    if first.sequence == "keep":
        x = all_gather_reduce_scatter(x, first.group)
    else:
        x = identity_all_reduce(x, first.group)
    return [F.linear(x, weight, bias) for weight, bias in local]


class _GatheredLinear(torch.autograd.Function):
    """Linear layers on a sequence of which each rank keeps only its part.

    forward: gathers the sequence and multiplies.
    backward: gathers the sequence once more for the weights' gradients; reduce-scatters the gradient of x.
    """

    @staticmethod
    def forward(ctx: Any, group: Group, x: Tensor, count: int, *parameters: Tensor | None) -> Any:
        weights, biases = parameters[:count], parameters[count:]
        ctx.group = group
        ctx.save_for_backward(x, *weights)
        whole = all_gather(x, group, -2)
        return tuple(F.linear(whole, w, b) for w, b in zip(weights, biases, strict=True))  # pyright: ignore

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        x, *weights = ctx.saved_tensors
        needs_x, needs = ctx.needs_input_grad[1], ctx.needs_input_grad[3:]
        needs_weight, needs_bias = needs[: len(weights)], needs[len(weights) :]
        rows = [grad.flatten(0, -2) for grad in grads]
        for_x: Tensor | None = None
        if needs_x:
            total = sum(
                grad
                @ weight.to(grad.dtype)  # under autocast the weights are wider than the products
                for grad, weight in zip(grads, weights, strict=True)
            )
            for_x = reduce_scatter(total, ctx.group, -2)  # pyright: ignore[reportArgumentType]
        for_weights: list[Tensor | None] = [None] * len(weights)
        if any(needs_weight):
            whole = all_gather(x.to(grads[0].dtype), ctx.group, -2).flatten(0, -2)
            for_weights = [
                row.T @ whole if asked else None
                for row, asked in zip(rows, needs_weight, strict=True)
            ]
        for_biases = [
            row.sum(0) if asked else None for row, asked in zip(rows, needs_bias, strict=True)
        ]
        return None, for_x, None, *for_weights, *for_biases


def checked(sequence: Any) -> Sequences:
    if sequence not in (None, "keep", "regather"):
        raise ValueError(
            f"sequence={sequence!r}, but it must be 'keep' or 'regather' if tp cuts the tokens between the "
            "layers, and None if it does not"
        )
    return sequence


def check_features(layer: nn.Module, x: Tensor, expected: int) -> None:
    if x.shape[-1] != expected:
        raise ValueError(
            f"{type(layer).__name__}({layer.extra_repr()}) was given {x.shape[-1]} features, shape "
            f"{tuple(x.shape)}; {expected} are expected on this rank"
        )
