"""The checks of notebook 07: how are layers split over ranks without the ranks waiting?"""

from course_lib.checks.notebooks.pipeline.dual import dualpipe
from course_lib.checks.notebooks.pipeline.interleaved import interleaved_one_f_one_b
from course_lib.checks.notebooks.pipeline.prediction import predictions
from course_lib.checks.notebooks.pipeline.quiz import questions
from course_lib.checks.notebooks.pipeline.running import run_schedule
from course_lib.checks.notebooks.pipeline.schedules import gpipe, naive, one_f_one_b
from course_lib.checks.notebooks.pipeline.stash import pipedream_stage
from course_lib.checks.notebooks.pipeline.zero_bubble import zero_bubble_h1

__all__ = [
    "naive",
    "gpipe",
    "one_f_one_b",
    "interleaved_one_f_one_b",
    "zero_bubble_h1",
    "predictions",
    "run_schedule",
    "questions",
    "pipedream_stage",
    "dualpipe",
]
