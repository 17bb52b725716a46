"""Notice the end of a process, through a handle or, if the system provides none, by looking.

A handle (pidfd_open) is a descriptor that is readable once the process has ended. Linux has them since
5.3, but gVisor, the seccomp profile of Docker before 20.10 and some builds of Python (conda's) do not.
"""

from __future__ import annotations

import os
import select
import socket

LOOK = 0.03  # seconds between two looks


def handle(pid: int) -> int | None:
    """A handle of the process; None if the system gives none. ProcessLookupError if the process is gone."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError) as error:
        if isinstance(error, ProcessLookupError):
            raise
        return None


def has_ended(pid: int) -> bool:
    """Whether this child, or this process's parent, has ended. A child's exit status can still be read."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return os.getppid() != pid


def readable_before_end(sock: socket.socket, child: int) -> bool:
    """Wait until there is something to read, or until the child has ended; False in the second case."""
    ended = handle(child)
    if ended is None:
        while not select.select([sock], [], [], LOOK)[0]:
            if has_ended(child):
                return False
        return True
    try:
        return sock in select.select([sock, ended], [], [])[0]
    finally:
        os.close(ended)
