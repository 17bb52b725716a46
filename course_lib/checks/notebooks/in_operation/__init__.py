"""The checks of notebook 12: is it fast, is it healthy, and what when a rank dies?"""

from course_lib.checks.notebooks.in_operation.reading import read_plan
from course_lib.checks.notebooks.in_operation.remembering import capture
from course_lib.checks.notebooks.in_operation.saving import commit

__all__ = ["capture", "commit", "read_plan"]
