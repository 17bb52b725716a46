"""Estimates: where do the bytes and the FLOPs of training go, before anything is rented?

    formulas.py    parameters, step_flops, activation_bytes, ...: from a configuration alone
    saved.py       SavedBytes: the bytes that autograd keeps for backward, by the module that kept them
    timeline.py    MemoryTimeline: the bytes alive at each operation of a step, by what holds them
    plan.py        first_that_fits: the cheapest layout for a number of GPUs, and the bill of every layout
    pictures.py    memory_figure, strategy_map: the timeline and the layouts drawn
    calculator.py  calculator: the bill with sliders, in a notebook

The formulas are those of `course_lib.facts`, under the names that notebook 01 gives them. The figures need
matplotlib and the course's colours, and are imported from their modules. saved.py and timeline.py import
torch only.
"""

from course_lib.estimates.formulas import (
    activation_bytes,
    compute_optimal,
    crossover,
    days,
    least_tokens,
    matmul_seconds,
    parameters,
    recipe_bytes,
    ridge,
    step_flops,
    tokens_per_second_per_gpu,
)
from course_lib.estimates.plan import bills, first_that_fits
from course_lib.estimates.saved import SavedBytes
from course_lib.estimates.timeline import KINDS, MemoryTimeline, Moment, held_bytes

__all__ = [
    "KINDS",
    "MemoryTimeline",
    "Moment",
    "SavedBytes",
    "activation_bytes",
    "bills",
    "compute_optimal",
    "crossover",
    "days",
    "first_that_fits",
    "held_bytes",
    "least_tokens",
    "matmul_seconds",
    "parameters",
    "recipe_bytes",
    "ridge",
    "step_flops",
    "tokens_per_second_per_gpu",
]
