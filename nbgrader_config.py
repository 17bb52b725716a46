"""nbgrader's configuration, found by `nbgrader` and formgrader when they start in this folder."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from autograder.config import OUT, SOLUTIONS, Limits
from autograder.grade import grading_config

c = get_config()  # noqa: F821  (nbgrader provides it)
c.merge(grading_config(SOLUTIONS, OUT, Limits()))
