"""Is a rank asleep in C++, where it waits for an operation and calls no method of the recorder?

C++ code can ask for the future of an operation and wait for the future. DDP does so for its buckets and for
the result of a communication hook. A rank that has begun an operation and then computes for long looks the
same from outside, but it must not be mistaken for a rank that waits. So a thread of the rank looks at the
kernel's view of the rank. The rank is asleep if, between two looks,

* its program has been in the same call of `futex` without a time-out, and has not run in between,
* no other thread of its process runs or could run (C++ can compute in threads of its own), and
* Python has no other thread (a program can wait for a thread that goes on later).

If the kernel does not show these (gVisor does not), a rank never counts as asleep, and its launch times out.
"""

from __future__ import annotations

import contextlib
import os
import platform
import threading
import time
from collections.abc import Callable

FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine(), -1)  # the number of the call
TIMEOUT = 4  # which field of `syscall` is the time-out, behind the number and three arguments
EVERY = 0.1  # seconds between two looks
OWN = "course-"  # how the names of this library's threads begin


class Sleep:
    """Tells whether this process is asleep, from the first call of `watch` on.

    changed: gets True when it has fallen asleep, again at each look, and False when it has woken up.
    """

    def __init__(self, changed: Callable[[bool], None]):
        self.changed = changed
        self.thread: threading.Thread | None = None

    def watch(self) -> None:
        if self.thread is None:  # started here, since a process with threads must not be forked
            self.thread = threading.Thread(target=self.look, name=f"{OWN}asleep", daemon=True)
            self.thread.start()

    def look(self) -> None:
        before, was_asleep = "", False
        while True:
            now = still_wait()
            asleep = bool(now) and now == before
            if asleep or was_asleep:
                self.changed(asleep)
            before, was_asleep = now, asleep
            time.sleep(EVERY)


def still_wait() -> str:
    """The endless wait of this process, in words that do not change until the wait ends; else ""."""
    main = os.getpid()  # the thread that a fork has left; `native_id` would be that of the parent's
    others = [t for t in threading.enumerate() if t is not threading.main_thread()]
    if not all(thread.name.startswith(OWN) for thread in others):
        return ""
    with contextlib.suppress(OSError):  # the kernel does not show it, or a thread has just ended
        call = read(main, "syscall").split()
        endless = call[0] == str(FUTEX) and int(call[TIMEOUT], 16) == 0
        if endless and not any(runs(int(t)) for t in os.listdir("/proc/self/task")):
            switches = [
                line for line in read(main, "status").splitlines() if "ctxt_switches" in line
            ]
            return " ".join([*call, *switches])
    return ""


def runs(thread: int) -> bool:
    """Whether a thread, other than the one that asks, runs, or waits for a processor or a disk."""
    if thread == threading.get_native_id():
        return False
    return read(thread, "stat").rpartition(")")[2].split()[0] in ("R", "D")


def read(thread: int, name: str) -> str:
    with open(f"/proc/self/task/{thread}/{name}") as file:
        return file.read()
