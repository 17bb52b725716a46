"""Whether control groups hold on this machine. The test takes more memory than such a group allows."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, NoReturn

from course_lib.runtime.errors import LaunchError
from course_lib.runtime.sandbox import control, hierarchy, spec
from course_lib.runtime.sandbox.spec import Sandbox

if TYPE_CHECKING:
    from course_lib.runtime.preloaded import Preloaded

TAKE_MEMORY = "course_lib.runtime.sandbox.bounds:take_memory"
MEMORY, PIECE = 16 << 20, 1 << 20  # bytes
WAIT = 30.0  # seconds


def bounds_hold(preloaded: Preloaded) -> bool:
    """Whether a sandbox gets a control group, and memory beyond its bound ends the processes in it.

    The test takes the memory as a file, which no other layer counts. It also makes the grader's own group
    ready, and removes groups left behind by killed graders.
    """
    try:
        hierarchy.prepare()
        control.remove_stale()
    except hierarchy.ControlGroupError:
        return False
    most = control.memory_of_all(MEMORY, 1)
    sandbox = Sandbox(layers=(spec.CONTROL_GROUPS,), memory=MEMORY, disk=2 * most)
    children = preloaded.spawn([(TAKE_MEMORY, {"bytes": 2 * most}, [])], sandbox)
    deadline = time.monotonic() + WAIT
    try:
        children.started(WAIT)
        while children.exit_code(0) is None and time.monotonic() < deadline:
            preloaded.read(0.1)
    except LaunchError:
        return False
    finally:
        children.end()
    return children.limit == "memory"


def take_memory(arguments: dict, fds: list[int]) -> NoReturn:
    """In the sandbox: fill a file in memory with this many bytes."""
    file, piece = os.memfd_create("taken"), bytes(PIECE)
    for _ in range(arguments["bytes"] // PIECE):
        os.write(file, piece)
    os._exit(0)


def writable() -> bool:
    """In a sandbox: could this process change the bounds of its own group?"""
    own = hierarchy.own_folders(
        hierarchy.read("/proc/self/cgroup"), hierarchy.read("/proc/self/mountinfo")
    )
    paths = [f"{folder}/{name}" for folder in own.values() for name in control.BOUNDS]
    return any(can_be_written(path) for path in paths)


def can_be_written(path: str) -> bool:
    """Try to open the file, because access(2) does not know of Landlock. Nothing is written."""
    try:
        os.close(os.open(path, os.O_WRONLY))
    except OSError:
        return False
    return True
