"""The checks of notebook 08: how does attention work on a sequence that no rank holds?"""

from course_lib.checks.notebooks.context_parallel.layout import zigzag
from course_lib.checks.notebooks.context_parallel.merge import online_softmax_merge
from course_lib.checks.notebooks.context_parallel.prediction import predictions
from course_lib.checks.notebooks.context_parallel.quiz import questions
from course_lib.checks.notebooks.context_parallel.ring import ring_attention, ring_forward
from course_lib.checks.notebooks.context_parallel.tiles import tiled_attention
from course_lib.checks.notebooks.context_parallel.ulysses import ulysses_attention

__all__ = [
    "online_softmax_merge",
    "tiled_attention",
    "ring_forward",
    "ring_attention",
    "zigzag",
    "ulysses_attention",
    "predictions",
    "questions",
]
