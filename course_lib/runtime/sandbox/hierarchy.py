"""The place for control groups, which is the grader's own group if the machine has given it that right.

Version 2 has one hierarchy of groups and allows children with limits only below a group that holds no
process itself. Version 1 has a hierarchy for each kind of limit. Source: cgroups(7).
"""

from __future__ import annotations

import errno
import os

CONTROLLERS = ("memory", "pids")
UNIFIED = "unified"  # version 2, where every controller has the same folder
LEAF = "course-grader"  # version 2: where the grader itself goes
MOVES = 20  # attempts to move the grader's processes while new ones are forked


class ControlGroupError(OSError):
    """A control group could not be made. The text names the attempt and the reason."""


def parents() -> dict[str, str]:
    """For each controller the folder in which groups of sandboxes are made. ControlGroupError without."""
    own = own_folders(read("/proc/self/cgroup"), read("/proc/self/mountinfo"))
    if all(name in own for name in CONTROLLERS):
        return {name: own[name] for name in CONTROLLERS}
    if UNIFIED not in own:
        raise ControlGroupError("no control groups for memory and processes are mounted here")
    folder = own[UNIFIED]
    if os.path.basename(folder) == LEAF:
        folder = os.path.dirname(folder)
    lacking = set(CONTROLLERS) - set(read(f"{folder}/cgroup.controllers").split())
    if lacking:
        raise ControlGroupError(
            f"{folder} was not given control of {' and '.join(sorted(lacking))}"
        )
    return dict.fromkeys(CONTROLLERS, folder)


def own_folders(groups: str, mounts: str) -> dict[str, str]:
    """Controller -> folder of this process's own group, for mounted controllers that can be seen.

    groups, mounts: the texts of /proc/self/cgroup and /proc/self/mountinfo.
    """
    folders = {}
    for line in groups.splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(",") if names else [UNIFIED]:
            for root, point in mounted(mounts, name):
                top = root.rstrip("/")
                if (path == root or path.startswith(f"{top}/")) and ".." not in path.split("/"):
                    folders[name] = point + path[len(top) :].rstrip("/")
    return folders


def mounted(mounts: str, controller: str) -> list[tuple[str, str]]:
    """The mounts of a hierarchy: (which of its groups is at the top there, where that is)."""
    mounts_of_it = []
    for line in mounts.splitlines():
        where, _, what = line.partition(" - ")
        kind, _, options = what.split(" ", 2)
        its = [UNIFIED] if kind == "cgroup2" else options.split(",") if kind == "cgroup" else []
        if controller in its:
            root, point = where.split()[3:5]
            mounts_of_it.append((root, point))
    return mounts_of_it


def prepare() -> None:
    """Once, in the grader: let its group hand on its controllers. ControlGroupError if it may not.

    Version 2 allows this only to a group that holds no process itself, so the grader's processes move into a
    leaf. If the group holds other processes, which are not ours to move, there is no control group.
    """
    folder = parents()[CONTROLLERS[0]]
    handed_on = f"{folder}/cgroup.subtree_control"
    if not os.path.exists(handed_on) or set(CONTROLLERS) <= set(read(handed_on).split()):
        return  # version 1, or done before
    try:
        for _ in range(MOVES):
            pids = [int(pid) for pid in read(f"{folder}/cgroup.procs").split()]
            if not set(pids) <= family(set(pids)):
                raise ControlGroupError(
                    f"{folder} also holds processes that do not belong to the grader"
                )
            os.makedirs(f"{folder}/{LEAF}", exist_ok=True)
            for pid in pids:
                move(pid, f"{folder}/{LEAF}")
            if hand_on(handed_on):
                return
    except ControlGroupError:
        raise
    except OSError as error:
        raise ControlGroupError(f"{folder} cannot be divided: {error}") from error
    raise ControlGroupError(
        f"{folder} cannot be divided, because processes are forked there without end"
    )


def family(pids: set[int]) -> set[int]:
    """The eldest forebear of this process in `pids`, and its descendants there."""
    parent_of = {pid: parent(pid) for pid in pids}
    eldest, pid = 0, os.getpid()
    while pid:
        eldest = pid if pid in pids else eldest
        pid = parent_of.get(pid) or parent(pid)
    members, size = {eldest}, 0
    while len(members) > size:
        size = len(members)
        members |= {pid for pid, its in parent_of.items() if its in members}
    return members


def move(pid: int, folder: str) -> None:
    try:
        write(f"{folder}/cgroup.procs", pid)
    except ProcessLookupError:
        return  # it has ended


def hand_on(path: str) -> bool:
    """Whether the group now hands its controllers on; False while there are processes in it."""
    try:
        write(path, " ".join(f"+{name}" for name in CONTROLLERS))
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True


# ---- /proc and the groups' files


def started(pid: int) -> str:
    """When a process was started, in the kernel's ticks; "" if it has ended."""
    fields = status(pid)
    return "" if not fields or fields[0] in "ZX" else fields[19]


def parent(pid: int) -> int:
    fields = status(pid)
    return int(fields[1]) if fields else 0


def status(pid: int) -> list[str]:
    """The fields of /proc/pid/stat from the state on; [] if there is no such process."""
    try:
        return read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def read(path: str) -> str:
    with open(path) as file:
        return file.read()


def write(path: str, value: object) -> None:
    with open(path, "w") as file:
        file.write(str(value))
