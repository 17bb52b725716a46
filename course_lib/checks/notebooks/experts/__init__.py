"""The checks of notebook 11: what does a mixture of experts send, and to whom?"""

from course_lib.checks.notebooks.experts.balance import load_balancing_loss
from course_lib.checks.notebooks.experts.bias import update_bias
from course_lib.checks.notebooks.experts.mixture import moe
from course_lib.checks.notebooks.experts.nodes import node_limited
from course_lib.checks.notebooks.experts.parallel import expert_parallel_moe
from course_lib.checks.notebooks.experts.prediction import all_to_all_bytes
from course_lib.checks.notebooks.experts.queues import queue
from course_lib.checks.notebooks.experts.quiz import questions
from course_lib.checks.notebooks.experts.routing import route
from course_lib.checks.notebooks.experts.travel import exchange

__all__ = [
    "all_to_all_bytes",
    "exchange",
    "expert_parallel_moe",
    "load_balancing_loss",
    "moe",
    "node_limited",
    "questions",
    "queue",
    "route",
    "update_bias",
]
