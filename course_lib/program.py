"""The end of a program: its exit code, and no complaint if the program that reads it has ended.

    python -m course_lib.progress | head -1

`head` closes the pipe after a line. The next print raises BrokenPipeError, and Python complains once more
when it flushes its streams at the end. Programs of the shell end silently instead.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable
from typing import NoReturn

BROKEN_PIPE = 141  # the shell's exit code of a program that SIGPIPE has ended


def run_program(main: Callable[[], int | None]) -> NoReturn:
    """Run `main` and end this process with its exit code, or with 141 if a reader of its output has gone.

    A BrokenPipeError that has another cause, such as a process that died, is raised.
    """
    code: object = BROKEN_PIPE
    try:
        try:
            code = main()
        except SystemExit as ended:  # of argparse
            code = ended.code
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except BrokenPipeError:
        gone = [number for number in (1, 2) if _has_no_reader(number)]
        if not gone:
            raise
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for number in gone:
            os.dup2(nowhere, number)  # Python flushes once more as it ends
        code = BROKEN_PIPE
    sys.exit(code)  # pyright: ignore[reportArgumentType]


def _has_no_reader(number: int) -> bool:
    """Whether this descriptor is a pipe or a socket whose other end is closed."""
    poll = select.poll()
    poll.register(number, select.POLLOUT)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
