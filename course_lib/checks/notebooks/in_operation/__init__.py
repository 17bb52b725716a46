"""The checks of notebook 12: is it fast, is it healthy, and what when a rank dies?"""

from course_lib.checks.notebooks.in_operation.bits import odd_ranks
from course_lib.checks.notebooks.in_operation.interval import best_interval
from course_lib.checks.notebooks.in_operation.lateness import find_straggler
from course_lib.checks.notebooks.in_operation.local import local_steps
from course_lib.checks.notebooks.in_operation.metrics import step_metrics
from course_lib.checks.notebooks.in_operation.overlapping import async_checkpoint
from course_lib.checks.notebooks.in_operation.quiz import questions
from course_lib.checks.notebooks.in_operation.reading import read_plan
from course_lib.checks.notebooks.in_operation.remembering import capture
from course_lib.checks.notebooks.in_operation.saving import commit
from course_lib.checks.notebooks.in_operation.shares import breakdown
from course_lib.checks.notebooks.in_operation.symptoms import symptoms
from course_lib.checks.notebooks.in_operation.writing import write_plan

__all__ = [
    "capture",
    "commit",
    "read_plan",
    "best_interval",
    "breakdown",
    "find_straggler",
    "symptoms",
    "questions",
    "step_metrics",
    "write_plan",
    "async_checkpoint",
    "odd_ranks",
    "local_steps",
]
