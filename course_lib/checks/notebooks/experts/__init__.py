"""The checks of notebook 11: what does a mixture of experts send, and to whom?"""

from course_lib.checks.notebooks.experts.balance import load_balancing_loss, update_bias
from course_lib.checks.notebooks.experts.mixture import moe
from course_lib.checks.notebooks.experts.routing import route

__all__ = ["load_balancing_loss", "moe", "route", "update_bias"]
