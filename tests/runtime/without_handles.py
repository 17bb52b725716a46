"""Run pytest as on a system that gives no handles of processes: python without_handles.py TEST ...

A filter of system calls refuses pidfd_open to this process and to all that it starts, as Docker's profile
before 20.10 does. The exit code is pytest's, or REFUSED where the machine knows no such filters.
"""

from __future__ import annotations

import os
import sys

import pytest

from course_lib.runtime.sandbox import calls, kernel

PIDFD_OPEN = {"pidfd_open": (434, 434)}  # on x86_64 and aarch64
REFUSED = 99


def refuse_handles() -> bool:
    """Refuse them; returns whether that was possible."""
    calls.NOWHERE = PIDFD_OPEN
    kernel.no_new_privileges()
    try:
        calls.forbid_everywhere()
    except (KeyError, OSError):
        return False
    try:
        os.pidfd_open(os.getpid())
    except PermissionError:
        return True
    return False


if __name__ == "__main__":
    sys.exit(
        pytest.main(["-p", "no:cacheprovider", *sys.argv[1:]]) if refuse_handles() else REFUSED
    )
