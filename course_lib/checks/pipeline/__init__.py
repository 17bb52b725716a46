"""The checks of notebook 07: how are layers split over ranks without the ranks waiting?"""

from course_lib.checks.pipeline.dual import dualpipe
from course_lib.checks.pipeline.interleaved import interleaved_one_f_one_b
from course_lib.checks.pipeline.schedules import gpipe, naive, one_f_one_b
from course_lib.checks.pipeline.zero_bubble import zero_bubble_h1

__all__ = [
    "dualpipe",
    "gpipe",
    "interleaved_one_f_one_b",
    "naive",
    "one_f_one_b",
    "zero_bubble_h1",
]
