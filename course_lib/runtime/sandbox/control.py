"""Control groups, in which the kernel bounds memory and number of all processes of a sandbox together.

    keeper      enter()           makes a group, bounds it and enters it, so that its forks are born there
    init        Watch.reached()   asks the kernel whether a bound was reached
    preloaded   remove_groups()   the groups of sandboxes that have ended, and of graders that are gone

A group of version 2 is one folder. A group of version 1 is two folders of the same name, in the hierarchies
of memory and of pids. Groups are made in the grader's own group, if the grader may write there. Only the
kernel can count memory that is shared or in files without a disk at the moment when it is taken.
Each sandbox costs 3 ms of work, and about 15 in which the kernel waits before it lets the
keeper in. Sources: the kernel's admin-guide/cgroup-v1/memory and admin-guide/cgroup-v2.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time

from course_lib.runtime.sandbox import spec
from course_lib.runtime.sandbox.hierarchy import ControlGroupError, parents, read, started, write
from course_lib.runtime.sandbox.spec import Sandbox

PREFIX = "course-sandbox"
PAGE = os.sysconf("SC_PAGE_SIZE")
OVERHEAD = 64 << 20  # bytes of keeper and init, and of the kernel for them
OVERHEAD_OF_CHILD = 16 << 20  # bytes: page tables, buffers of sockets, shared pages
BOUNDS = (  # of both versions, in the order in which they can be set
    "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.max", "memory.swap.max", "pids.max",
)  # fmt: skip
LOOK = 0.25  # seconds
PATIENCE = 1.0  # seconds: a sandbox at the bound on processes for so long stays there
FILES = {  # by which a group is watched, of both versions
    "memory.events": "memory", "memory.oom_control": "memory", "pids.events": "pids",
    "memory.current": "held", "memory.usage_in_bytes": "held", "pids.current": "processes",
}  # fmt: skip


# ---- in the keeper


def enter(sandbox: Sandbox, count: int) -> Watch | None:
    """Make a bounded group for `count` children and go in; None if the sandbox does without.

    ControlGroupError if it cannot be made, because a sandbox is as strong as it says, or there is none.
    """
    if not sandbox.has(spec.CONTROL_GROUPS):
        return None
    folder = ""
    try:
        name = name_of(os.getppid(), os.getpid())
        folders = [f"{parent}/{name}" for parent in dict.fromkeys(parents().values())]
        for folder in folders:
            os.mkdir(folder)
        for folder in folders:
            bound(folder, memory_of_all(sandbox.memory, count), sandbox.processes)
        watch = Watch(folders, sandbox.processes)
        for folder in folders:
            write(f"{folder}/cgroup.procs", os.getpid())
    except ControlGroupError:
        raise
    except OSError as error:
        raise ControlGroupError(f"no control group could be made as {folder}: {error}") from error
    return watch


def memory_of_all(memory: int, count: int) -> int:
    """Bytes, in whole pages, that a group may hold whose `count` children may hold `memory`."""
    return (memory + OVERHEAD + count * OVERHEAD_OF_CHILD) // PAGE * PAGE


def bound(folder: str, memory: int, processes: int) -> None:
    """Write the limits that this folder has, and read them back. Swap cannot get around the first."""
    for name, most in zip(BOUNDS, (memory, memory, memory, 0, processes), strict=True):
        path = f"{folder}/{name}"
        if not os.path.exists(path):
            continue  # of the other version, or a kernel that does not count swap
        write(path, most)
        if (kept := read(path).strip()) != str(most):
            raise ControlGroupError(f"{path} was set to {most}, but is {kept}")


def give_way() -> None:
    """In a child: be ended before init if memory runs out. A child without rights cannot undo it."""
    write("/proc/self/oom_score_adj", 1000)


# ---- in init


class Watch:
    """The kernel's counts of one group, as open descriptors, because init cannot see these files."""

    def __init__(self, folders: list[str], processes: int):
        self.files: dict[str, int] = {}
        for path in (f"{folder}/{name}" for folder in folders for name in FILES):
            if os.path.exists(path):
                what = FILES[os.path.basename(path)]
                self.files[what] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.most, self.refused, self.ended = processes, 0, 0
        # since: from then on each look saw the bound on processes reached
        self.looked = self.since = time.monotonic()

    def forget(self) -> None:
        """Bounds reached so far no longer count, because the processes that reached them have ended."""
        self.ended, self.refused = self.count("memory", "oom_kill"), self.count("pids", "max")
        self.looked = self.since = time.monotonic()

    @property
    def fds(self) -> list[int]:
        return list(self.files.values())

    def reached(self) -> str:
        """ "memory" if a process was ended since there was no more, "processes" or "".

        If the kernel refuses a process, the student's code gets an error and has to handle it. The sandbox is
        stopped only if it stays at the bound, or runs against it again and again, for a second.
        """
        if self.count("memory", "oom_kill") > self.ended:
            return "memory"
        now = time.monotonic()
        if now - self.looked < LOOK:
            return ""
        refused = self.count("pids", "max")
        full = refused and self.amount("processes") >= self.most
        if not full and refused == self.refused:
            self.since = now
        self.refused, self.looked = refused, now
        return "processes" if now - self.since >= PATIENCE else ""

    def count(self, controller: str, event: str) -> int:
        """How often the event happened; 0 if this kernel does not count it."""
        if controller not in self.files:
            return 0
        text = os.pread(self.files[controller], 4096, 0).decode()
        counts = dict(line.split() for line in text.splitlines())
        return int(counts.get(event, 0))

    def amount(self, what: str) -> int:
        """ "processes", threads among them; or bytes "held", files in memory and the kernel's among them."""
        return int(os.pread(self.files[what], 64, 0))


