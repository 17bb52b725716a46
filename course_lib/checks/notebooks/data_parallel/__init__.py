"""The checks of notebook 03: how replicas stay in step, and how the cost of it is hidden."""

from course_lib.checks.notebooks.data_parallel.bucketed import bucketed_data_parallel
from course_lib.checks.notebooks.data_parallel.formulas import predictions
from course_lib.checks.notebooks.data_parallel.int8 import int8_all_reduce
from course_lib.checks.notebooks.data_parallel.naive import naive_data_parallel
from course_lib.checks.notebooks.data_parallel.one_bit_adam import one_bit_adam
from course_lib.checks.notebooks.data_parallel.powersgd import powersgd
from course_lib.checks.notebooks.data_parallel.quiz import questions
from course_lib.checks.notebooks.data_parallel.sampling import shard_indices
from course_lib.checks.notebooks.data_parallel.sparse import topk_all_reduce

__all__ = [
    "shard_indices",
    "naive_data_parallel",
    "bucketed_data_parallel",
    "topk_all_reduce",
    "int8_all_reduce",
    "predictions",
    "questions",
    "powersgd",
    "one_bit_adam",
]
