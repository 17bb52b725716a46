"""Processes end: after success, failure, interrupt, a closed or a killed kernel; nothing is left."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

from course_lib import RankError, launch
from course_lib.runtime import pools, wire
from course_lib.runtime.preloaded import Preloaded
from course_lib.runtime.run import run_ranks

Assert = Callable[..., None]
pytestmark = pytest.mark.usefixtures("own_temporary_folder")


def children(pid: int) -> list[int]:
    """All descendants of a process that are alive."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == pid:
                found += [int(folder.name), *children(int(folder.name))]
    return found


def listing() -> set[str]:
    """The files in the temporary folder, and those of the course in the shared-memory folder."""
    own = {str(path) for path in Path(os.environ["TMPDIR"]).glob("*")}
    return own | {str(path) for path in Path("/dev/shm").glob("*course*")}


PROGRAM = """
import os, sys, time, signal
import torch, torch.distributed as dist
from course_lib import launch
from course_lib.runtime import pools

for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)  # `nohup make test` hands an ignored SIGHUP down

def tell(*words):
    print(*words, flush=True)

def body(how):
    if how == "subprocess":
        import subprocess
        subprocess.Popen(["sleep", "1000"])
    if how == "loop":
        if dist.get_rank() == 0:
            print("in the loop", flush=True)
        while True:
            time.sleep(0.01)
    if how == "raise":
        raise ValueError("no")
    dist.barrier()

{action}
"""


@pytest.fixture
def program() -> Iterator[Callable[[str], subprocess.Popen]]:
    """Starts a small program that uses the library as a notebook's kernel does."""
    started: list[subprocess.Popen] = []

    def start(action: str) -> subprocess.Popen:
        code = PROGRAM.format(action=textwrap.dedent(action))
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def read_until(process: subprocess.Popen, words: str) -> str:
    said = ""
    while words not in said:
        line = process.stdout.readline()  # type: ignore[union-attr]
        assert line, f"it ended after: {said}{process.stderr.read()}"  # type: ignore[union-attr]
        said += line
    return said


@pytest.mark.parametrize("how", ["fine", "raise", "loop", "subprocess"])
def test_no_rank_survives_its_call(how: str, assert_no_orphans: Assert) -> None:
    def body() -> list[int]:
        if how == "subprocess":
            subprocess.Popen(["sleep", "1000"])
        if how == "raise" and dist.get_rank() == 1:
            raise ValueError("no")
        while how == "loop":
            time.sleep(0.1)
        return [os.getpid(), *children(os.getpid())]

    before = listing()
    launch(dist.get_rank, world_size=3)
    spare = set(pools._spares[3, "gloo", True, None, ()].pids)
    if how in ("raise", "loop"):
        with pytest.raises(RankError):
            launch(body, world_size=3, timeout=1)
        ended = spare
    else:
        results = launch(body, world_size=3)
        ended = {pid for pids in results for pid in pids}
        assert ended >= spare, "the call runs on the spare ranks"
    assert_no_orphans(ended)
    assert listing() == before


def test_nothing_is_left_when_the_program_ends(
    program: Callable, assert_no_orphans: Assert
) -> None:
    process = program(
        """
        launch(body, "subprocess", world_size=4)
        launch(body, "fine", world_size=2)
        tell("pids", *[pools.preloaded().process.pid, *pools._spares[2, "gloo", True, None, ()].pids])
        """
    )
    pids = [int(p) for p in read_until(process, "pids").split("pids")[1].split()]
    process.wait(20)
    assert process.returncode == 0, process.stderr.read()
    assert_no_orphans(pids)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_nothing_is_left_when_the_kernel_is_killed(
    end: signal.Signals, program: Callable, assert_no_orphans: Assert
) -> None:
    before = listing()
    process = program('launch(body, "loop", world_size=4)')
    read_until(process, "in the loop")
    pids = children(process.pid)
    assert len(pids) >= 5, "the preloaded process and four ranks"
    process.send_signal(end)
    process.wait(20)
    assert_no_orphans(pids)
    assert listing() == before


STALLED = """
import sys
sys.path.insert(0, {folder!r})
from course_lib.runtime.preloaded import Preloaded

print(Preloaded(("stalls",)).process.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """A file that is there as soon as a process imports the module `stalls`, which takes ten minutes."""
    file = tmp_path / "begun"
    (tmp_path / "stalls.py").write_text(
        f"import pathlib, time\npathlib.Path({str(file)!r}).touch()\ntime.sleep(600)\n"
    )
    return file


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux to end one process with another")
def test_a_preloaded_process_that_still_imports_ends_with_a_killed_kernel(
    begun: Path, assert_no_orphans: Assert
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STALLED.format(folder=str(begun.parent))],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "COURSE_ROLE": "test"},
    ) as kernel:  # fmt: skip
        assert kernel.stdout is not None
        preloaded = int(kernel.stdout.readline())
        try:
            wait_for(begun)
            kernel.kill()
            kernel.wait()
            assert_no_orphans([preloaded])
        finally:
            kernel.kill()
            with contextlib.suppress(ProcessLookupError):
                os.kill(preloaded, signal.SIGKILL)


def test_a_preloaded_process_outlives_a_thread_that_started_it(
    begun: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux would end it with this thread, while another thread already waits for its ranks."""
    monkeypatch.syspath_prepend(begun.parent)
    started: list[Preloaded] = []

    def start() -> None:
        started.append(Preloaded(("stalls",)))
        wait_for(begun)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    try:
        time.sleep(0.2)
        assert started[0].alive()
    finally:
        started[0].process.kill()
        started[0].close()


