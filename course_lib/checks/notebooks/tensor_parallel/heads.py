"""Causal self-attention on one process, whole and as each rank's heads, and the results of mistakes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations

import torch
from torch import Tensor

from course_lib.checks import kit, words
from course_lib.checks.notebooks.tensor_parallel.whole import drawn_linear

LR = 0.05
USES = ("query", "key", "value")  # of x
ORDER = (
    "The layers are drawn in the order query, key, value, out, each whole; a rank keeps the rows of its "
    "heads from the first three, and their columns from out."
)
Parameters = list[Tensor]  # weights of query, key, value and out, then their biases where there are any
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """(batch, seq, heads, head_dim); k and v may have fewer: head h of q has h // (heads / kv_heads)."""
    times = q.shape[2] // k.shape[2]
    return scored(q, k.repeat_interleave(times, 2), v.repeat_interleave(times, 2), causal=True)


def scored(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, float("-inf"))
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)


def looks_ahead(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    times = q.shape[2] // k.shape[2]
    return scored(q, k.repeat_interleave(times, 2), v.repeat_interleave(times, 2), causal=False)


def in_turns(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    times = q.shape[2] // k.shape[2]
    return scored(q, k.repeat(1, 1, times, 1), v.repeat(1, 1, times, 1), causal=True)


def not_turned_back(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The heads' outputs laid down as (batch, heads, seq, head_dim), and read as (batch, seq, heads, ...)."""
    out = attend(q, k, v)
    return out.transpose(1, 2).reshape(out.shape)


def features_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A rank's features read as (head_dim, heads) and turned round, not as (heads, head_dim)."""
    turned = (
        tensor.flatten(-2).unflatten(-1, tensor.shape[:-3:-1]).transpose(-1, -2) for tensor in (q, k, v)
    )
    return attend(*turned)


def features_last(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same, and the result is turned back."""
    out = features_first(q, k, v)
    return out.transpose(-1, -2).reshape(out.shape)


def layer_sizes(width: int, features: int) -> list[tuple[int, int]]:
    """Of query, key, value and out; features: those of all key heads."""
    return [(width, width), *[(width, features)] * 2, (width, width)]


def drawn_parameters(
    seed: int, sizes: Sequence[tuple[int, int]], bias: bool, order: Sequence[int] = range(4)
) -> Parameters:
    """Of the four layers, which are drawn in that order."""
    drawn = drawn_linear(seed, [sizes[place] for place in order], bias)
    linears = [drawn[list(order).index(place)] for place in range(4)]
    return [linear.weight.detach() for linear in linears] + [
        linear.bias.detach() for linear in linears if bias
    ]


@dataclass(frozen=True)
class Heads:
    """Attention that n ranks share. With fewer kv_heads than ranks, ranks in succession hold the same one."""

    n: int
    seed: int
    heads: int
    kv_heads: int
    parameters: Parameters
    x: Tensor
    g: Tensor

    @classmethod
    def draw(
        cls,
        draw: kit.Draw,
        n: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        shape: Sequence[int],
        bias: bool,
    ) -> Heads:
        seed, width = draw.integer(1, 1 << 30), heads * head_dim
        parameters = drawn_parameters(seed, layer_sizes(width, kv_heads * head_dim), bias)
        x, g = (draw.normal(*shape, width, dtype=torch.float64) for _ in range(2))
        return cls(n, seed, heads, kv_heads, parameters, x, g)

    def redrawn(self, kv_heads: int = 0, order: Sequence[int] = range(4)) -> Heads:
        """The same with so many key heads, or with layers that are drawn in another order."""
        kv_heads = kv_heads or self.kv_heads
        sizes = layer_sizes(self.width, kv_heads * self.head_dim)
        parameters = drawn_parameters(self.seed, sizes, len(self.parameters) > 4, order)
        return replace(self, kv_heads=kv_heads, parameters=parameters)

    @property
    def width(self) -> int:
        return self.x.shape[-1]

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    @property
    def copies(self) -> int:
        """How many ranks hold the same key and value head."""
        return max(1, self.n // self.kv_heads)

    def own(self, k: int, parameters: Parameters) -> Parameters:
        """Rank k's parts; the bias of out, which is added once, is not among them."""
        parts, index = self.n // self.copies, k // self.copies
        query, key, value, out, *biases = parameters
        kept = [query.tensor_split(self.n)[k], key.tensor_split(parts)[index]]
        kept += [value.tensor_split(parts)[index], out.tensor_split(self.n, 1)[k]]
        if biases:
            kept += [biases[0].tensor_split(self.n)[k]]
            kept += [bias.tensor_split(parts)[index] for bias in biases[1:3]]
        return kept

    def term(
        self, own: Parameters, x: Tensor | Sequence[Tensor], how: Attend = attend, head_dim: int = 0
    ) -> Tensor:
        """A rank's term of the output, from its parameters; x: one, or one for each of its three uses."""
        query, key, value, out, *biases = own
        biases = biases or [torch.zeros(()).double()] * 3
        q, k, v = (
            (tensor @ weight.T + bias).unflatten(-1, (-1, head_dim or self.head_dim))
            for tensor, weight, bias in zip(
                [x] * 3 if isinstance(x, Tensor) else x, (query, key, value), biases, strict=True
            )
        )
        return how(q, k, v).flatten(-2) @ out.T

    def output(self, parameters: Parameters, x: Tensor, how: Attend = attend, head_dim: int = 0) -> Tensor:
        terms = [self.term(self.own(k, parameters), x, how, head_dim) for k in range(self.n)]
        return sum(terms[1:], terms[0]) + self.last_bias(parameters)

    def whole_output(self) -> Tensor:
        return self.output(self.parameters, self.x)

    @staticmethod
    def last_bias(parameters: Parameters) -> Tensor:
        return parameters[7] if len(parameters) > 4 else torch.zeros(()).double()

    def gradients(self) -> tuple[Tensor, Parameters]:
        """Of x, and of the parameters."""
        x, leaves = (self.x.clone().requires_grad_(), [p.clone().requires_grad_() for p in self.parameters])
        grads = torch.autograd.grad(self.output(leaves, x), [x, *leaves], self.g)
        return grads[0], list(grads[1:])

    def after_step(self, factor: float = 1.0) -> Tensor:
        """The output when every parameter has moved by LR times its gradient."""
        _, grads = self.gradients()
        moved = [p - factor * LR * grad for p, grad in zip(self.parameters, grads, strict=True)]
        return self.output(moved, self.x)

    def copies_apart(self) -> Tensor:
        """The same, but each copy of a key and value head has moved by its own part of the gradient."""
        _, grads = self.gradients()
        terms = []
        for k in range(self.n):
            own = [parameter.clone().requires_grad_() for parameter in self.own(k, self.parameters)]
            mine = torch.autograd.grad(self.term(own, self.x), own, self.g)
            terms.append(self.term([p - LR * grad for p, grad in zip(own, mine, strict=True)], self.x))
        bias = self.last_bias(self.parameters) - LR * self.last_bias(grads)
        return sum(terms[1:], terms[0]) + (bias if len(grads) > 4 else 0)

    def term_gradient(self, k: int) -> Tensor:
        """The gradient of x by the heads of rank k alone."""
        x = self.x.clone().requires_grad_()
        return torch.autograd.grad(self.term(self.own(k, self.parameters), x), x, self.g)[0]

    def entering_alone(self, k: int, entering: Collection[int]) -> Tensor:
        """Rank k's gradient of x where x enters the region for some of its USES alone."""

        def of_uses(rank: int) -> Sequence[Tensor]:
            uses = [self.x.clone().requires_grad_() for _ in range(3)]
            term = self.term(self.own(rank, self.parameters), uses)
            return torch.autograd.grad(term, uses, self.g)

        of_all = [of_uses(rank) for rank in range(self.n)]
        summed = [grads[use] for grads in of_all for use in entering]
        return torch.stack(summed + [of_all[k][use] for use in range(3) if use not in entering]).sum(0)

    def dealt(self) -> Parameters:
        """The parameters where rank k took heads k, k + n, ... of query, key and value, but of out a run."""
        order = torch.cat([torch.arange(self.heads)[k :: self.n] for k in range(self.n)])
        features = torch.arange(self.width).view(self.heads, -1)[order].flatten()
        kept = (0, 1, 2, 4, 5, 6)
        return [
            parameter[features] if i in kept else parameter for i, parameter in enumerate(self.parameters)
        ]


def other_orders() -> Iterator[tuple[int, ...]]:
    return (order for order in permutations(range(4)) if order != (0, 1, 2, 3))


def head_slips(whole: Heads) -> list[kit.Slip]:
    n, bias = whole.n, whole.last_bias(whole.parameters)

    def output(how: Attend, head_dim: int = 0) -> Callable[[int], dict[str, Tensor]]:
        return lambda k: {"y": whole.output(whole.parameters, whole.x, how, head_dim)}

    def term(k: int) -> Tensor:
        return whole.term(whole.own(k, whole.parameters), whole.x)

    own_term = "Each rank has only its own heads' term, but out is row-parallel, so its terms must be summed."
    slips = [
        kit.Slip("A token looks at tokens after it, but attention here is causal.", output(looks_ahead)),
        kit.Slip(
            "The heads' outputs are in the wrong order. Transpose back to (batch, seq, heads, "
            "head_dim) before the last two are made one.",
            output(not_turned_back),
        ),
        kit.Slip(
            f"The bias of out counts {n} times. Add it once, after the sum.",
            lambda k: {"y": whole.output(whole.parameters, whole.x) + (n - 1) * bias},
        ),
        kit.Slip(own_term, lambda k: {"y": term(k) + bias}),
        kit.Slip(own_term, lambda k: {"y": term(k)}),
        kit.Slip(
            "Each rank has only its own heads' gradient of x, but x is whole. Let it enter the region "
            "by identity forward, all-reduce backward.",
            lambda k: {"grad.x": whole.term_gradient(k)},
        ),
        *(
            kit.Slip(
                f"x enters the region for {words.listing([USES[use] for use in entering])} alone, but "
                "its gradient is summed over the ranks for all three. Let x enter once, before query, "
                "key and value.",
                lambda k, entering=entering: {"grad.x": whole.entering_alone(k, entering)},
            )
            for count in (1, 2)
            for entering in combinations(range(3), count)
        ),
        kit.Slip(
            f"The gradient is {n} times too large. A sum hands its gradient on as it is, so an "
            "all-reduce in forward needs none in backward. Or x entered twice, because a "
            "ColumnParallelLinear that is called lets x in once more. Use F.linear with its weight "
            "and bias.",
            lambda k: {"grad.x": n * whole.gradients()[0]},
        ),
        kit.Slip(
            f"The parameters' gradients are {n} times too large.", lambda k: {"again": whole.after_step(n)}
        ),
    ]
    if whole.kv_heads < whole.heads:
        slips += [
            kit.Slip(
                f"kv_heads was ignored, so your output is the one of {whole.heads} key and value "
                f"heads. Make {whole.kv_heads}, so that key and value have that many times head_dim "
                "features.",
                lambda k: {"y": whole.redrawn(whole.heads).whole_output()},
            ),
            kit.Slip(
                "Queries took key and value heads in turns, but neighbours share one. Query head h "
                "has head h // (heads / kv_heads), as repeat_interleave gives them.",
                output(in_turns),
            ),
        ]
    if whole.copies > 1:
        slips += [
            kit.Slip(
                "Several ranks hold a copy of the same key and value head, and the copies were "
                "updated separately. Sum their gradients over the ranks that hold it.",
                lambda k: {"again": whole.copies_apart()},
            )
        ]
    here = whole.heads // n
    if whole.kv_heads == whole.heads and here > 1:
        slips += [
            kit.Slip(
                f"Rank k took every {n}th head of query, key and value, but the columns of out for a "
                "run of adjacent heads. Each rank must have one run of heads, the same in all four "
                "layers.",
                lambda k: {"y": whole.output(whole.dealt(), whole.x)},
            )
        ]
    slips += [
        kit.Slip(
            "The rank's features were read as (head_dim, heads), but a head's features are adjacent. "
            "Use unflatten(-1, (heads, head_dim)).",
            output(how),
        )
        for how in (features_first, features_last)
    ]
    if here != whole.head_dim and whole.kv_heads == whole.heads:
        slips += [
            kit.Slip(
                f"The rank's features were read as {whole.head_dim} heads of {here}, but a head's "
                f"features are adjacent. Use unflatten(-1, (heads, head_dim)), here ({here}, "
                f"{whole.head_dim}).",
                output(attend, here),
            )
        ]
    if whole.head_dim % n == 0 and whole.kv_heads == whole.heads:
        slips += [
            kit.Slip(
                f"Every rank has all heads, but only 1/{n} of the features of each. Heads must stay "
                "whole. A rank has heads / n of them, of head_dim features.",
                output(attend, whole.head_dim // n),
            )
        ]
    return slips + [
        kit.Slip(ORDER, lambda k, order=order: {"y": whole.redrawn(order=order).whole_output()})
        for order in other_orders()
    ]
