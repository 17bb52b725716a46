"""A process for tasks that need no other rank. It has no process group, and forks afresh for each task.

The process itself unpickles nothing and runs none of a student's code, so no task finds in memory anything
left there by an earlier task. A fork answers and then waits to be ended, as every rank does. It is ended,
with all processes it started, when the next task arrives. A fork that ends before it has answered takes
the process with it, in the same way (exit code or signal). The watching process then sees that task die, and
asks for a new process for the next task. A fork takes milliseconds, while a sandbox and a process group for
each task would take tens of them.
"""

from __future__ import annotations

import faulthandler
import os
import resource
import signal
import socket
import time
from typing import NoReturn

from course_lib.ledger import rows
from course_lib.ledger.recorder import Recorder
from course_lib.runtime import rank, wire
from course_lib.runtime.endings import readable_before_end
from course_lib.runtime.preload import die_with
from course_lib.runtime.sandbox import init, kernel

_sleep = time.sleep


def start(order: dict, fds: list[int]) -> NoReturn:
    """The entry of the process. `fds`: as `pools.Pool` hands them over."""
    sock, recorder = rank.settle(order, fds)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    wire.send(sock, {"hello": 0})
    for task, buffers in rank.tasks(sock):
        run_in_fork(sock, recorder, fds[-1], task, buffers)
    os._exit(0)


def run_in_fork(
    sock: socket.socket, recorder: Recorder, stack: int, task: dict, buffers: list
) -> None:
    """Returns when the next task has arrived, or the fork has ended and has answered."""
    recorder.set_state(rows.RUNNING)
    parent, pid = os.getpid(), os.fork()
    if pid == 0:
        try:
            die_with(parent)
            faulthandler.register(signal.SIGUSR1, file=stack, all_threads=True)
            rank.perform(sock, recorder, 0, task, buffers)
            recorder.set_state(rows.IDLE)  # it has answered
            while True:
                _sleep(3600)
        finally:
            os._exit(70)
    signal.signal(signal.SIGUSR1, lambda *_: os.kill(pid, signal.SIGUSR1))
    next_task = readable_before_end(sock, pid)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    if not next_task and recorder.board.read(0).state != rows.IDLE:
        end_like(os.waitpid(pid, 0)[1])
    end_with_descendants(pid)


def end_like(status: int) -> NoReturn:
    """End in the same way as a child with this wait status."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the child's own is enough
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def end_with_descendants(pid: int) -> None:
    """End a child and the processes it left behind, since orphans become children of this process."""
    init.kill(pid)
    os.waitpid(pid, 0)
    while True:
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if ended:
            continue
        everybody = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
        orphans = init.descendants(os.getpid(), everybody)
        if not orphans:  # a sandbox without a pid namespace shows none: its init ends them
            return
        for orphan in orphans:
            init.kill(orphan)
        _sleep(0.001)
