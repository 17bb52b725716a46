"""The checks of notebook 12: is it fast, is it healthy, and what when a rank dies?"""

from course_lib.checks.notebooks.in_operation.lateness import find_straggler
from course_lib.checks.notebooks.in_operation.quiz import questions
from course_lib.checks.notebooks.in_operation.shares import breakdown
from course_lib.checks.notebooks.in_operation.symptoms import symptoms

__all__ = ["breakdown", "find_straggler", "questions", "symptoms"]
