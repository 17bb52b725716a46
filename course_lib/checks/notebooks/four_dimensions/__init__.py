"""The checks of notebook 10: how are the axes combined?"""

from course_lib.checks.notebooks.four_dimensions.axes import axis_bytes
from course_lib.checks.notebooks.four_dimensions.choosing import best_layout
from course_lib.checks.notebooks.four_dimensions.clipping import clip_grad_norm
from course_lib.checks.notebooks.four_dimensions.fitting import memory_per_gpu
from course_lib.checks.notebooks.four_dimensions.places import coordinates
from course_lib.checks.notebooks.four_dimensions.quiz import questions
from course_lib.checks.notebooks.four_dimensions.reading import my_part
from course_lib.checks.notebooks.four_dimensions.replaying import replay
from course_lib.checks.notebooks.four_dimensions.step import hybrid_step
from course_lib.checks.notebooks.four_dimensions.timing import step_seconds

__all__ = [
    "coordinates",
    "my_part",
    "hybrid_step",
    "clip_grad_norm",
    "axis_bytes",
    "memory_per_gpu",
    "step_seconds",
    "best_layout",
    "questions",
    "replay",
]
