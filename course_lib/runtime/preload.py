"""The preloaded process: torch imported, nothing run, ready to fork ranks in milliseconds.

It is started fresh, not forked from the notebook's kernel, which has threads and perhaps a CUDA context
that a fork would break. It has one thread, runs no tensor operation and never asks for CUDA, so that
its children may do all of that. It ends with its kernel, and its ranks end with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import traceback

PR_SET_PDEATHSIG = 1
FDS_PER_RANK = 6  # control socket, stdout, stderr, rows, texts, stack


def main(fd: int, kernel_pid: int, modules: list[str]) -> None:
    """Serve fork requests on the socket `fd` until the kernel is gone."""
    control = socket.socket(fileno=fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the kernel's; it ends the ranks itself
    for module in modules:
        importlib.import_module(module)
    import torch

    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # the collector would touch, and so copy, every shared page in every rank
    Server(control, kernel_pid).serve()


class Server:
    """Forks pools of ranks and tells the kernel when one of them ends."""

    def __init__(self, control: socket.socket, kernel_pid: int):
        self.control = control
        self.selector = selectors.DefaultSelector()
        self.selector.register(control, selectors.EVENT_READ, None)
        self.groups: set[int] = set()
        try:
            kernel = os.pidfd_open(kernel_pid)
            self.selector.register(kernel, selectors.EVENT_READ, "kernel")
        except ProcessLookupError:
            os._exit(0)
        self.tell({"ready": True})

    def tell(self, message: dict) -> None:
        try:
            self.control.send(json.dumps(message).encode())
        except OSError:
            self.end()

    def end(self) -> None:
        """The kernel is gone: end every rank and what it started."""
        for group in self.groups:
            try:
                os.killpg(group, signal.SIGKILL)
            except ProcessLookupError:
                continue  # this pool ended before
        os._exit(0)

    def serve(self) -> None:
        while True:
            for key, _ in self.selector.select():
                if key.data is None:
                    self.request()
                elif key.data == "kernel":
                    self.end()
                else:
                    self.reap(key)

    def reap(self, key: selectors.SelectorKey) -> None:
        pid, pool, rank = key.data
        _, status = os.waitpid(pid, 0)
        self.selector.unregister(key.fileobj)
        os.close(key.fd)
        self.tell({"exit": [pool, rank, os.waitstatus_to_exitcode(status)]})

    def request(self) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self.control, 1 << 20, 253)
        except ConnectionResetError:
            data, fds = b"", []
        if not data:
            self.end()
        order = json.loads(data)
        if "forget" in order:
            self.groups.discard(order["forget"])
        else:
            self.fork(order, fds)
        for fd in fds:
            os.close(fd)

    def fork(self, order: dict, fds: list[int]) -> None:
        world_size, pgid, pids = order["world_size"], 0, []
        for rank in range(world_size):
            pid = os.fork()
            if pid == 0:
                self.become_rank(order, rank, pgid, fds)
            pgid = pgid or pid
            with contextlib.suppress(PermissionError, ProcessLookupError):
                os.setpgid(pid, pgid)  # here and in the child, whoever comes first; it may be gone
            pids.append(pid)
            self.selector.register(
                os.pidfd_open(pid), selectors.EVENT_READ, (pid, order["pool"], rank)
            )
        self.groups.add(pgid)
        self.tell({"forked": order["pool"], "pids": pids, "pgid": pgid})

    def become_rank(self, order: dict, rank: int, pgid: int, fds: list[int]) -> None:
        """In the child; never returns."""
        try:
            parent = os.getppid()
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(0)
            os.setpgid(0, pgid)
            shared, own = fds[:2], fds[2 + FDS_PER_RANK * rank :][:FDS_PER_RANK]
            for fd in fds:
                if fd not in shared and fd not in own:
                    os.close(fd)
            self.selector.close()
            self.control.close()
            from course_lib.runtime.rank import rank_main

            rank_main(order, rank, shared, own)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(70)
