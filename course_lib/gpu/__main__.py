"""python -m course_lib.gpu: see `command.py`."""

from course_lib.gpu.command import main
from course_lib.program import run_program

run_program(main)
