"""Comparing tensors: equal but for rounding, the worst element, and the slip whose values were found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from course_lib.checks import words
from course_lib.checks.sentence import Sentence

Tensors = Mapping[str, Tensor]
# Of the largest element: some hundred times the rounding of an operation, and far below any mistake's share.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-5, torch.bfloat16: 4e-2}
LEAST = 1e-3  # taken for the largest element if all are smaller


@dataclass(frozen=True)
class Slip:
    """A way to go wrong: the sentence that names it, and what it gives.

    Most slips stand in a mapping from sentences to wrong results. A list of `Slip` is for sentences that more
    than one result has, and for the frames' lines on values. There `gives` returns tensors by name: of a
    layer or a schedule, gives(k) those of the k-th rank; of a function's call, gives() those, or whether it
    went so.
    """

    says: str
    gives: Callable[..., Any]


def near(actual: Tensor, wanted: Tensor, tolerance: float = 0, least: float = LEAST) -> Tensor:
    """Elementwise: equal but for rounding, to a share of the largest finite element.

    NaN is near to nothing, infinity to itself, and a whole number to itself. tolerance: the share, else by
    the dtype of `wanted`; `least` stands for the largest element if all are smaller.
    """
    if not wanted.is_floating_point():
        return actual == wanted
    finite = wanted.isfinite()
    largest = float(wanted[finite].abs().max()) if bool(finite.any()) else 0.0
    bound = (tolerance or TOLERANCE[wanted.dtype]) * max(largest, least)
    return torch.where(finite, (actual - wanted).abs() <= bound, actual == wanted)


def close(actual: Tensor, wanted: Tensor, tolerance: float = 0, least: float = LEAST) -> bool:
    """Of one shape, and `near` everywhere."""
    return actual.shape == wanted.shape and bool(near(actual, wanted, tolerance, least).all())


def fits(slip: Tensors, name: str, actual: Tensors) -> bool:
    """Whether the slip gives the tensors that were found, which are wrong in `name`."""
    return name in slip and all(key in actual and close(actual[key], tensor) for key, tensor in slip.items())


def told_by(slips: Iterable[Slip], name: str, actual: Tensors, *place: int) -> str:
    """The sentence of the first slip that gives the tensors found, wrong in `name`; "" if none does.

    place: arguments for the slips' `gives`.
    """
    return next((slip.says for slip in slips if fits(slip.gives(*place), name, actual)), "")


def worst(actual: Tensor, wanted: Tensor) -> tuple[list[int], str, str]:
    """The element that is most wrong: its place, its value, and the right one."""
    off = torch.where(actual == wanted, 0.0, (actual.double() - wanted.double()).abs())
    at = int(off.nan_to_num(float("inf"), posinf=float("inf")).flatten().argmax())
    got, want = words.apart(float(actual.flatten()[at]), float(wanted.flatten()[at]))
    return [int(i) for i in torch.unravel_index(torch.tensor(at), wanted.shape)], got, want


def difference(general: str, actual: Tensor, wanted: Tensor, what: str = "element {} is ") -> Sentence:
    """`general`, and the value of the worst element.

    `what` names it, with {} for its place; a tensor without dimensions has no place, and is named "it".
    """
    where, got, want = worst(actual, wanted)
    named = what.format(where) if where else what and "it is "
    return Sentence(f"{general}: {named}{got} instead of {want}.", f"{general}.")
