"""An operation tried on two imaginary ranks: is its result a copy, a part or a term?

There is no table of rules. Instead, two imaginary ranks get random numbers of the kinds of the inputs, which
are equal numbers if the input is a copy, two terms if it is a term, and two parts if it is a part. The
operation runs on each of these ranks, and once on the tensors of one process. If both results equal the
result of one process, the result is a copy. If their sum equals it, the result is a term, and if they make it
up one after the other along d, it is a part along d. If nothing fits, the line computes something that one
process does not compute, and this is the mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from course_lib.axis_types.kinds import Kind, M, P, R, S

NO_SUM = (
    "A tensor that every rank uses for its own part of the work has a term of its gradient on each rank: sum "
    "the terms over {axis} first."
)
Call = tuple[Any, tuple, dict[str, Any]]  # the operation and its arguments


class Mistake(Exception):
    """The sentence on an operation that one process would not compute, and another sentence for backward."""

    def __init__(self, sentence: str, backward: str = ""):
        super().__init__(sentence)
        self.sentence, self.backward = sentence, backward or sentence


class Unclear(Exception):
    """The result depends on numbers that only this rank has."""


def tensors(values: Any) -> list[Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]


def tried(call: Call, kinds: Sequence[Kind]) -> list[Kind]:
    """The kinds of the operation's results.

    kinds: of its tensors, in the order of the arguments. Raises Mistake and Unclear.
    """
    inputs = tensors(call[1:])
    drawn = [draw(x, kind, signed=True) for x, kind in zip(inputs, kinds, strict=True)]
    ranks = results(call, [a for a, _, _ in drawn]), results(call, [b for _, b, _ in drawn])
    if not all(map(finite, ranks[0])):  # such as a logarithm's, so try positive numbers
        drawn = [draw(x, kind, signed=False) for x, kind in zip(inputs, kinds, strict=True)]
        ranks = results(call, [a for a, _, _ in drawn]), results(call, [b for _, b, _ in drawn])
    whole: list[Tensor] | None = None
    for whole in wholes(call, [together for _, _, together in drawn], inputs, kinds):
        related = [relation(*three) for three in zip(*ranks, whole, strict=True)]
        if None not in related:
            return [kind for kind in related if kind is not None]
    if (shared := as_parts(inputs, kinds)) != list(kinds):
        return tried(call, shared)
    if any(not x.dtype.is_floating_point and x.dtype != torch.bool for x in inputs):
        raise Unclear
    raise mistake(call, kinds, drawn, ranks, whole)


def draw(x: Tensor, kind: Kind, signed: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The numbers of rank 0, of rank 1 and of one process. Whole numbers and masks keep their values."""
    if not x.dtype.is_floating_point:
        first = second = x
    else:
        generator = torch.Generator().manual_seed(x.dim())
        fill = torch.randn if signed else torch.rand
        first, second = (
            fill(x.shape, generator=generator, dtype=torch.float64) + (0 if signed else 0.1)
            for _ in range(2)
        )
        second = first if kind == R else second
    if kind.dim is not None:
        return first, second, torch.cat([first, second], kind.dim)
    together = {
        R: lambda: first,
        P: lambda: first + second,
        M: lambda: torch.maximum(first, second),
    }
    return first, second, together[kind]()


def results(
    call: Call, values: Sequence[Tensor], sized: Callable = lambda value: value
) -> list[Tensor]:
    """The operation's results with other tensors; `sized` changes its other arguments."""
    operation, args, named = call
    clones = iter([value.clone() for value in values])

    def other(value: Any) -> Any:
        if isinstance(value, Tensor):
            return next(clones)
        wide = isinstance(value, torch.dtype) and value.is_floating_point
        return torch.float64 if wide else value

    args, named = tree_map(other, (tuple(map(sized, args)), named))
    return tensors(operation(*args, **named))


def finite(x: Tensor) -> bool:
    return not x.dtype.is_floating_point or bool(x.isfinite().all())


def wholes(
    call: Call, values: Sequence[Tensor], inputs: Sequence[Tensor], kinds: Sequence[Kind]
) -> Iterator[list[Tensor]]:
    """The results of one process. If an argument is a part's size, the size of the whole is tried as well."""
    cut = {x.shape[kind.dim] for x, kind in zip(inputs, kinds, strict=True) if kind.dim is not None}
    longest = max((len(value) for value in call[1] if is_sizes(value)), default=0)
    places: list[int | None] = [None, *range(longest)] if cut else []

    def sized(value: Any, place: int | None) -> Any:
        if not is_sizes(value):
            return value
        return [
            2 * size if size in cut and place in (None, at) else size
            for at, size in enumerate(value)
        ]

    for change in [
        lambda value: value,
        *(lambda v, place=place: sized(v, place) for place in places),
    ]:
        try:
            yield results(call, values, change)
        except (RuntimeError, IndexError, ValueError):  # the shapes do not fit
            continue


