"""The checks of notebook 04: which of the N copies of everything did we need?"""

from course_lib.checks.zero.cutting import flatten_and_shard
from course_lib.checks.zero.memory import memory_prediction

__all__ = ["flatten_and_shard", "memory_prediction"]
