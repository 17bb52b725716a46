"""The checks of notebook 12: is it fast, is it healthy, and what when a rank dies?"""

from course_lib.checks.notebooks.in_operation.interval import best_interval
from course_lib.checks.notebooks.in_operation.overlapping import async_checkpoint
from course_lib.checks.notebooks.in_operation.reading import read_plan
from course_lib.checks.notebooks.in_operation.remembering import capture
from course_lib.checks.notebooks.in_operation.saving import commit
from course_lib.checks.notebooks.in_operation.writing import write_plan

__all__ = ["async_checkpoint", "best_interval", "capture", "commit", "read_plan", "write_plan"]
