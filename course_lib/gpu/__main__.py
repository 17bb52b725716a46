"""python -m course_lib.gpu: see `command.py`."""

import sys

from course_lib.gpu.command import main

sys.exit(main())
