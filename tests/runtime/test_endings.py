"""The end of a process is heard of on every system, also on one that gives no handles of processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from course_lib.runtime import endings, preloaded
from course_lib.runtime.errors import LaunchError
from tests.runtime import without_handles

HERE = Path(__file__).resolve().parents[1]


@pytest.fixture(params=[True, False], ids=["handles", "none"])
def with_handles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """This process, with handles of processes and, as an old kernel and conda's Python have it, without."""

    def refused(pid: int) -> int:
        raise OSError(38, "Function not implemented")

    if not request.param:
        monkeypatch.setattr(os, "pidfd_open", refused)
    return request.param


@pytest.fixture
def child() -> Iterator[int]:
    """A forked child that waits to be ended."""
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    yield pid
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_a_handle_is_had_or_it_is_none(with_handles: bool) -> None:
    handle = endings.handle(os.getpid())
    assert (handle is not None) == with_handles
    if handle is not None:
        os.close(handle)


def test_a_python_that_knows_no_handles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    assert endings.handle(os.getpid()) is None


def test_the_end_of_a_child_is_seen_and_its_status_can_still_be_read(
    with_handles: bool, child: int
) -> None:
    mine, its = socket.socketpair()
    assert not endings.has_ended(child) and not endings.has_ended(os.getppid())
    its.send(b"the next task")
    assert endings.readable_before_end(mine, child)
    mine.recv(100)
    os.kill(child, signal.SIGTERM)
    assert not endings.readable_before_end(mine, child)
    assert endings.has_ended(child), "looking takes nothing away"
    mine.close()
    its.close()


def test_a_lost_connection_to_the_preloaded_process_is_told_with_its_last_words() -> None:
    """The process ended before it had read its orders: the socket is reset, not closed."""
    process = object.__new__(preloaded.Preloaded)
    process.socket, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-c", "import sys; sys.exit('no more handles')"]
    process.process = subprocess.Popen(command, stderr=subprocess.PIPE)
    process.socket.send(b"{}")
    its.close()
    with pytest.raises(LaunchError, match=r"(?s)ended \(exit code 1\).* It said:\nno more handles"):
        process.read(5)
    process.socket.close()
    assert process.process.stderr is not None
    process.process.stderr.close()


# Ends of ranks that raise, that die, that are alone or in a sandbox; of the kernel and of its forks.
ENDS = (
    "runtime/test_failures.py::test_a_rank_that_dies",
    "runtime/test_processes.py::test_an_interrupt_ends_the_ranks_and_leaves_the_kernel_usable",
    "runtime/test_processes.py::test_no_rank_survives_its_call",
    "runtime/test_processes.py::test_nothing_is_left_when_the_program_ends",
    "runtime/test_processes.py::test_nothing_is_left_when_the_kernel_is_killed[9]",
    "checks/test_checks_engine.py::test_a_prediction_that_dies_costs_itself_alone",
    "checks/test_checks_engine.py::test_what_a_prediction_leaves_running_is_ended_before_the_next",
    "runtime/test_sandbox.py::test_the_sandbox_ends_with_whoever_holds_it",
)


def test_processes_end_where_the_system_gives_no_handles() -> None:
    """The same tests as elsewhere, in a process to which the system refuses pidfd_open."""
    tests = [f"{HERE}/{test}" for test in ENDS]
    command = [sys.executable, without_handles.__file__, "-q", *tests]
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    if done.returncode == without_handles.REFUSED:
        pytest.skip("this machine has no filters of system calls")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
