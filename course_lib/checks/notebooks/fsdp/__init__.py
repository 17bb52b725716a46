"""The checks of notebook 05: how is ZeRO-3 made fast?"""

from course_lib.checks.notebooks.fsdp.clip import clip_grad_norm
from course_lib.checks.notebooks.fsdp.gather_int8 import all_gather_int8
from course_lib.checks.notebooks.fsdp.hybrid import hybrid
from course_lib.checks.notebooks.fsdp.precision import two_precisions
from course_lib.checks.notebooks.fsdp.predictions import predictions
from course_lib.checks.notebooks.fsdp.prefetched import prefetched_module
from course_lib.checks.notebooks.fsdp.quiz import questions
from course_lib.checks.notebooks.fsdp.schedule import fsdp_schedule

__all__ = [
    "predictions",
    "fsdp_schedule",
    "prefetched_module",
    "two_precisions",
    "hybrid",
    "clip_grad_norm",
    "questions",
    "all_gather_int8",
]
