"""The checks of notebook 00: ranks, messages, and programs that hang."""

from course_lib.checks.notebooks.first_ranks.greeting import hello, message_prediction
from course_lib.checks.notebooks.first_ranks.messages import exchange, ring_shift
from course_lib.checks.notebooks.first_ranks.quiz import diagnoses, questions
from course_lib.checks.notebooks.first_ranks.repairs import collect, global_mean, neighbour_sum

__all__ = [
    "hello",
    "message_prediction",
    "exchange",
    "ring_shift",
    "neighbour_sum",
    "collect",
    "global_mean",
    "diagnoses",
    "questions",
]