def is_sizes(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(size, int) for size in value)


def as_parts(inputs: Sequence[Tensor], kinds: Sequence[Kind]) -> list[Kind]:
    """A copy with the sizes of a part, such as a mask, is a part whose halves are equal.

    The same holds for a copy of equal numbers along a dimension with the size of a part, such as the gradient
    of a sum.
    """
    parts = [(x, kind.dim) for x, kind in zip(inputs, kinds, strict=True) if kind.dim is not None]
    sizes, changed = {part.shape[dim] for part, dim in parts}, list(kinds)
    for place, (x, kind) in enumerate(zip(inputs, kinds, strict=True)):
        for part, dim in parts if kind == R and x.dim() else ():
            behind = dim - part.dim() + x.dim()
            if x.shape == part.shape[: x.dim()] and dim < x.dim():
                changed[place] = S(dim)
            elif behind >= 0 and x.shape == part.shape[part.dim() - x.dim() :]:
                changed[place] = S(behind)
        if changed[place] == R and parts:
            equal = (d for d in range(x.dim()) if x.shape[d] in sizes and is_equal_along(x, d))
            changed[place] = next(map(S, equal), R)
    return changed


def is_equal_along(x: Tensor, dim: int) -> bool:
    return bool((x == x.narrow(dim, 0, 1)).all())


def relation(first: Tensor, second: Tensor, whole: Tensor) -> Kind | None:
    """How the ranks' results and the result of one process are related; None if they are not."""
    if not first.numel() or (close(first, whole) and close(second, whole)):
        return R
    for dim in range(first.dim()):
        doubled = [*first.shape[:dim], 2 * first.shape[dim], *first.shape[dim + 1 :]]
        if list(whole.shape) == doubled and close(torch.cat([first, second], dim), whole):
            return S(dim)
    if first.dtype.is_floating_point and close(first + second, whole):
        return P
    if first.dtype.is_floating_point and close(torch.maximum(first, second), whole):
        return M
    return None


def close(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape:
        return False
    if not a.dtype.is_floating_point:
        return torch.equal(a, b)
    return torch.allclose(a, b, rtol=1e-6, atol=1e-9)


def mistake(
    call: Call, kinds: Sequence[Kind], drawn: Sequence[tuple[Tensor, ...]],
    ranks: tuple[list[Tensor], list[Tensor]], whole: list[Tensor] | None,
) -> Mistake:  # fmt: skip
    """The sentence on an operation whose results fit nothing, and the sentence for backward."""
    name = plain(call)
    for results_of_ranks in zip(*ranks, whole or [], strict=False):
        for (copy, *_), kind in zip(drawn, kinds, strict=True):
            if kind == R and is_copy(*results_of_ranks, copy):
                fault = f"{name} adds a copy, shape {tuple(copy.shape)}, to each term of a sum"
                forward = "The sum over {axis} will have it once for each rank."
                return Mistake(f"{fault}. {forward}", f"{fault}. {NO_SUM}")
    if P in kinds:
        return of_terms(name, [kind for kind in kinds if kind != R])
    cut = next((kind.dim for kind in kinds if kind.dim is not None), None)
    if name == "mean":
        return Mistake(
            f"mean over dimension {cut}, of which a rank holds a part, is not a term of a sum. Divide a sum "
            "by the count of all ranks."
        )
    return Mistake(
        f"{name} needs all of dimension {cut}, and a rank holds a part of it. Gather the parts or sum over "
        "{axis} first."
    )


def of_terms(name: str, kinds: Sequence[Kind]) -> Mistake:
    """Terms where a whole tensor is needed. kinds: P, and the kinds of other tensors that are not copies."""
    fault = f"{name} is not linear, and is applied to a term of a sum"
    if len(kinds) > 1:
        other = next((kind.words for kind in kinds if kind != P), "another one")
        fault = f"{name} combines a term of a sum with {other}"
    return Mistake(
        f"{fault}. Sum over {{axis}} first.",
        f"{name} needs the whole gradient, and gets a term of it. {NO_SUM}",
    )


def is_copy(first: Tensor, second: Tensor, together: Tensor, copy: Tensor) -> bool:
    """Is the broadcast copy the excess in the ranks' sum?"""
    if not copy.dtype.is_floating_point:
        return False
    try:
        return close(first + second - together, copy.expand_as(together))
    except RuntimeError:  # the shapes do not fit
        return False


def plain(call: Call) -> str:
    """The operation's name as a student knows it, so add_ is add, and _softmax is softmax."""
    return call[0]._overloadpacket.__name__.strip("_")
