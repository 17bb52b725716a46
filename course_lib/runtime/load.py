"""How busy the machine is."""

from __future__ import annotations

import os

MOST = 10.0


def slowdown() -> float:
    """How many times longer a process takes since others compute, too: 1 if cores are free, MOST at most.

    It counts the processes that compute or wait for a core, in the mean of the last minute; 1 if the system
    does not report them.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        processes, *_ = os.getloadavg()
    except OSError:
        return 1.0
    return min(MOST, max(1.0, processes / (cores or 1)))