def wait_for(file: Path) -> None:
    deadline = time.monotonic() + 240
    while not file.exists():
        assert time.monotonic() < deadline, "the process did not come to its last import"
        time.sleep(0.05)


def test_an_interrupt_ends_the_ranks_and_leaves_the_kernel_usable(
    program: Callable, assert_no_orphans: Assert
) -> None:
    process = program(
        """
        try:
            launch(body, "loop", world_size=3)
        except KeyboardInterrupt as error:
            tell("interrupted:", error)
        began = time.monotonic()
        tell("next", list(launch(dist.get_rank, world_size=3)))
        """
    )
    read_until(process, "in the loop")
    ranks = children(process.pid)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    said = read_until(process, "next [0, 1, 2]")
    assert "interrupted: interrupted, so the ranks were ended" in said
    assert "rank 1: computes, in no communication" in said
    assert "line " in said, "the line at which the rank was"
    preloaded = min(ranks)
    assert_no_orphans([pid for pid in ranks if pid != preloaded])
    process.wait(20)
    assert_no_orphans([preloaded])


def test_a_lost_preloaded_process_is_replaced() -> None:
    launch(dist.get_rank, world_size=2)
    os.kill(pools.preloaded().process.pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while pools._preloaded is not None and pools._preloaded.alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert list(launch(dist.get_rank, world_size=2)) == [0, 1]


def test_ranks_forked_before_an_import_was_asked_for_are_not_taken() -> None:
    pools.end_spares()
    module = "colorsys"  # a module that nothing imports by itself
    pools.spare(2)
    (early,) = pools._spares.values()
    pools.preloaded().also_import([module])
    assert pools.pool(2, "gloo", True) is early, "for a call without a wish they are as good as any"
    pools._spares[2, "gloo", True, None, ()] = early
    taken = pools.pool(2, "gloo", True, imports=[module])
    try:
        assert taken is not early and early.ended
        assert module in taken.imported
    finally:
        taken.end()


def test_the_time_of_a_task_begins_when_its_imports_are_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools.preloaded()  # it does not find the module: the ranks import it themselves
    (tmp_path / "slow_to_import.py").write_text("import time\ntime.sleep(4)\n")
    monkeypatch.syspath_prepend(tmp_path)
    outcome = run_ranks(
        "course_lib.runtime.call:call", {}, wire.dumps((dist.get_rank, (), {})),
        world_size=2, timeout=3, imports=["slow_to_import"],
    )  # fmt: skip
    assert outcome.failure is None, outcome.failure.message


def test_on_a_busy_machine_a_check_has_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time grows with the processes to a core, `longest` times at most; `launch` keeps its time."""
    cores = len(os.sched_getaffinity(0))

    said = []

    def run(processes: float, longest: float) -> str:
        monkeypatch.setattr(os, "getloadavg", lambda: (processes * cores, 0.0, 0.0))
        outcome = run_ranks(
            "course_lib.runtime.call:call", {}, wire.dumps((time.sleep, (2,), {})),
            world_size=1, timeout=0.5, longest=longest,
        )  # fmt: skip
        said.append(outcome.failure.late if outcome.failure else "")
        return outcome.failure.kind if outcome.failure else "done"

    assert run(100, 60) == "done"
    assert run(100, 1) == run(100, 0) == run(0.1, 60) == run(2, 60) == "timeout"
    assert said[2] == said[3] == "not finished after 0.5 seconds, so the ranks were ended."
    for sentence in (said[1], said[4]):  # twice the time, and a moment until it is looked at
        stretched = (
            r"not finished after 1[.\d]* seconds \(instead of 0.5, because the machine is busy\),"
        )
        assert re.match(stretched, sentence)


def test_descriptors_do_not_grow() -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    launch(dist.get_rank, world_size=3)
    before = count()
    for _ in range(5):
        launch(dist.get_rank, world_size=3)
    with pytest.raises(RankError):
        launch(os._exit, 3, world_size=3)
    launch(dist.get_rank, world_size=3)
    assert count() <= before + 1


def test_a_folder_without_write_permission_is_fine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o500)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "missing"))
    assert list(launch(dist.get_rank, world_size=2)) == [0, 1]
    tmp_path.chmod(0o700)


def test_a_forked_child_of_the_kernel_has_its_own_ranks() -> None:
    """A DataLoader worker or a fork in the notebook must not talk to the kernel's ranks."""
    launch(dist.get_rank, world_size=2)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if list(launch(dist.get_rank, world_size=2)) == [0, 1] else 2
            pools.close()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert list(launch(dist.get_rank, world_size=2)) == [0, 1]


def test_a_full_shared_memory_folder_is_fine() -> None:
    """Docker gives /dev/shm 64 MB; the runtime keeps its shared memory without a name elsewhere."""
    code = PROGRAM.format(action='tell("sums", list(launch(dist.get_rank, world_size=4)))')
    fill = (
        "mount -t tmpfs -o size=64k none /dev/shm && { yes > /dev/shm/full || true; } 2>/dev/null"
    )
    command = f'{fill}; touch /dev/shm/more 2>/dev/null; exec {sys.executable} -c "$0"'
    probe = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    try:
        allowed = subprocess.run([*probe, "mount -t tmpfs none /dev/shm"], capture_output=True)
    except FileNotFoundError:
        pytest.skip("no unshare command on this machine")
    if allowed.returncode:
        pytest.skip(f"mounting is not allowed here: {allowed.stderr.decode().strip()}")
    done = subprocess.run([*probe, command, code], capture_output=True, text=True, timeout=120)
    assert "sums [0, 1, 2, 3]" in done.stdout, done.stderr
