"""A grader to be killed: `python interrupted_grader.py FOLDER` imports once, then grades on request.

For each line on its standard input it forks a grader of `FOLDER/class` into `FOLDER/out`, prints its
process id, and when it has ended its exit code.
"""

from __future__ import annotations

import io
import os
import sys
import warnings
from pathlib import Path

from autograder.book.gradebook import ClassBook
from autograder.course.kernels import prefer_this_environment
from autograder.run.jobs import LocalWorkers
from autograder.run.session import Course, grade_class
from autograder.submission.intake import find_submissions
from tests.autograder import marking_double

SECRET = b"0123456789abcdef"


def main(folder: Path, whole: bool) -> None:
    """whole: the assignment is registered too, as in every run; that takes a second."""
    warnings.simplefilter("ignore")
    prefer_this_environment()
    if not whole:
        ClassBook.register = lambda self, assignments: ""
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            grade(folder)
            os._exit(0)
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def grade(folder: Path) -> None:
    submissions, _ = find_submissions(folder / "class", ["00_toy"])
    course = Course(folder / "solutions", folder / "out", SECRET, marking_double.grade)
    grade_class(submissions, course, lambda: LocalWorkers(2), stream=io.StringIO())


if __name__ == "__main__":
    main(Path(sys.argv[1]), whole=sys.argv[2] == "whole")
