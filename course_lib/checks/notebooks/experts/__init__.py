"""The checks of notebook 11: experts, and the rows that travel to them."""

from course_lib.checks.notebooks.experts.parallel import expert_parallel_moe
from course_lib.checks.notebooks.experts.prediction import all_to_all_bytes
from course_lib.checks.notebooks.experts.quiz import questions
from course_lib.checks.notebooks.experts.travel import exchange

__all__ = ["all_to_all_bytes", "exchange", "expert_parallel_moe", "questions"]
