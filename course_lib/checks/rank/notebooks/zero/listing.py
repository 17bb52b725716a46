"""Recipe (see `harness`): call a function with a list of tensors, and report the result as plain data."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch

from course_lib.checks.rank import frozen
from course_lib.checks.rank.harness import describe, plain
from course_lib.checks.wire import Count, Instructions, Place


@dataclass
class Kind:
    """A part of the result: its type, and more of a tensor. history: whether gradients flow back."""

    name: str
    dtype: str = ""
    dimensions: Count = 0
    history: bool = False


@dataclass
class Answer:
    """The outcome of a call. kinds: of the parts of the result; after: the tensors after the call.

    untrained: how many of these tensors no longer require a gradient.
    """

    value: Any = None
    kinds: list[Kind] = field(default_factory=list)
    after: Any = None
    untrained: Count = 0
    error: Place | None = None


@dataclass
class Answers:
    answers: list[Answer]


@dataclass(frozen=True)
class Numbers:
    """A parameter of the numbers first, first + 1, ... in the order of its elements.

    transposed: a matrix whose memory is column by column.
    """

    shape: list[int]
    first: int
    dtype: str
    transposed: bool


@dataclass(frozen=True)
class ListingCall:
    """args: plain data that follows the list of parameters."""

    parameters: list[Numbers]
    args: list[Any]


@dataclass(frozen=True)
class ListingInstructions(Instructions):
    calls: list[ListingCall]

    def answers(self) -> int:
        return len(self.calls)


def call_with_tensors(
    objects: list, tensors: dict, groups: list, instructions: ListingInstructions
) -> tuple[Answers, dict[str, Any]]:
    """Call the first object once for each of the calls."""
    answers: list[Answer] = []
    for call in instructions.calls:
        listed = [made(described) for described in call.parameters]
        try:
            result = objects[0](listed, *call.args)
        except Exception as error:
            answers.append(Answer(error=describe(error)))
            continue
        parts = list(result) if isinstance(result, list | tuple) else []
        kinds = [kind(part) for part in parts]
        untrained = sum(not tensor.requires_grad for tensor in listed)
        answers.append(Answer(plain(result), kinds, plain(listed), untrained))
    return Answers(answers), {}


def kind(part: Any) -> Kind:
    if not isinstance(part, frozen.Tensor):
        return Kind(type(part).__name__)
    return Kind(type(part).__name__, str(part.dtype), part.dim(), part.grad_fn is not None)


def made(numbers: Numbers) -> torch.nn.Parameter:
    """The parameter of a description."""
    count = math.prod(numbers.shape)
    values = frozen.arange(numbers.first, numbers.first + count).to(getattr(torch, numbers.dtype))
    values = values.reshape(numbers.shape)
    return frozen.Parameter(values.t().contiguous().t() if numbers.transposed else values)
