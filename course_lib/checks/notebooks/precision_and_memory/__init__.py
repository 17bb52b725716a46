"""The checks of notebook 09: what can be stored smaller, later, or not at all?"""

from course_lib.checks.notebooks.precision_and_memory.checkpointing import checkpoint
from course_lib.checks.notebooks.precision_and_memory.chunks import chunked_loss
from course_lib.checks.notebooks.precision_and_memory.eight_bit import adam8bit
from course_lib.checks.notebooks.precision_and_memory.formats import round_to
from course_lib.checks.notebooks.precision_and_memory.quiz import questions
from course_lib.checks.notebooks.precision_and_memory.rounding import stochastic_round
from course_lib.checks.notebooks.precision_and_memory.scaler import loss_scaler
from course_lib.checks.notebooks.precision_and_memory.scaling import quantize
from course_lib.checks.notebooks.precision_and_memory.segments import best_segment

__all__ = [
    "round_to",
    "loss_scaler",
    "stochastic_round",
    "quantize",
    "adam8bit",
    "best_segment",
    "checkpoint",
    "questions",
    "chunked_loss",
]
