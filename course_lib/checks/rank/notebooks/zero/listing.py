"""Recipe (see `harness`): call a function with a list of tensors, and report the result as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from course_lib.checks.rank.harness import describe, plain
from course_lib.checks.wire import Count, Place

_arange, _Tensor = torch.arange, torch.Tensor


@dataclass
class Kind:
    """A part of the result: its type, and more of a tensor. history: whether gradients flow back."""

    name: str
    dtype: str = ""
    dimensions: Count = 0
    history: bool = False


@dataclass
class Answer:
    """The outcome of a call. kinds: of the parts of the result; after: the tensors after the call."""

    value: Any = None
    kinds: list[Kind] = field(default_factory=list)
    after: Any = None
    error: Place | None = None


@dataclass
class Answers:
    answers: list[Answer]


def call_with_tensors(
    objects: list, tensors: dict, groups: list, instructions: dict
) -> tuple[Answers, dict[str, Any]]:
    """Call the first object once for each of instructions["calls"], each a dict of:

    tensors: descriptions {"shape", "first", "dtype", "transposed"}: the numbers first, first + 1, ... in
        the order of the elements; transposed: a matrix whose memory is column by column
    args: plain data that follows the list of tensors
    parameter: whether they are parameters, which require a gradient
    """
    answers: list[Answer] = []
    for call in instructions["calls"]:
        listed = [made(described, call.get("parameter", False)) for described in call["tensors"]]
        try:
            result = objects[0](listed, *call["args"])
        except Exception as error:
            answers.append(Answer(error=describe(error)))
            continue
        parts = list(result) if isinstance(result, list | tuple) else []
        kinds = [kind(part) for part in parts]
        answers.append(Answer(plain(result), kinds, plain(listed)))
    return Answers(answers), {}


def kind(part: Any) -> Kind:
    if not isinstance(part, _Tensor):
        return Kind(type(part).__name__)
    return Kind(type(part).__name__, str(part.dtype), part.dim(), part.grad_fn is not None)


def made(described: dict, parameter: bool) -> torch.Tensor:
    """The tensor of a description."""
    shape, first = described["shape"], described["first"]
    count = 1
    for size in shape:
        count *= size
    dtype = getattr(torch, described.get("dtype", "float32"))
    values = _arange(first, first + count).to(dtype).reshape(shape)
    if described.get("transposed"):
        values = values.t().contiguous().t()
    return torch.nn.Parameter(values) if parameter else values
