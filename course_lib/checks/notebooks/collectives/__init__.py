"""The checks of notebook 02: how N ranks agree on a sum, and what it costs them."""

from course_lib.checks.notebooks.collectives.doubling import recursive_doubling_all_reduce
from course_lib.checks.notebooks.collectives.formulas import predictions, ring_prediction
from course_lib.checks.notebooks.collectives.hierarchical import hierarchical_all_reduce
from course_lib.checks.notebooks.collectives.moves import all_gather, all_to_all
from course_lib.checks.notebooks.collectives.quiz import questions
from course_lib.checks.notebooks.collectives.ring import ring_all_reduce
from course_lib.checks.notebooks.collectives.scatter import reduce_scatter
from course_lib.checks.notebooks.collectives.tree import broadcast

__all__ = [
    "broadcast",
    "reduce_scatter",
    "all_gather",
    "ring_prediction",
    "ring_all_reduce",
    "recursive_doubling_all_reduce",
    "all_to_all",
    "hierarchical_all_reduce",
    "predictions",
    "questions",
]
