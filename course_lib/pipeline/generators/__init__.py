"""Functions that write schedules, in the order of their invention.

    synchronous.py   naive, gpipe, one_f_one_b, interleaved_one_f_one_b
    asynchronous.py  pipedream
    zero_bubble.py   zero_bubble_h1, zero_bubble_h2, zero_bubble_v
    dual.py          dualpipe, dualpipe_v
    row.py           one rank's list while it is being written

Each function takes the number of pipeline ranks (`stages`, the p of the literature), of microbatches, and, if
there is a choice, of chunks (the number of stages per rank). It returns a list of actions for each rank. Its
docstring says what the schedule costs, on which rank and under which conditions. `course_lib.facts.pipeline`
computes the costs in closed form.
"""

from .asynchronous import pipedream
from .dual import dualpipe, dualpipe_v
from .synchronous import gpipe, interleaved_one_f_one_b, naive, one_f_one_b
from .zero_bubble import zero_bubble_h1, zero_bubble_h2, zero_bubble_v

__all__ = [
    "dualpipe",
    "dualpipe_v",
    "gpipe",
    "interleaved_one_f_one_b",
    "naive",
    "one_f_one_b",
    "pipedream",
    "zero_bubble_h1",
    "zero_bubble_h2",
    "zero_bubble_v",
]
