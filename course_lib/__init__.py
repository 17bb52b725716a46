"""Build distributed training yourself, on real ranks.

    from course_lib import launch, check, device

`launch` runs a function on several ranks, `check` judges an exercise, `device()` is the rank's device.
`dry_run` runs a program as one rank of many that are not there.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

try:
    from course_lib.runtime.backend import device, synchronize
    from course_lib.runtime.errors import Deadlock, LaunchError, RankError, RankTimeout
    from course_lib.runtime.launch import Run, launch
except ModuleNotFoundError as error:
    if (error.name or "").startswith("course_lib"):
        raise
    raise ModuleNotFoundError(
        f"{sys.executable} has no {error.name}, which the course needs. In the course's folder, type "
        f".venv/bin/python in place of python (`make setup` makes it); elsewhere, pip install ./course",
        name=error.name,
    ) from None

if TYPE_CHECKING:
    from course_lib.checks import check
    from course_lib.dry import dry_run

__all__ = [
    "Deadlock",
    "LaunchError",
    "RankError",
    "RankTimeout",
    "Run",
    "check",
    "device",
    "dry_run",
    "launch",
    "synchronize",
]


def __getattr__(name: str):
    if name == "check":  # the checks are imported when they are first used
        from course_lib.checks import check

        return check
    if name == "dry_run":
        from course_lib.dry import dry_run

        return dry_run
    raise AttributeError(f"module 'course_lib' has no attribute {name!r}")


def _start_in_background() -> None:
    """Start the process that forks the ranks, so that the first `launch` does not have to wait for it."""
    if os.environ.get("COURSE_ROLE") or "TORCHELASTIC_RUN_ID" in os.environ:
        return  # in a rank, or under torchrun: nothing to start
    from course_lib.runtime.outside import watch_cells
    from course_lib.runtime.pools import preload

    watch_cells()
    preload("course_lib.checks.rank.harness")


_start_in_background()
