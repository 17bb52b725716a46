"""Recipe (see `harness`): call a function with a list of tensors, and tell what came back as plain data."""

from __future__ import annotations

from typing import Any

import torch

from course_lib.checks.rank.harness import describe, plain

_arange, _Tensor = torch.arange, torch.Tensor


def call_with_tensors(
    objects: list, tensors: dict, groups: list, instructions: dict
) -> tuple[dict, dict[str, Any]]:
    """Call the first object once for each of instructions["calls"], each a dict of:

    tensors: descriptions {"shape", "first", "dtype", "transposed"}: the numbers first, first + 1, ... in
        the order of the elements; transposed: a matrix whose memory is column by column
    args: plain data that follows the list of tensors
    parameter: whether they are parameters, which require a gradient

    "answers" holds for each call {"value": what was returned, "kinds": of each part [type, dtype, number of
    dimensions, whether it has a gradient history], "after": the tensors after the call}, or {"error": [type,
    text, place]}.
    """
    answers: list[dict] = []
    for call in instructions["calls"]:
        given = [made(one, call.get("parameter", False)) for one in call["tensors"]]
        try:
            result = objects[0](given, *call["args"])
        except Exception as error:
            answers.append({"error": describe(error)})
            continue
        parts = list(result) if isinstance(result, list | tuple) else []
        kinds = [kind(part) for part in parts]
        answers.append({"value": plain(result), "kinds": kinds, "after": plain(given)})
    return {"answers": answers}, {}


def kind(part: Any) -> list:
    """[type, dtype, number of dimensions, whether it has a gradient history]."""
    if not isinstance(part, _Tensor):
        return [type(part).__name__, "", 0, False]
    return [type(part).__name__, str(part.dtype), part.dim(), part.grad_fn is not None]


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
