"""The checks of notebook 13: one model in every layout."""

from course_lib.checks.notebooks.capstone.audit import audit
from course_lib.checks.notebooks.capstone.choosing import cluster
from course_lib.checks.notebooks.capstone.costs import five_costs
from course_lib.checks.notebooks.capstone.quiz import questions
from course_lib.checks.notebooks.capstone.rehearsed import dry_step
from course_lib.checks.notebooks.capstone.suspects import suspects

__all__ = ["audit", "cluster", "dry_step", "five_costs", "questions", "suspects"]
