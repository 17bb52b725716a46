"""The resources of the machine, or of the container: memory, cores, files."""

from __future__ import annotations

import errno
import os
import re
import resource
import shutil
import tempfile
from pathlib import Path

from course_lib.doctor.finding import Finding
from course_lib.runtime.gpus import gpu_count

MIB, GIB = 1 << 20, 1 << 30


def shared_memory(path: str = "/dev/shm") -> Finding:
    """NCCL between GPUs of one machine and DataLoader workers need it; ranks over gloo do not."""
    advice = (
        "Give the container more: docker run --shm-size=8g (or --ipc=host). In Kubernetes, mount an "
        f"emptyDir with medium: Memory there. On your own machine: mount -o remount,size=8g {path}."
    )
    needed = gpu_count() >= 2
    try:
        total, _, free = shutil.disk_usage(path)
    except FileNotFoundError:
        return Finding("problem" if needed else "note", path, "missing", advice)
    text = f"{size(total)}, {size(free)} free"
    if total <= 256 * MIB:
        why = "which is too small for NCCL and for DataLoader workers"
        return Finding("problem" if needed else "note", path, f"{text}, {why}", advice)
    if free < 256 * MIB:
        return Finding(
            "problem" if needed else "note", path, f"{text}, which is nearly full",
            f"Look at its files (ls -la {path}), and remove what ended programs left behind.",
        )  # fmt: skip
    return Finding("ok", path, text)


def memory() -> Finding:
    meminfo = Path("/proc/meminfo").read_text()
    free = int(re.search(r"MemAvailable:\s+(\d+) kB", meminfo)[1]) * 1024  # type: ignore[index]
    text = f"{size(free)} free"
    limit = first_number("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
    used = first_number(
        "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory/memory.usage_in_bytes"
    )
    if limit is not None and used is not None and limit - used < free:
        free = limit - used
        text = f"{size(free)} free of the {size(limit)} this container can use"
    if free < GIB:
        return Finding(
            "problem", "memory", text, "Close other programs and kernels, because 2 GB are needed."
        )
    if free < 2 * GIB:
        return Finding("note", "memory", text, "This might be too little for more than four ranks.")
    return Finding("ok", "memory", text)


def cores() -> Finding:
    count = usable_cores()
    if count < 2:
        return Finding(
            "note", "cores", "1, so ranks take turns. Expect long waits with four and more"
        )
    return Finding("ok", "cores", str(count))


def usable_cores() -> int:
    """Cores this process may use, its container's quota included."""
    count = len(os.sched_getaffinity(0))
    quota = Path("/sys/fs/cgroup/cpu.max")
    if quota.exists():
        allowed, period = quota.read_text().split()[:2]
        if allowed != "max":
            count = min(count, max(1, round(int(allowed) / int(period))))
    return count


def folder(path: str = "") -> Finding:
    path = path or os.getcwd()
    try:
        with tempfile.TemporaryFile(dir=path) as file:
            file.write(b"x")
            file.flush()
    except OSError as error:
        cure = "so copy the course to a folder of your own, such as ~/course, and open it there."
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            cure = "so make room on the disk before you go on."
        return Finding(
            "problem", "working folder", f"{path} cannot be written to: {error.strerror}",
            f"Notebooks cannot be saved here, {cure}",
        )  # fmt: skip
    free = shutil.disk_usage(path).free
    if free < GIB // 2:
        return Finding(
            "note", "working folder", f"{path}, {size(free)} free", "Make room on the disk."
        )
    return Finding("ok", "working folder", f"{path} can be written to, {size(free)} free")


def open_files() -> Finding:
    """Eight ranks take some hundred descriptors in the notebook's kernel."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= 1024:
        return Finding("ok", "open files", "no limit" if soft < 0 else f"{soft:,} allowed")
    known = f"up to {hard:,}" if hard != resource.RLIM_INFINITY else "as you like"
    advice = f"Run this before you start Jupyter: ulimit -n 4096 (this user can raise it {known})."
    return Finding("problem" if soft < 256 else "note", "open files", f"{soft:,} allowed", advice)


def first_number(*paths: str) -> int | None:
    """The number in the first of these files that exists; None for "max" or no file."""
    for path in map(Path, paths):
        if path.exists():
            text = path.read_text().strip()
            return int(text) if text.isdigit() else None
    return None


def size(nbytes: float) -> str:
    return f"{nbytes / GIB:.1f} GB" if nbytes >= GIB else f"{nbytes / MIB:.0f} MB"
