"""How busy the machine is, and how ranks share its cores."""

from __future__ import annotations

import contextlib
import os

MOST = 10.0


def slowdown() -> float:
    """How many times longer a process takes because others compute; 1 if cores are free, MOST at most.

    It counts the processes that compute or wait for a core, in the mean of the last minute; 1 if the system
    does not report them.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        processes, *_ = os.getloadavg()
    except OSError:
        return 1.0
    return min(MOST, max(1.0, processes / (cores or 1)))


def take_turns() -> None:
    """From now on, threads of this process that are woken wait for their turn and interrupt no other.

    gloo's thread for messages skips a connection while another thread of its rank holds the connection's
    lock, and tries again immediately. If the holder was interrupted by a thread woken by its own message,
    the thread for messages spins on the core that the holder needs. With more ranks than cores,
    which is how most students run them, an all-reduce then takes about four times as long.
    """
    if hasattr(os, "SCHED_BATCH"):
        with contextlib.suppress(OSError):  # a host may forbid it: messages are slower there
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
