"""The fault matrix: faulty and hostile submissions, and the grade that each must get.

Every row is a submission of a small assignment (`course/`), made from its released notebook and its
reference answers when it is needed, so never out of date. All of them are graded in one class together
with honest ones (`honest.py`), whose points no other submission's fault may touch. `python -m autograder
selftest` runs it on the instructor's own machine, `tests/autograder/test_faults.py` in the tests.

The rows say which kinds of fault there are and how grading answers. They are not a manual for forging
grades elsewhere: each keeps to the idea, and none works here.
"""

from __future__ import annotations

from autograder.faults import cheating, honest, kernel, notebook, prying, ranks, unrecorded
from autograder.faults.row import Row

ROWS: list[Row] = sorted(
    [
        *honest.ROWS,
        *kernel.ROWS,
        *ranks.ROWS,
        *notebook.ROWS,
        *cheating.ROWS,
        *unrecorded.ROWS,
        *prying.ROWS,
    ],
    key=lambda row: row.name,
)
