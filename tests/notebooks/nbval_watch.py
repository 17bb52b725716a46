"""A pytest plugin for nbval: a cell fails at once when its kernel dies, and kernels talk over files.

By itself nbval waits for the dead kernel's answer until the cell's time-out. And it picks five TCP
ports and frees them before the kernel takes them: among tests that launch ranks all the time, one is
gone now and then, and the kernel dies as it starts. Loaded with `-p nbval_watch`.
"""

from __future__ import annotations

import time
from queue import Empty
from tempfile import TemporaryDirectory
from typing import Any

import autograder  # noqa: F401  (before nbformat, which nbval imports: see there)

# isort: split
import nbval.kernel
from jupyter_client.manager import KernelManager
from nbval.kernel import RunningKernel


class ManagerOfSockets(KernelManager):
    """Starts a kernel that listens on Unix sockets, in a folder that goes when the manager does.

    The folder is in /tmp by name: a socket's path has at most 107 characters, which pytest's own
    temporary folders nearly fill.
    """

    def __init__(self, **settings: Any) -> None:
        self.sockets = TemporaryDirectory(prefix="nbval-", dir="/tmp")
        super().__init__(transport="ipc", ip=f"{self.sockets.name}/kernel", **settings)


INTERVAL = 0.5  # seconds between two looks at the kernel's process


def await_reply(self: RunningKernel, msg_id: str, timeout: float | None = None) -> None:
    """nbval's `await_reply`, looking in between whether the kernel is alive.

    Raises queue.Empty after `timeout` seconds as nbval's does, and RuntimeError for a dead kernel.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        left = INTERVAL if deadline is None else deadline - time.monotonic()
        alive = self.is_alive()  # asked first: an answer from before its death still counts
        try:
            message = self.get_message(stream="shell", timeout=max(0.0, min(INTERVAL, left)))
        except Empty:
            if not alive:
                raise RuntimeError("the kernel died while it ran this cell") from None
            if left <= 0:
                raise
            continue
        if _answers(message, msg_id):
            return


def _answers(message: dict[str, Any], msg_id: str) -> bool:
    if message["parent_header"].get("msg_id") != msg_id:
        return False
    if message["content"]["status"] == "aborted":
        raise RuntimeError("the kernel did not run this cell")
    return True


RunningKernel.await_reply = await_reply
nbval.kernel.KernelManager = ManagerOfSockets
