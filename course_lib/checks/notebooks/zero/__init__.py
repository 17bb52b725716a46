"""The checks of notebook 04: which of the N copies of everything did we need?"""

from course_lib.checks.notebooks.zero.cutting import flatten_and_shard
from course_lib.checks.notebooks.zero.dealing import deal
from course_lib.checks.notebooks.zero.memory import memory_prediction
from course_lib.checks.notebooks.zero.module import zero3_module
from course_lib.checks.notebooks.zero.offload import offload
from course_lib.checks.notebooks.zero.orthogonal import muon_step
from course_lib.checks.notebooks.zero.quiz import questions
from course_lib.checks.notebooks.zero.stages import zero1_optimizer, zero2_optimizer
from course_lib.checks.notebooks.zero.unit import zero3_unit

__all__ = [
    "memory_prediction",
    "flatten_and_shard",
    "zero1_optimizer",
    "zero2_optimizer",
    "zero3_unit",
    "zero3_module",
    "questions",
    "offload",
    "deal",
    "muon_step",
]
