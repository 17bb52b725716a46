"""The checks of notebook 01: where do the bytes and the FLOPs go, and when is one GPU not enough?"""

from course_lib.checks.notebooks.why_distribute.activations import activation_bytes
from course_lib.checks.notebooks.why_distribute.budgets import budgets, crossover
from course_lib.checks.notebooks.why_distribute.flops import step_flops
from course_lib.checks.notebooks.why_distribute.layouts import first_that_fits
from course_lib.checks.notebooks.why_distribute.meter import saved_bytes
from course_lib.checks.notebooks.why_distribute.quiz import questions
from course_lib.checks.notebooks.why_distribute.recipes import recipes
from course_lib.checks.notebooks.why_distribute.sizes import parameters
from course_lib.checks.notebooks.why_distribute.speed import roofline

__all__ = [
    "parameters",
    "step_flops",
    "saved_bytes",
    "activation_bytes",
    "recipes",
    "roofline",
    "budgets",
    "first_that_fits",
    "questions",
    "crossover",
]
