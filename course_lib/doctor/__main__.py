"""python -m course_lib.doctor: see `__init__.py`."""

import sys

from course_lib.doctor import main
from course_lib.program import run_program

run_program(lambda: main(sys.argv[1:]))
