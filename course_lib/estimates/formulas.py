"""The closed forms of notebook 01 under its names: each takes a configuration, or plain numbers.

`course_lib.facts` has them with their derivations and sources.
"""

from __future__ import annotations

from course_lib.facts import (
    activation_bytes,
    compute_optimal,
    crossover,
    days,
    least_tokens,
    matmul_seconds,
    recipe_bytes,
    ridge,
    tokens_per_second_per_gpu,
)
from course_lib.facts import parameters_by_part as parameters
from course_lib.facts import transformer_flops as step_flops

__all__ = [
    "activation_bytes",
    "compute_optimal",
    "crossover",
    "days",
    "least_tokens",
    "matmul_seconds",
    "parameters",
    "recipe_bytes",
    "ridge",
    "step_flops",
    "tokens_per_second_per_gpu",
]
