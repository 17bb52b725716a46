"""The machine's share for grading: a number of submissions side by side, and no GPU."""

from __future__ import annotations

import os
from pathlib import Path

WORKER_BYTES = int(0.9 * 2**30)  # a worker, its two preloaded processes and the ranks of one check
CGROUP = Path("/sys/fs/cgroup")


class GpuGradingError(Exception):
    """COURSE_BACKEND asks for NCCL, and submissions are graded on the CPU."""


def refuse_gpus() -> None:
    """Raises GpuGradingError if COURSE_BACKEND asks for NCCL.

    NCCL needs the machine's devices and its shared memory, which a sandbox takes away; and the sums of one
    GPU are not those of another to the last bit, so that a grade would depend on the machine.
    """
    if os.environ.get("COURSE_BACKEND") == "nccl":
        raise GpuGradingError(
            "submissions are graded on the CPU, where the ranks of a check can be shut in, but COURSE_BACKEND"
            " is 'nccl'. Unset it, or set it to 'gloo'. Students may use GPUs all the same."
        )


def default_jobs() -> int:
    """As many workers as there are cores, and as the free memory holds."""
    return max(1, min(cores(), available_memory() // WORKER_BYTES))


def cores() -> int:
    """Processors that this process may use: those it is bound to, and its control group's share."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota, _, period = _cgroup("cpu.max").partition(" ")
    if quota.isdigit() and period.isdigit() and int(period):
        return max(1, min(bound or 1, round(int(quota) / int(period))))
    return bound or 1


def available_memory() -> int:
    """Bytes that can be used without swapping, by the machine's account and the control group's."""
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        free = int(fields["MemAvailable"].split()[0]) * 1024
    limit, used = _cgroup("memory.max"), _cgroup("memory.current")
    if limit.isdigit() and used.isdigit():
        return min(free, max(0, int(limit) - int(used)))
    return free


def _cgroup(name: str) -> str:
    """A setting of this process's control group (version 2), or "" without one."""
    path = CGROUP / name
    return path.read_text().strip() if path.exists() else ""
