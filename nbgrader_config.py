"""nbgrader's configuration, found by `nbgrader`, formgrader and `make grade`.

An instructor's own settings stand in `class_config.py` beside this file, which git ignores, so that a
`git pull` never meets them. They count in grading too. Penalties for late submissions, with the due date
set in formgrader:

    c.LateSubmissionPlugin.penalty_method = "zero"

Points of extra credit that count for one assignment at most:

    c.ExtraCredit.most = 5

formgrader shows the gradebook in `autograder/out`. Before a class of yours was graded, it shows that of the
sample class, in `autograder/out-sample`. `make formgrader OUT=folder` shows another one.
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from autograder.course.config import base_config
from autograder.sample.apart import graded_folder

c = get_config()  # noqa: F821  (nbgrader provides it, and load_subconfig)
own = Path(__file__).resolve().with_name("class_config.py")
if own.is_file():
    load_subconfig(own.name, str(own.parent))  # noqa: F821
out = Path(os.environ["COURSE_OUT"]).resolve() if os.environ.get("COURSE_OUT") else graded_folder()
c.merge(base_config(out=out))
