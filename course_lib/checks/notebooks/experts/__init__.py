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
    "route",
    "moe",
    "exchange",
    "expert_parallel_moe",
    "all_to_all_bytes",
    "load_balancing_loss",
    "update_bias",
    "questions",
    "queue",
    "node_limited",
]
