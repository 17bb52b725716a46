"""The checks of notebook 13: one model in every layout."""

from course_lib.checks.notebooks.capstone.costs import five_costs
from course_lib.checks.notebooks.capstone.quiz import questions
from course_lib.checks.notebooks.capstone.rehearsed import dry_step
from course_lib.checks.notebooks.capstone.searching import smallest_failing
from course_lib.checks.notebooks.capstone.suspects import suspects

__all__ = ["dry_step", "five_costs", "questions", "smallest_failing", "suspects"]
