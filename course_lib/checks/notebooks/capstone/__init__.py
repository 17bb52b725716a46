"""The checks of notebook 13: one model in every layout."""

from course_lib.checks.notebooks.capstone.audit import audit
from course_lib.checks.notebooks.capstone.broken_steps import broken_steps
from course_lib.checks.notebooks.capstone.choosing import cluster
from course_lib.checks.notebooks.capstone.costs import five_costs
from course_lib.checks.notebooks.capstone.quiz import questions
from course_lib.checks.notebooks.capstone.rehearsed import dry_step
from course_lib.checks.notebooks.capstone.searching import smallest_failing
from course_lib.checks.notebooks.capstone.spreading import distribute
from course_lib.checks.notebooks.capstone.stepping import make_step, make_step_with_zero
from course_lib.checks.notebooks.capstone.surviving import train
from course_lib.checks.notebooks.capstone.suspects import suspects

__all__ = [
    "distribute",
    "make_step",
    "make_step_with_zero",
    "smallest_failing",
    "broken_steps",
    "dry_step",
    "suspects",
    "five_costs",
    "train",
    "cluster",
    "questions",
    "audit",
]
