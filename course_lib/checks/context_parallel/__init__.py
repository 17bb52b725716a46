"""The checks of notebook 08: how does attention work on a sequence that no rank holds?"""

from course_lib.checks.context_parallel.merge import online_softmax_merge
from course_lib.checks.context_parallel.tiles import tiled_attention

__all__ = [
    "online_softmax_merge",
    "tiled_attention",
]
