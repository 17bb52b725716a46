"""The checks of notebook 13: one model in every layout."""

from course_lib.checks.notebooks.capstone.spreading import distribute
from course_lib.checks.notebooks.capstone.stepping import make_step, make_step_with_zero

__all__ = ["distribute", "make_step", "make_step_with_zero"]
