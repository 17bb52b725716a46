"""The executor's process, seen from the process that grades: how it is started, ends and is ended."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Sequence
from typing import Protocol

from autograder.outcome import statuses
from course_lib.runtime.preloaded import Preloaded
from course_lib.runtime.sandbox.spec import Sandbox


class Child(Protocol):
    """The executor's process, as its driver needs it."""

    def news(self) -> int:
        """A descriptor that becomes readable when the process may have ended."""
        ...

    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it. LaunchError: the grader's own fault."""
        ...

    def limit(self) -> str:
        """The status of the limit for which its sandbox ended it, or ""."""
        ...

    def interrupt(self) -> None: ...

    def end(self) -> None:
        """Kill it and everything that it started."""
        ...


# Called with [control socket, stdout pipe, stderr pipe, pipe of receipts]: see `executor.main`.
Start = Callable[[Sequence[int]], Child]


class Spawned:
    """A Child forked from the preloaded process, with a server beside it that forks ranks for `launch`."""

    def __init__(self, process: Preloaded, sandbox: Sandbox | None, fds: Sequence[int]):
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, its:
            entries = [
                ("autograder.sandbox.executor:main", {}, [*fds, ours.fileno()]),
                ("course_lib.runtime.preload:serve", {}, [its.fileno()]),
            ]
            self.children = process.spawn(entries, sandbox)

    def news(self) -> int:
        return self.children.preloaded.socket.fileno()

    def exit_code(self) -> int | None:
        while self.children.preloaded.read(0):
            continue
        return self.children.exit_code(0)

    def limit(self) -> str:
        return statuses.USED_UP.get(self.children.limit, "")

    def interrupt(self) -> None:
        self.children.signal(0, signal.SIGINT)

    def end(self) -> None:
        self.children.end()


def spawner(process: Preloaded, sandbox: Sandbox | None) -> Start:
    """Starts executors as children of `process`, which should have imported `autograder.sandbox.executor`."""
    return lambda fds: Spawned(process, sandbox, fds)
