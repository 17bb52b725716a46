"""The checks of notebook 09: what can be stored smaller, later, or not at all?"""

from course_lib.checks.notebooks.precision_and_memory.formats import round_to

__all__ = ["round_to"]