# ---- in the preloaded process


def remove_groups(keepers: set[int]) -> set[int]:
    """Remove the groups of this process's keepers, which have ended; returns those still inhabited."""
    folders = set(parents_if_any().values())
    names = {keeper: name_of(os.getpid(), keeper) for keeper in keepers}
    # a list: all of a name's folders are tried
    return {k for k, name in names.items() if not all([removed(f"{f}/{name}") for f in folders])}


def remove_own_groups(seconds: float) -> None:
    """Remove this process's groups before it ends; wait `seconds` for groups that still hold processes."""
    mine = name_of(os.getpid(), 0).removesuffix("0")
    deadline = time.monotonic() + seconds
    folders = parents_if_any()
    while left := [path for path in groups(folders) if os.path.basename(path).startswith(mine)]:
        if all([removed(path) for path in left]) or time.monotonic() > deadline:
            return
        time.sleep(0.01)


def remove_stale() -> None:
    """Remove the groups whose owner was killed before it could."""
    for path in groups(parents()):
        owner = os.path.basename(path).removeprefix(f"{PREFIX}-").split("-")
        if started(int(owner[0])) != owner[1]:
            with contextlib.suppress(PermissionError):  # another user's, who removes it
                removed(path)


def parents_if_any() -> dict[str, str]:
    try:
        return parents()
    except ControlGroupError:  # then no keeper could make a group either, and has reported it
        return {}


def groups(folders: dict[str, str]) -> list[str]:
    return [
        f"{folder}/{name}"
        for folder in dict.fromkeys(folders.values())
        for name in os.listdir(folder)
        if name.startswith(f"{PREFIX}-") and name.count("-") == PREFIX.count("-") + 3
    ]


def removed(folder: str) -> bool:
    """Whether it is gone now; False while there are processes in it."""
    try:
        os.rmdir(folder)
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True


def name_of(owner: int, keeper: int) -> str:
    """A group's name, with its owner. The start of a process tells it from a later one of the same pid."""
    return f"{PREFIX}-{owner}-{started(owner)}-{keeper}"
