"""The checks of notebook 13: one model in every layout."""

from course_lib.checks.notebooks.capstone.broken_steps import broken_steps
from course_lib.checks.notebooks.capstone.searching import smallest_failing
from course_lib.checks.notebooks.capstone.surviving import train

__all__ = ["broken_steps", "smallest_failing", "train"]
