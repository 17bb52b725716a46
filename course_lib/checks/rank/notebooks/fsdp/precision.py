"""Recipes (see `harness`) around `harness.call`, for functions in two precisions. They decide nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from course_lib.checks.rank import frozen
from course_lib.checks.rank.harness import Answer, Called, CallInstructions, call, describe

_add = torch.Tensor.add_
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


@dataclass(frozen=True)
class InDtypeInstructions(CallInstructions):
    """reduce_dtype: the name of a dtype, which is passed by that name."""

    reduce_dtype: str = "float32"


@dataclass(frozen=True)
class StepsInstructions(CallInstructions):
    """steps: how often `step` is added to the tensor named `master` after a call."""

    master: str = ""
    steps: int = 0
    step: float = 0.0


def with_dtype(
    objects: list, tensors: dict[str, torch.Tensor], groups: list, instructions: InDtypeInstructions
) -> tuple[Called, dict[str, Any]]:
    """One call, with reduce_dtype."""
    function = objects[instructions.object]
    in_dtype = partial(function, reduce_dtype=DTYPES[instructions.reduce_dtype])
    return call([in_dtype], tensors, groups, replace(instructions, object=0))


def refused(
    objects: list, tensors: dict[str, torch.Tensor], groups: list, instructions: CallInstructions
) -> tuple[Answer, dict[str, Any]]:
    """One call, whose exception is the answer; a stub's NotImplementedError is not caught."""
    try:
        call(objects, tensors, groups, instructions)
    except NotImplementedError:
        raise
    except Exception as error:
        return Answer(error=describe(error)), {}
    return Answer(), {}


def steps(
    objects: list, tensors: dict[str, torch.Tensor], groups: list, instructions: StepsInstructions
) -> tuple[Called, dict[str, Any]]:
    """A call, and as often as asked for a step of the master and a call."""
    master, step = tensors[instructions.master], instructions.step
    reply = call(objects, tensors, groups, instructions)
    for _ in range(instructions.steps):
        with frozen.no_grad():
            _add(master, step)
        reply = call(objects, tensors, groups, instructions)
    return reply
