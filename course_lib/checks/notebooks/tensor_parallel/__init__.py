"""The checks of notebook 06: how is one layer split, and what must its parts exchange?"""

from course_lib.checks.notebooks.tensor_parallel.attention import parallel_heads, parallel_self_attention
from course_lib.checks.notebooks.tensor_parallel.conjugate import conjugate_functions
from course_lib.checks.notebooks.tensor_parallel.embedding import vocab_parallel_embedding
from course_lib.checks.notebooks.tensor_parallel.kinds import kinds
from course_lib.checks.notebooks.tensor_parallel.linear import column_parallel_linear, row_parallel_linear
from course_lib.checks.notebooks.tensor_parallel.mend import mend
from course_lib.checks.notebooks.tensor_parallel.prediction import predictions
from course_lib.checks.notebooks.tensor_parallel.quiz import questions
from course_lib.checks.notebooks.tensor_parallel.sequence import sequence_parallel
from course_lib.checks.notebooks.tensor_parallel.swap import swap
from course_lib.checks.notebooks.tensor_parallel.vocabulary import vocab_parallel_cross_entropy

__all__ = [
    "conjugate_functions",
    "column_parallel_linear",
    "row_parallel_linear",
    "kinds",
    "mend",
    "parallel_heads",
    "parallel_self_attention",
    "vocab_parallel_embedding",
    "vocab_parallel_cross_entropy",
    "sequence_parallel",
    "predictions",
    "swap",
    "questions",
]
