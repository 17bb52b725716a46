"""How busy the machine is."""

from __future__ import annotations

import os

MOST = 10.0


def slowdown() -> float:
    """How many times longer a process takes since others compute, too: 1 where cores are free, MOST at most.

    Linux counts the processes that compute or wait for a core; their mean over the last minute is told.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(MOST, max(1.0, os.getloadavg()[0] / (cores or 1)))
