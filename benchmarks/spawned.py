"""The ranks of `check` started by `torch.multiprocessing` instead, as plain tools would start them.

This is only for the baseline of `benchmarks.grading`. Call `install()` in a notebook's kernel, before it
imports course_lib; each case then pays for N fresh interpreters that import torch.
"""

from __future__ import annotations

import multiprocessing.reduction
import os
import socket
from collections.abc import Sequence
from typing import Any

ENVIRONMENT = {
    "COURSE_ROLE": "spawned", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}  # fmt: skip


def install() -> None:
    os.environ.update(ENVIRONMENT)
    from course_lib.runtime import pools

    pools._preloaded = Spawner()  # pyright: ignore[reportAttributeAccessIssue]
    pools.spare = lambda *_, **__: None


class Descriptor:
    """A file descriptor that travels into a spawned process."""

    def __init__(self, fd: int):
        self.fd = fd

    def __reduce__(self) -> tuple:
        return detached, (multiprocessing.reduction.DupFd(self.fd),)


def detached(duplicate: Any) -> int:
    return duplicate.detach()


def run_rank(index: int, order: dict, fds: list[int]) -> None:
    from course_lib.runtime.rank import start

    start(order, fds)


class Spawner:
    """Serves the pools as `Preloaded` does, without a preloaded process."""

    owner = 0  # of no process: nothing is closed at exit

    def __init__(self) -> None:
        self.socket, self.other = socket.socketpair()  # nothing is ever said there
        self.environment = dict(os.environ)

    def alive(self) -> bool:
        return True

    def read(self, wait: float | None = 0) -> bool:
        return False

    def close(self) -> None:
        self.socket.close()
        self.other.close()

    def spawn(self, entries: Sequence[tuple], sandbox: object = None) -> Processes:
        return Processes(entries)


class Processes:
    """Serves a pool as `children.Children` does."""

    limit = ""

    def __init__(self, entries: Sequence[tuple]):
        import torch.multiprocessing as mp

        self.processes = []
        context = mp.get_context("spawn")
        for index, (_, order, fds) in enumerate(entries):
            arguments = (index, order, [Descriptor(fd) for fd in fds])
            process = context.Process(target=run_rank, args=arguments, daemon=True)
            process.start()
            self.processes.append(process)

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self.processes]

    def exit_code(self, number: int) -> int | None:
        return self.processes[number].exitcode

    def signal(self, number: int, signum: int) -> None:
        os.kill(self.pids[number], signum)

    def loopback(self) -> None:
        return None

    def end(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()
