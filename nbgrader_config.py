"""nbgrader's configuration, found by `nbgrader`, formgrader and `make grade`.

An instructor's settings here count in grading too. Penalties for late submissions, with the due date set
in formgrader:

    c.LateSubmissionPlugin.penalty_method = "zero"

Points of extra credit that count for one assignment at most:

    c.ExtraCredit.most = 5
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from autograder.course.config import base_config

c = get_config()  # noqa: F821  (nbgrader provides it)
c.merge(base_config())
