"""Recipe (see `harness`) that calls functions of a model's sizes, and of plain numbers.

An argument {"config": sizes} is a GPTConfig with these sizes, {"tuple": [...]} a tuple, anything else is
itself.
"""

from __future__ import annotations

from typing import Any

import torch

from course_lib.checks.rank.harness import Answers, EvaluateInstructions, evaluate
from course_lib.models.config import GPTConfig

_GPTConfig, _evaluate = GPTConfig, evaluate


def argument(described: Any) -> Any:
    if isinstance(described, dict) and "config" in described:
        return _GPTConfig(**described["config"])
    if isinstance(described, dict) and "tuple" in described:
        return tuple(described["tuple"])
    return described


def evaluate_sizes(
    objects: list, tensors: dict[str, torch.Tensor], groups: list, instructions: EvaluateInstructions
) -> tuple[Answers, dict[str, Any]]:
    """`evaluate`, of these arguments."""
    calls = [
        [index, [argument(described) for described in args], *named]
        for index, args, *named in instructions.calls
    ]
    return _evaluate(objects, tensors, groups, EvaluateInstructions(calls))
