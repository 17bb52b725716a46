"""Code behind the sandbox's walls: files that it cannot see, limits, and traces that it cannot leave."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import mmap
import os
import random
import secrets
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import cloudpickle
import pytest
import torch
import torch.distributed as dist

import course_lib
from autograder.course.config import assignments
from course_lib import launch
from course_lib.checks.judge.case import Draw
from course_lib.checks.judge.find import find, of_assignment
from course_lib.checks.judge.judge import judge
from course_lib.checks.judge.masks import masked_paths
from course_lib.runtime import pools, walls, wire
from course_lib.runtime.run import Outcome, run_ranks
from course_lib.runtime.sandbox import (
    bounds,
    calls,
    control,
    enter,
    hierarchy,
    init,
    kernel,
    probe,
    spec,
)
from course_lib.runtime.sandbox.spec import Sandbox

CALL = "course_lib.runtime.call:call"
SERVER = "course_lib.runtime.preload:serve"
HERE = Path(course_lib.__file__).resolve().parent

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # this file cannot be seen in there


@pytest.fixture(scope="module")
def strongest() -> Sandbox:
    """The strongest sandbox of this machine; the tests of a layer that the machine refuses say so."""
    return probe.probe(pools.preloaded(), masked=masked_paths("02_collectives"))


@pytest.fixture(scope="module")
def full(strongest: Sandbox) -> Sandbox:
    if not strongest.has(*probe.NAMESPACES):
        pytest.skip(f"this machine allows no namespaces, only {', '.join(strongest.layers)}")
    return strongest


@pytest.fixture(autouse=True)
def no_spares_left() -> Iterator[None]:
    yield
    pools.end_spares()


def inside(
    sandbox: Sandbox | None, body: Any, *args: Any, world_size: int = 1, **more: Any
) -> Outcome:
    return run_ranks(
        CALL, {}, wire.dumps((body, args, {})), world_size=world_size,
        timeout=more.pop("timeout", 60), sandbox=sandbox, **more,
    )  # fmt: skip


def result(outcome: Outcome, rank: int = 0) -> Any:
    """A rank's answer. These are our own functions: unpickling what they return is safe."""
    assert outcome.failure is None, outcome.failure.message
    reply = outcome.replies[rank]
    assert reply is not None
    return wire.loads(reply[1])


def attempt(path: str) -> str:
    """ "read", "listed" or the error's name."""
    try:
        if os.path.isdir(path):
            return "listed" if os.listdir(path) else "empty"
        with open(path, "rb") as file:
            return "read" if file.read(1) else "empty"
    except OSError as error:
        return type(error).__name__


# ---- files and processes that can be seen


def test_nothing_of_the_machine_is_visible_but_python(full: Sandbox, tmp_path: Path) -> None:
    secret = tmp_path / "gradebook.db"
    secret.write_text("grades")
    secret.chmod(0o666)
    repository = HERE.parent
    paths = [
        str(secret), str(repository / "README.md"), str(repository / "solutions"),
        str(repository / "autograder"), "/etc/shadow", "/proc/1/environ", "/home", "/var",
    ]  # fmt: skip
    found = result(inside(full, lambda: [attempt(path) for path in paths]))
    seen = dict(zip(paths, found, strict=True))
    assert set(found) <= {"FileNotFoundError", "PermissionError"}, seen
    assert secret.read_text() == "grades"


def test_masked_files_are_empty_and_stay_so(full: Sandbox) -> None:
    """Also for a process in a user namespace of its own, where it has all capabilities again."""
    folder, checks = str(HERE / "collectives"), str(HERE / "checks" / "notebooks")
    facts = str(HERE / "facts")

    def body() -> list:
        tried = [attempt(path) for path in (folder, checks, facts)]
        unmount = f"umount {folder} {checks} {facts}; cat {folder}/*.py {checks}/*.py {facts}/*.py"
        for how in ("sh", "unshare -Urm sh", "unshare -Urmpf sh"):
            command = [*how.split(), "-c", unmount]
            tried.append(subprocess.run(command, capture_output=True, text=True).stdout)
        return tried

    assert result(inside(full, body)) == ["empty", "empty", "empty", "", "", ""]


def hand_over(folder: str) -> dict[str, str]:
    """Rank 0 leaves a word in every place that it can, rank 1 looks for it: {way: the word found}."""
    word, rank = b"handed over", dist.get_rank()
    note, name = f"{folder}/note", "\0course-test"
    libc, pids = ctypes.CDLL(None), [torch.zeros(1, dtype=torch.int64) for _ in range(2)]
    kept = []
    if rank == 0:
        for path in (note, "/dev/shm/note"):
            with contextlib.suppress(OSError), open(path, "wb") as file:
                file.write(word)
                os.chmod(path, 0o777)
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(name)
        listening.listen()
        libc.shmget(4242, 4096, 0o1666)
        open_file = tempfile.TemporaryFile()  # noqa: SIM115  (it is to stay open)
        open_file.write(word)
        open_file.flush()
        kept += [listening, open_file]
    dist.all_gather(pids, torch.tensor([os.getpid()]))
    found = {}
    if rank == 1:
        other = int(pids[0])
        for path in (note, "/dev/shm/note", f"/proc/{other}/environ", f"/proc/{other}/comm"):
            found[path.replace(str(other), "0")] = attempt(path)
        fds = f"/proc/{other}/fd"
        found["descriptors"] = attempt(fds)
        with socket.socket(socket.AF_UNIX) as calling:
            try:
                calling.connect(name)
                found["socket"] = "connected"
            except OSError as error:
                found["socket"] = type(error).__name__
        found["shared memory"] = "found" if libc.shmget(4242, 4096, 0) >= 0 else "none"
        try:
            os.kill(other, 0)
            found["signal"] = "sent"
        except OSError as error:
            found["signal"] = type(error).__name__
    dist.barrier()
    return found


def test_ranks_of_a_case_cannot_hand_values_over_beside_the_network(full: Sandbox) -> None:
    """All ways of `hand_over` that are open between ranks that are not kept apart are shut."""
    if not full.has(spec.APART):
        pytest.skip("this machine does not allow to keep ranks apart")
    together = result(inside(full.without(spec.APART), hand_over, "/tmp", world_size=2), rank=1)
    apart = result(inside(full, hand_over, "/tmp", world_size=2), rank=1)
    open_before = {
        "/tmp/note": "read", "/dev/shm/note": "read", "shared memory": "found", "socket": "connected",
        "signal": "sent",
    }  # fmt: skip
    assert {way: together[way] for way in open_before} == open_before
    scoped = {"socket", "signal"} if kernel.landlock_version() < kernel.SCOPED_SINCE else set()
    still_open = {"read", "listed", "connected", "found", "sent"}
    assert {way for way, seen in apart.items() if seen in still_open} <= scoped, apart


def leave_a_mark(store: int) -> dict[str, str]:
    """In rank 0, by each way without a file, process or byte of its own: {way: the error's name}."""
    word, kept, tried = b"handed over", [], {}

    def name_a_socket() -> None:
        named = socket.socket(socket.AF_UNIX)
        kept.append(named)
        named.bind("\0" + word.hex())

    def choose_an_address() -> None:
        named = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        kept.append(named)
        named.bind(("127.65.66.67", 4242))

    def lock_a_file() -> None:
        kept.append(open(os.__file__))  # noqa: SIM115  (it is to stay open)
        fcntl.flock(kept[-1], fcntl.LOCK_EX)

    def lock_a_record() -> None:
        # of the file's own: a lock ends with any descriptor of it that this process closes
        fcntl.lockf(store, fcntl.LOCK_EX, 1, 4242)

    ways = {
        "name": name_a_socket, "address": choose_an_address, "lock": lock_a_file, "record": lock_a_record,
        "attribute": lambda: os.setxattr(store, "user.word", word),
        "position": lambda: os.lseek(store, 4242, os.SEEK_SET),
        "opening": lambda: None,
    }  # fmt: skip
    for way, leave in ways.items():
        try:
            leave()
            tried[way] = ""
        except OSError as error:
            tried[way] = type(error).__name__
    dist.barrier()  # rank 1 watches
    with open(json.__file__) as file:
        file.read(1)
    dist.barrier()
    dist.barrier()  # rank 1 has looked
    return tried


def look_for_marks(store: int) -> dict[str, bool]:
    """In rank 1: {way: whether what rank 0 left there is seen}."""
    libc, seen = ctypes.CDLL(None), {}
    events = libc.inotify_init1(os.O_NONBLOCK)
    libc.inotify_add_watch(events, os.fsencode(json.__file__), 0x20)  # opened
    dist.barrier()
    dist.barrier()
    seen["name"] = b"handed over".hex() in Path("/proc/self/net/unix").read_text()
    seen["address"] = "4342417F:1092" in Path("/proc/self/net/udp").read_text()
    with open(os.__file__) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            seen["lock"] = False
        except OSError as error:
            seen["lock"] = isinstance(error, BlockingIOError)
    asked = struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, 4242, 1, 0)
    with contextlib.suppress(OSError):
        found = struct.unpack("hhqqi4x", fcntl.fcntl(store, fcntl.F_GETLK, asked))
        seen["record"] = found[0] != fcntl.F_UNLCK
    with contextlib.suppress(OSError):
        seen["attribute"] = os.getxattr(store, "user.word") == b"handed over"
    seen["position"] = os.lseek(store, 0, os.SEEK_CUR) == 4242
    with contextlib.suppress(OSError):
        seen["opening"] = bool(os.read(events, 4096))
    dist.barrier()
    return seen


def hint(shut: bool) -> dict:
    from course_lib.runtime.rank import _store_fd as store  # a rank has it only when it runs

    if shut:
        calls.forbid()
    return look_for_marks(store) if dist.get_rank() == 1 else leave_a_mark(store)


def test_ranks_of_a_case_cannot_leave_each_other_marks(full: Sandbox) -> None:
    """Neither in the network's tables, nor in the files that all of them see."""
    if not full.has(spec.APART):
        pytest.skip("this machine does not allow to keep ranks apart")
    open_ways = result(inside(full, hint, False, world_size=2), rank=1)
    assert {way for way, seen in open_ways.items() if seen} >= {
        "name",
        "address",
        "lock",
        "record",
        "opening",
    }
    outcome = inside(full, hint, True, world_size=2)
    assert not [way for way, seen in result(outcome, rank=1).items() if seen]
    tried = result(outcome, rank=0)
    refused = {"name", "address", "lock", "record", "attribute"}
    assert {tried[way] for way in refused} == {"PermissionError"}, tried


def test_a_check_begins_when_the_ranks_can_leave_no_marks(full: Sandbox, seed: int) -> None:
    def told(tensor: torch.Tensor) -> torch.Tensor:
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        return tensor

    if not full.has(spec.APART):
        pytest.skip("this machine does not allow to keep ranks apart")
    report = judge("00_first_ranks/ring_shift", wire.dumps((told,)), seed, sandbox=full)
    assert report["score"] == 0.0
    assert "PermissionError" in str(report)


def answered(
    steps: list[calls.Step], number: int, arguments: Sequence[int] = (), of: int = 0
) -> int:
    """The answer of a filter, run by hand."""
    loaded, at = 0, 0
    seen = {calls.NUMBER_AT: number, calls.ARCHITECTURE_AT: of}
    seen |= {16 + 8 * place: argument for place, argument in enumerate([*arguments, *[0] * 6][:6])}
    while True:
        code, yes, no, operand = steps[at]
        if code == calls.RETURN:
            return operand
        at += 1
        if code == calls.LOAD:
            loaded = seen[operand]
        elif code == calls.AND:
            loaded &= operand
        else:
            holds = {
                calls.EQUAL: loaded == operand,
                calls.AT_LEAST: loaded >= operand,
                calls.ANY_BIT: bool(loaded & operand),
            }[code]
            at += yes if holds else no


@pytest.fixture
def place() -> int:
    machine = os.uname().machine
    if machine not in calls.ARCHITECTURES:
        pytest.skip(f"nothing is known of the calls of {machine}")
    return calls.ARCHITECTURES[machine][0]


def test_a_rank_under_a_check_has_the_calls_that_it_needs_and_no_others(place: int) -> None:
    """Every number of this machine's calls."""
    architecture, mine = calls.ARCHITECTURES[os.uname().machine][1], 4711
    steps = calls.program(mine)
    allowed = {pair[place] for pair in calls.ALLOWED.values()}
    judged = {
        pair[place] for pair in (calls.CLONE, calls.FCNTL, calls.MMAP, calls.LIMITS, *calls.KILL)
    }
    for number in range(600):
        if number in judged:
            continue
        expected = calls.ALLOW if number in allowed else calls.REFUSE
        if number > calls.KNOWN or number == calls.CLONE3[place]:
            expected = calls.UNKNOWN
        assert answered(steps, number, of=architecture) == expected, number
    for command in range(1200):
        expected = calls.REFUSE if command in calls.MARKS_BY_FCNTL else calls.ALLOW
        assert answered(steps, calls.FCNTL[place] or 0, (0, command), architecture) == expected
    cases = [
        (calls.CLONE, (calls.THREAD | 0x100,), True), (calls.CLONE, (0x11,), False),
        (calls.MMAP, (0, 0, 0, mmap.MAP_SHARED), True), (calls.MMAP, (0, 0, 0, 0x22), True),
        (calls.MMAP, (0, 0, 0, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS), False),
        (calls.LIMITS, (0,), True), (calls.LIMITS, (7,), False),
        *((kill, (mine,), True) for kill in calls.KILL),
        *((kill, (mine + 1,), False) for kill in calls.KILL),
    ]  # fmt: skip
    for numbers, arguments, passes in cases:
        expected = calls.ALLOW if passes else calls.REFUSE
        assert answered(steps, numbers[place] or 0, arguments, architecture) == expected, arguments
    assert answered(steps, 0, of=architecture + 1) == calls.REFUSE
    assert answered(steps, calls.X32, of=architecture) == calls.REFUSE


def test_a_rank_takes_the_filter_that_was_made_before_the_fork(place: int) -> None:
    """The rank's own number stands in each place of ANY_RANK, and the rest is the same."""
    whole, any_rank = calls.program_of_ranks(), calls.packed([calls.own(calls.ANY_RANK)])
    assert whole.count(any_rank) == len(calls.KILL)
    own = whole.replace(any_rank, calls.packed([calls.own(4711)]))
    assert own == calls.packed(calls.program(4711))


def test_no_process_of_a_sandbox_leaves_its_namespaces(place: int) -> None:
    architecture = calls.ARCHITECTURES[os.uname().machine][1]
    steps = calls.program_everywhere()
    refused = {pair[place] for pair in calls.NOWHERE.values()}
    for number in range(600):
        expected = calls.REFUSE if number in refused else calls.ALLOW
        if number == calls.CLONE3[place]:
            expected = calls.UNKNOWN
        assert answered(steps, number, of=architecture) == expected, number
    for bit in range(32):
        expected = calls.REFUSE if 1 << bit & calls.NEW_NAMESPACES else calls.ALLOW
        assert answered(steps, calls.CLONE[place] or 0, (1 << bit,), architecture) == expected


def all_ways_to_rights() -> dict[str, str]:
    """The results of a new user namespace, by unshare and by clone, and of a new program."""
    said = {}
    for name, flags in (
        ("user", kernel.NEWUSER),
        ("mount", kernel.NEWNS),
        ("user and network", 0x50000000),
    ):
        try:
            kernel.unshare(flags)
            said[name] = "made"
        except OSError as error:
            said[name] = type(error).__name__
    new_user = kernel.libc.syscall(
        calls.here(calls.CLONE), kernel.NEWUSER | signal.SIGCHLD, 0, 0, 0, 0
    )
    if new_user == 0:
        os._exit(0)
    said["clone"] = "made" if new_user > 0 else "PermissionError"
    with open("/proc/self/status") as file:
        said["capabilities"] = next(line.split()[1] for line in file if line.startswith("CapEff"))
    said["program"] = subprocess.run(
        ["echo", "here"], capture_output=True, text=True
    ).stdout.strip()
    return said


def test_code_in_a_sandbox_gets_no_capabilities_by_a_new_namespace(strongest: Sandbox) -> None:
    if not strongest.has(spec.CALLS):
        pytest.skip("this machine has no filters of system calls")
    said = result(inside(strongest, all_ways_to_rights))
    assert {said.pop(way) for way in ("user", "mount", "user and network", "clone")} == {
        "PermissionError"
    }
    assert int(said["capabilities"], 16) == 0
    assert said["program"] == "here"  # a notebook's cell may start programs


def every_store_of_the_kernel() -> dict[str, str]:
    """The result for each place in which a process could hold memory that its pages do not show."""
    ways: dict[str, Callable[[], object]] = {
        "fork": os.fork,
        "program": lambda: os.execv("/bin/true", ["true"]),
        "spawn": lambda: subprocess.run(["true"]),
        "pipe": os.pipe,
        "socket pair": socket.socketpair,
        "memory file": lambda: os.memfd_create("kept"),
        "set of descriptors": select.epoll,
        "counter": lambda: os.eventfd(1),
        "shared pages": lambda: mmap.mmap(-1, 1 << 20),
        "segment": lambda: kernel.check(kernel.libc.shmget(0, 1 << 20, 0o1600), "shmget"),
        "messages": lambda: kernel.check(kernel.libc.msgget(0, 0o1600), "msgget"),
        "secret": lambda: kernel.check(kernel.libc.syscall(447, 0), "memfd_secret"),
        "process": lambda: os.kill(os.getppid(), 0),
        "names of mappings": lambda: kernel.prctl(0x53564D41, 0, 0, 1 << 20, 0),
    }
    said = {}
    for name, way in ways.items():
        try:
            way()
            said[name] = "done"
        except OSError as error:
            said[name] = type(error).__name__
    thread = threading.Thread(target=said.__setitem__, args=("thread", "done"))
    thread.start()
    thread.join()
    with tempfile.TemporaryFile() as file:
        said["own file"] = "done" if file.write(b"bytes") else ""
    return said


def stores(shut: bool) -> dict[str, str]:
    if shut:
        kernel.no_new_privileges()
        calls.forbid()
    return every_store_of_the_kernel() if shut else {}


def test_a_rank_under_a_check_has_no_place_for_memory_but_its_pages_and_files(place: int) -> None:
    if not calls.known():
        pytest.skip("this machine has no filters of system calls")
    said = launch(stores, True, world_size=2)[1]
    assert {said.pop(way) for way in ("thread", "own file")} == {"done"}
    assert set(said.values()) == {"PermissionError"}, said


def ways_around_the_count() -> dict[str, str]:
    """The peak that the kernel forgets, and memory whose pages can be given up and come back."""
    said = {}
    folders = ["/proc/self", "/proc/thread-self", f"/proc/{os.getpid()}/task/{os.getpid()}"]
    for path in (*(f"{folder}/clear_refs" for folder in folders), "/dev/zero"):
        try:
            os.close(os.open(path, os.O_WRONLY))
            said[path] = "open"
        except OSError as error:
            said[path] = type(error).__name__
    with open("/proc/self/status") as file:
        said["status"] = "read" if "VmHWM" in file.read() else ""
    return said


def test_a_rank_can_change_nothing_that_its_memory_is_counted_by(full: Sandbox) -> None:
    if not full.has(spec.APART, spec.USER):
        pytest.skip("this machine does not allow to keep ranks apart")
    bare = full.without(spec.LANDLOCK)  # which forbids it by itself
    said = result(inside(bare, ways_around_the_count))
    assert said.pop("status") == "read"
    assert "open" not in said.values(), said


def test_the_file_over_which_ranks_met_is_shut_before_a_students_code(seed: int) -> None:
    def told(tensor: torch.Tensor) -> torch.Tensor:
        dist.distributed_c10d._get_default_store().set("mine", b"handed over")
        return tensor

    report = judge("00_first_ranks/ring_shift", wire.dumps((told,)), seed)
    assert report["score"] == 0.0
    assert "Operation not permitted" in str(report)


def test_of_the_checks_only_what_runs_in_ranks_is_not_masked() -> None:
    masked = masked_paths("02_collectives")
    assert str(HERE / "collectives") in masked and str(HERE / "checks" / "notebooks") in masked
    assert not any(path.startswith(str(HERE / "checks" / "rank")) for path in masked)
    assert not any(path.startswith(str(HERE / "runtime")) for path in masked)


@pytest.mark.parametrize("name", [f"{a}/{one}" for a in assignments() for one in of_assignment(a)])
def test_what_an_exercise_runs_in_its_ranks_is_there_in_a_sandbox(name: str, seed: int) -> None:
    """All checks but their machinery are masked: a recipe that lies beside the cases would not be found."""
    for case in find(name).cases(Draw(seed, hidden=True)):
        for module in (case.recipe.partition(":")[0], *case.imports):
            assert not module.startswith("course_lib.checks.") or module.startswith(
                "course_lib.checks.rank."
            ), (name, case.title)


def test_masks_cover_compiled_files_of_a_module() -> None:
    masked = masked_paths("00_first_ranks")
    assert str(HERE / "first_ranks.py") in masked
    compiled = [str(p) for p in (HERE / "__pycache__").glob("first_ranks.*")]
    assert set(compiled) <= set(masked)


def test_a_rank_has_no_rights(strongest: Sandbox) -> None:
    def body() -> dict[str, str]:
        with open("/proc/self/status") as file:
            return {k: v.strip() for k, v in (line.split(":", 1) for line in file)}

    status = result(inside(strongest, body))
    for which in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        assert int(status[which], 16) == 0
    assert status["NoNewPrivs"] == "1"
    if strongest.has(spec.LOW_PRIVILEGE):
        assert status["Uid"].split() == [str(strongest.user)] * 4
        assert int(status["CapBnd"], 16) == 0


def test_the_environment_is_scrubbed(strongest: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    name, token = f"TOKEN_{secrets.token_hex(4)}", secrets.token_hex(8)
    monkeypatch.setenv(name, token)
    pools.close()
    pools.preload("course_lib.checks.rank.harness", environment=enter.harmless_environment())
    try:

        def body() -> tuple[dict, str]:
            with open("/proc/self/environ", "rb") as file:
                return dict(os.environ), file.read().decode()

        environment, initial = result(inside(strongest, body))
        assert token not in str(environment) and token not in initial
        assert environment["HOME"] == environment["TMPDIR"]
    finally:
        pools.close()
        pools.preload("course_lib.checks.rank.harness")


def test_only_its_own_descriptors_are_open(strongest: Sandbox) -> None:
    def body() -> list[str]:
        found = []
        for fd in os.listdir("/proc/self/fd"):
            try:
                found.append(os.readlink(f"/proc/self/fd/{fd}"))
            except OSError:
                continue  # the folder's own, closed again
        return found

    names = result(inside(strongest, body))
    kinds = {name.split(":")[0].split("-")[0].split(" ")[0] for name in names}
    assert kinds <= {
        "pipe",
        "socket",
        "anon_inode",
        "/memfd",
        "/dev/null",
        "/proc/1/fd",
        "/proc/self/fd",
    } | {name for name in names if name.startswith("/proc/")}, names


# ---- the network


def test_only_the_loopback_is_there_and_ranks_use_it(full: Sandbox) -> None:
    with open("/proc/net/dev") as file:
        outside = len(file.readlines())

    def body(numel: int) -> tuple[float, list[str], str]:
        x = torch.ones(numel)
        dist.all_reduce(x)
        with open("/proc/net/dev") as file:
            names = [line.split(":")[0].strip() for line in file.readlines()[2:]]
        try:
            socket.create_connection(("192.0.2.1", 80), timeout=2).close()
        except OSError as error:
            return x[0].item(), names, type(error).__name__
        return x[0].item(), names, "connected"

    numel, n = 1 << 18, 3
    outcome = inside(full, body, numel, world_size=n)
    total, names, tried = result(outcome)
    assert total == n and names == ["lo"] and tried in ("OSError", "ConnectionRefusedError")
    ideal = 2 * (n - 1) * numel * 4
    assert outcome.wire_bytes is not None
    assert ideal <= outcome.wire_bytes < 1.05 * ideal, "the kernel counts what the ranks sent"
    with open("/proc/net/dev") as file:
        assert len(file.readlines()) == outside


def test_ranks_in_a_sandbox_take_turns_as_others_do(full: Sandbox) -> None:
    def body() -> set[int]:
        dist.barrier()
        return {os.sched_getscheduler(int(thread)) for thread in os.listdir("/proc/self/task")}

    assert result(inside(full, body, world_size=2)) == {os.SCHED_BATCH}


def test_nobody_counts_without_a_network_of_its_own(strongest: Sandbox) -> None:
    assert inside(strongest.without(spec.NETWORK), dist.get_rank).wire_bytes is None
    assert inside(None, dist.get_rank).wire_bytes is None


# ---- every way down, not only the strongest


def ways() -> list[tuple[str, ...]]:
    return list(dict.fromkeys([*probe.candidates(True), *probe.candidates(False)]))


@pytest.mark.parametrize(
    "layers", ways(), ids=lambda layers: ", ".join(layers[:-2]) or "limits only"
)
def test_ranks_work_and_nothing_is_left_in_whatever_sandbox(
    strongest: Sandbox, layers: tuple[str, ...]
) -> None:
    """A daemon that left its session and closed everything is ended with the ranks."""
    sandbox = replace(strongest, layers=layers)
    if probe.try_out(pools.preloaded(), sandbox) is None:
        pytest.skip(f"this machine does not allow {', '.join(layers)}")
    mark = f"left-behind-{secrets.token_hex(6)}"

    def body() -> float:
        x = torch.ones(5)
        dist.all_reduce(x)
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.closerange(0, 64)
                os.execv("/bin/sh", ["/bin/sh", "-c", f"while true; do sleep 1; done; : {mark}"])
            os._exit(0)
        time.sleep(0.3)
        return x[0].item()

    for _ in range(2):
        assert result(inside(sandbox, body, world_size=2)) == 2.0
    pools.end_spares()
    wait_for(lambda: not running(mark))


def test_nothing_is_left_of_a_sandbox_whose_owner_left_without_reading(strongest: Sandbox) -> None:
    """Its first process, which waits for orders, then gets an error and not the end of the file."""
    sandbox = replace(strongest, layers=probe.ALWAYS)
    mark = f"left-behind-{secrets.token_hex(6)}"

    def start(*_: object) -> NoReturn:
        if os.fork() == 0:
            os.setsid()
            os.execv("/bin/sh", ["/bin/sh", "-c", f"while true; do sleep 1; done; : {mark}"])
        signal.pause()
        raise AssertionError("a signal came, and did not end this")

    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    keeper = os.fork()
    if keeper == 0:
        with contextlib.suppress(BaseException):
            mine.close()
            init.keep(sandbox, its, {"fork": 1, "children": [[]]}, [], start)
        os._exit(1)
    its.close()
    wait_for(lambda: running(mark))
    assert select.select([mine], [], [], 20)[0], "it tells its children"
    mine.close()
    assert os.waitstatus_to_exitcode(os.waitpid(keeper, 0)[1]) == 0
    assert not running(mark)


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert condition()


def running(mark: str) -> list[int]:
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if mark.encode() in line:
            found.append(int(pid))
    return found


def test_a_user_without_rights_has_a_sandbox_too(tmp_path: Path) -> None:
    """As on a machine where the grader is not root: user namespaces instead of rights."""
    if os.geteuid() != 0:
        pytest.skip("this is such a machine: the other tests show it")
    code = (
        "import json\n"
        "from course_lib.runtime import pools\n"
        "from course_lib.runtime.sandbox.probe import probe\n"
        "print(json.dumps(probe(pools.preloaded()).layers))\n"
    )
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
                   "PYTHONDONTWRITEBYTECODE": "1", "HOME": str(tmp_path)}  # fmt: skip
    readable = subprocess.run(
        [sys.executable, "-c", code], user=1000, group=1000, extra_groups=[], env=environment,
        cwd="/", capture_output=True, text=True,
    ) if reachable(sys.executable) else None  # fmt: skip
    if readable is None:
        pytest.skip("another user cannot run this Python: its folder is private")
    assert readable.returncode == 0, readable.stderr
    layers = json.loads(readable.stdout)
    assert spec.NO_PRIVILEGES in layers and spec.LOW_PRIVILEGE not in layers


def reachable(path: str) -> bool:
    """Can every user follow this path?"""
    real = Path(path).resolve()
    return all(folder.stat().st_mode & 0o001 for folder in real.parents)


# ---- limits


def test_memory_of_all_processes_together_is_bounded(full: Sandbox) -> None:
    def body() -> None:
        held = []
        for _ in range(4):
            if os.fork() == 0:
                while True:
                    held.append(bytearray(os.urandom(1 << 20) * 16))
                    time.sleep(0.05)
        time.sleep(60)

    outcome = inside(replace(full, memory=400 << 20), body)
    assert outcome.failure is not None
    assert "its processes held too much memory" in outcome.failure.message


def test_memory_of_one_process_is_bounded(strongest: Sandbox) -> None:
    outcome = inside(replace(strongest, memory=300 << 20), lambda: bytes(1 << 30) and None)
    assert outcome.failure is not None and "MemoryError" in outcome.failure.message


def test_processes_are_bounded(strongest: Sandbox) -> None:
    if not (strongest.has(spec.LOW_PRIVILEGE) or os.geteuid()):
        pytest.skip("the number of root's processes cannot be bounded by a limit")

    def body() -> int:
        for count in range(1000):
            try:
                if os.fork() == 0:
                    time.sleep(100)
            except BlockingIOError:
                return count
        return 1000

    assert result(inside(replace(strongest, processes=40), body)) < 41


def test_the_private_folder_is_bounded_and_private(full: Sandbox) -> None:
    def body(megabytes: int) -> tuple[int, str, list[str]]:
        before = os.listdir("/tmp")
        for count in range(megabytes):
            try:
                with open(f"/tmp/file{count}", "wb") as file:
                    file.write(bytes(1 << 20))
            except OSError as error:
                return count, error.strerror or "", before
        return megabytes, "", before

    small = replace(full, disk=8 << 20)
    for _ in range(2):
        written, why, before = result(inside(small, body, 20))
        assert written in (7, 8) and why == "No space left on device"
        # beside `home` only what leads to a Python that lies below /tmp
        assert not any(name.startswith("file") for name in before), "nothing of an earlier run"


def test_one_file_is_bounded(strongest: Sandbox) -> None:
    """Also one that has no name, in memory."""

    def body() -> str:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            os.ftruncate(os.memfd_create("large"), 64 << 20)
        except OSError as error:
            return error.strerror or ""
        return "done"

    assert result(inside(replace(strongest, disk=8 << 20), body)) == "File too large"


# ---- the end


def processes_below(pid: int) -> set[int]:
    found = {pid}
    while True:
        children = set()
        for name in filter(str.isdecimal, os.listdir("/proc")):
            try:
                parent = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent in found:
                children.add(int(name))
        if children <= found:
            return found
        found |= children


@pytest.mark.parametrize("victim", ["keeper", "preloaded"])
def test_the_sandbox_ends_with_whoever_holds_it(full: Sandbox, victim: str) -> None:
    process = pools.preloaded()
    mine, its = socket.socketpair()
    children = process.spawn([(SERVER, {}, [its.fileno()])], full)  # a process that waits
    forked = children.started()
    below = processes_below(forked["keeper"])
    assert len(below) == 3, "keeper, init and the child"
    os.kill(forked["keeper"] if victim == "keeper" else process.process.pid, signal.SIGKILL)
    deadline = time.monotonic() + 20
    while any(map(alive, below)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not [pid for pid in below if alive(pid)]
    if victim == "keeper":
        while children.exit_code(0) is None and time.monotonic() < deadline:
            process.read(0.1)
        assert children.exit_code(0) is not None
    assert result(inside(full, dist.get_rank)) == 0, "and the next one works"
    mine.close()
    its.close()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_sandbox_that_cannot_be_made_says_why(full: Sandbox) -> None:
    broken = replace(full, visible=(*full.visible, "/no/such/folder"))
    children = pools.preloaded().spawn([(SERVER, {}, [0])], broken)
    with pytest.raises(course_lib.LaunchError, match="could not be made"):
        children.started()
    children.end()


def test_a_kernel_without_landlock_is_told_apart() -> None:
    assert 0 <= kernel.landlock_version() < 100


# ---- sandboxes that stand


@pytest.fixture
def standing(full: Sandbox) -> Iterator[Sandbox]:
    yield replace(full, stands=True)
    pools.end_spares()
    walls.end_all()


def test_ranks_find_nothing_of_those_before_them_in_a_sandbox_that_stands(
    standing: Sandbox,
) -> None:
    """They find neither a daemon that left its session nor files, shared memory, sockets or a niceness."""
    mark = f"left-behind-{secrets.token_hex(6)}"

    def leave() -> str:
        if os.fork() == 0:
            os.setsid()
            os.execv("/bin/sh", ["/bin/sh", "-c", f"while true; do sleep 1; done; : {mark}"])
        Path("/tmp/left").write_text("here")
        Path("/dev/shm/left").write_text("here")
        heard = socket.socket(socket.AF_UNIX)
        heard.bind("\0left")
        heard.detach()
        dist.barrier()
        return os.readlink("/proc/self/ns/net")

    def look() -> tuple[str, list[str], bool, int, int]:
        files = [*os.listdir("/tmp"), *os.listdir("/dev/shm")]
        others = len([name for name in os.listdir("/proc") if name.isdecimal()])
        try:
            socket.socket(socket.AF_UNIX).connect("\0left")
            heard = True
        except ConnectionRefusedError:
            heard = False
        network = os.readlink("/proc/self/ns/net")
        return network, files, heard, os.getpriority(os.PRIO_PROCESS, 0), others

    first = inside(standing, leave, spare=False)
    network, files, heard, niceness, others = result(inside(standing, look, spare=False))
    assert network == result(first), "the same sandbox"
    assert "left" not in files and not heard
    assert niceness == os.getpriority(os.PRIO_PROCESS, 0)
    assert others == result(inside(replace(standing, stands=False), look, spare=False))[-1]
    assert not running(mark)


def test_the_next_ranks_wait_in_another_sandbox(standing: Sandbox) -> None:
    """While the ranks of a case run, their bytes are counted, and no other rank sees them."""

    def network(n: int = 0) -> str:
        for _ in range(n):
            dist.all_reduce(torch.ones(1000))
        return os.readlink("/proc/self/ns/net")

    counted = [
        inside(standing, network, 3, world_size=2, ahead=ahead, spare=False)
        for ahead in (2, 2, 2, None)
    ]
    one, two, three, four = map(result, counted)
    assert one == three != two == four
    sent = [outcome.wire_bytes for outcome in counted]
    assert None not in sent and max(sent) - min(sent) < 2000, sent


@pytest.mark.parametrize("end", ["memory", "keeper", "rank"])
def test_after_a_standing_sandbox_has_ended_there_is_another(standing: Sandbox, end: str) -> None:
    small = replace(standing, memory=64 << 20)

    def body() -> None:
        if end == "memory":
            file = os.memfd_create("one")
            for _ in range(400):
                os.write(file, bytes(1 << 20))
            time.sleep(60)
        os.kill(os.getpid(), signal.SIGKILL)

    if end == "keeper":
        assert result(inside(small, dist.get_rank, spare=False)) == 0
        (one,) = walls._standing
        os.kill(one.children.started()["keeper"], signal.SIGKILL)
        time.sleep(0.5)
    else:
        outcome = inside(small, body, world_size=2, spare=False)
        assert outcome.failure is not None
        assert outcome.limit == ("memory" if end == "memory" else "")
    for _ in range(2):
        assert result(inside(small, dist.get_rank, spare=False)) == 0


@pytest.mark.parametrize("way", ["wrong", "not written", "deadlocks"])
def test_a_check_leaves_no_sandbox_standing(full: Sandbox, seed: int, way: str) -> None:
    """Nor do ranks forked ahead wait in a sandbox in which this submission's code has run."""

    def ring_shift(tensor, group=None):
        if way == "not written":
            raise NotImplementedError
        if way == "deadlocks":
            dist.recv(tensor, (dist.get_rank(group) + 1) % dist.get_world_size(group), group)
        return tensor

    pools.end_spares()
    report = judge("00_first_ranks/ring_shift", wire.dumps((ring_shift,)), seed, sandbox=full)
    assert report["score"] < 1
    assert not walls._standing and not pools._spares
    below = processes_below(pools.preloaded().process.pid)
    assert wait_until(lambda: not [pid for pid in below if alive(pid)][1:]), below


@pytest.mark.parametrize("layer", [spec.PID, spec.MOUNT, spec.NETWORK, spec.APART])
def test_what_could_outlive_ranks_gives_each_their_own_sandbox(
    standing: Sandbox, layer: str
) -> None:
    less = standing.without(layer)
    assert walls.take(pools.preloaded(), less, 2) is None
    assert walls.take(pools.preloaded(), replace(standing, stands=False), 2) is None
    assert walls.take(pools.preloaded(), standing, walls.ROOM + 1) is None
    assert walls.take(pools.preloaded(), standing, walls.ROOM) is not None


def test_children_that_cannot_be_forked_say_why(
    standing: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the group that they would have formed, and the sandbox ends."""
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one = init.Init.__new__(init.Init)
    one.link, one.sandbox, one.folder, one.group = its, standing, "", 1

    def refused(order: dict, fds: list[int]) -> None:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(one, "fork", refused)
    monkeypatch.setattr(one, "end", lambda: None)
    one.obey({"fork": 7, "children": [[]]}, [])
    said = json.loads(mine.recv(1 << 16))
    assert said["of"] == 7 and "no more processes" in said["failed"]
    mine.close()
    its.close()


def test_bounds_reached_by_ranks_that_are_gone_do_not_count(tmp_path: Path) -> None:
    def kernel_says(killed: int, refused: int) -> None:
        (tmp_path / "memory.events").write_text(f"oom_kill {killed}\n")
        (tmp_path / "pids.events").write_text(f"max {refused}\n")
        (tmp_path / "pids.current").write_text("3\n")

    kernel_says(1, 5)
    watch = control.Watch([str(tmp_path)], 64)
    assert watch.reached() == "memory"
    watch.forget()
    time.sleep(2 * control.LOOK)
    assert watch.reached() == "" and watch.refused == 5
    kernel_says(2, 5)
    assert watch.reached() == "memory"
    for fd in watch.fds:
        os.close(fd)


# ---- control groups


@pytest.fixture
def bounded(strongest: Sandbox) -> Sandbox:
    """A sandbox with a control group and few other layers, so that these do not do its work."""
    if not strongest.has(spec.CONTROL_GROUPS):
        pytest.skip(f"this machine lets the grader make no control groups, only {strongest.layers}")
    kept = [spec.PID, spec.MOUNT, spec.CONTROL_GROUPS]
    return replace(strongest, layers=tuple(layer for layer in kept if strongest.has(layer)))


def groups_of(owner: int) -> list[str]:
    name = f"{control.PREFIX}-{owner}-"
    return [path for path in control.groups(hierarchy.parents()) if f"/{name}" in path]


def wait_until(condition: Any, seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


@pytest.mark.parametrize("groups", [True, False], ids=["control group", "no control group"])
def test_memory_in_files_without_a_name_is_bounded_and_told(
    request: pytest.FixtureRequest, groups: bool, seed: int
) -> None:
    """No page of a process shows such a file, unless the process maps it."""
    name = "bounded" if groups else "full"
    sandbox: Sandbox = request.getfixturevalue(name)
    sandbox = sandbox if groups else sandbox.without(spec.CONTROL_GROUPS)
    pieces = random.Random(seed).randrange(300, 500)

    def body() -> None:
        files = [os.memfd_create("one"), os.memfd_create("two")]
        for number in range(pieces):
            os.write(files[number % 2], bytes(1 << 20))
        time.sleep(60)

    small = replace(sandbox, memory=64 << 20)
    for _ in range(3):  # the reason comes before the exit codes, each time
        outcome = inside(small, body, world_size=2)
        assert outcome.limit == "memory"
        assert outcome.failure is not None
        assert "its processes held too much memory" in outcome.failure.message
    assert result(inside(small, dist.get_rank)) == 0, "and the next one works"


def test_a_fork_bomb_that_swallows_its_errors_is_told(bounded: Sandbox) -> None:
    def body() -> None:
        while True:
            with contextlib.suppress(OSError):
                os.fork()

    outcome = inside(replace(bounded, processes=24), body)
    assert outcome.limit == "processes"
    assert outcome.failure is not None
    assert "kept starting processes" in outcome.failure.message


def test_a_refused_process_alone_ends_nothing(bounded: Sandbox) -> None:
    def body() -> int:
        children = []
        while len(children) < 1000:
            try:
                pid = os.fork()
            except BlockingIOError:
                break
            if pid == 0:
                time.sleep(60)
            children.append(pid)
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        time.sleep(2 * control.PATIENCE)
        return len(children)

    assert 5 < result(inside(replace(bounded, processes=24), body)) < 24


def test_nothing_of_control_groups_is_reached_from_inside(bounded: Sandbox) -> None:
    def body() -> tuple[bool, bool]:
        return os.path.exists("/sys/fs/cgroup"), bounds.writable()

    if not bounded.has(spec.MOUNT):
        pytest.skip("this machine allows no mount namespace: the folder stays in sight")
    assert result(inside(bounded, body)) == (False, False)


def test_groups_are_removed_when_their_sandboxes_end(bounded: Sandbox) -> None:
    process = pools.Preloaded()  # a new one: processes that another test left may still be ending
    mine, its = socket.socketpair()
    with mine, its:
        children = process.spawn([(SERVER, {}, [its.fileno()])], bounded)
        children.started()
        folders = groups_of(process.process.pid)
        assert len(folders) == len(set(hierarchy.parents().values()))
        children.end()
    assert wait_until(lambda: not any(map(os.path.exists, folders))), folders
    process.close()


@pytest.mark.parametrize("way", ["closed", "killed"])
def test_no_group_outlives_the_preloaded_process_for_long(bounded: Sandbox, way: str) -> None:
    """If it was killed before it could remove them, the next one does."""
    process = pools.Preloaded()
    mine, its = socket.socketpair()
    with mine, its:
        process.spawn([(SERVER, {}, [its.fileno()])], bounded).started()
        assert groups_of(process.process.pid)
        if way == "closed":
            process.close()
        else:
            process.process.kill()
            process.process.wait()
            process.close()

            def empty() -> bool:
                control.remove_stale()
                return not groups_of(process.process.pid)

            assert wait_until(empty)
    assert not groups_of(process.process.pid)


def test_groups_of_whoever_still_runs_stay(bounded: Sandbox) -> None:
    folders = [
        f"{parent}/{control.name_of(os.getpid(), 0)}"
        for parent in set(hierarchy.parents().values())
    ]
    for folder in folders:
        os.mkdir(folder)
    try:
        control.remove_stale()
        assert all(map(os.path.isdir, folders))
    finally:
        assert control.remove_groups({0}) == set()
    assert not any(map(os.path.exists, folders))


def test_a_group_that_cannot_be_made_is_told(bounded: Sandbox) -> None:
    children = pools.preloaded().spawn([(SERVER, {}, [0])], replace(bounded, memory=1 << 80))
    with pytest.raises(
        course_lib.LaunchError, match=r"could not be made: ControlGroupError.*memory"
    ):
        children.started()
    children.end()


MOUNTS = """\
25 30 0:23 / /sys/fs/cgroup ro - tmpfs tmpfs ro
31 25 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
32 25 0:28 /docker/4f /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
33 25 0:29 / /sys/fs/cgroup/unified rw shared:4 - cgroup2 cgroup2 rw
"""


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ("4:memory:/a/b", {"memory": "/sys/fs/cgroup/memory/a/b"}),
        ("4:memory:/\n0::/user.slice", {"memory": "/sys/fs/cgroup/memory",
                                        "unified": "/sys/fs/cgroup/unified/user.slice"}),
        ("8:pids:/docker/4f/c", {"pids": "/sys/fs/cgroup/pids/c"}),
        ("8:pids:/docker/4f", {"pids": "/sys/fs/cgroup/pids"}),
        ("8:pids:/docker/4f0", {}),  # another container's: not mounted here
        ("8:pids:/", {}),
        ("4:memory:/../other", {}),
        ("1:name=systemd:/", {}),
    ],
)  # fmt: skip
def test_a_process_finds_the_folders_of_its_own_groups(groups: str, expected: dict) -> None:
    assert hierarchy.own_folders(groups, MOUNTS) == expected


def test_in_version_2_the_graders_family_alone_may_be_moved() -> None:
    below = subprocess.Popen(["sleep", "60"])
    try:
        own = {os.getppid(), os.getpid(), below.pid}
        assert hierarchy.family(own) == own
        assert hierarchy.family({os.getpid(), below.pid}) == {os.getpid(), below.pid}
        assert hierarchy.family({below.pid, os.getpid(), 2}) == {below.pid, os.getpid()}
    finally:
        below.kill()
        below.wait()


@pytest.mark.parametrize("event", ["oom_kill", "oom"])
def test_what_version_2_tells_is_understood(tmp_path: Path, event: str, seed: int) -> None:
    """A process that the kernel ended counts; an allocation that succeeded in the end does not."""
    drawn = random.Random(seed)
    held, kills = drawn.randrange(1 << 30), drawn.randrange(1, 9)
    kept = {"low": 0, "high": 0, "max": 3, "oom": 0, "oom_kill": 0, event: kills}
    (tmp_path / "memory.events").write_text("".join(f"{k} {v}\n" for k, v in kept.items()))
    (tmp_path / "memory.current").write_text(f"{held}\n")
    (tmp_path / "pids.events").write_text("max 0\n")
    watch = control.Watch([str(tmp_path)], 10)
    try:
        assert watch.amount("held") == held
        assert watch.count("memory", event) == kills
        assert watch.reached() == ("memory" if event == "oom_kill" else "")
    finally:
        for fd in watch.fds:
            os.close(fd)


def test_a_bound_that_is_not_taken_is_no_bound(tmp_path: Path) -> None:
    (tmp_path / "pids.max").symlink_to("/dev/null")
    with pytest.raises(hierarchy.ControlGroupError, match=r"was set to 7, but is $"):
        control.bound(str(tmp_path), 1 << 30, 7)


HOARDS = {
    "memory": lambda tensor: [bytes(1 << 24) for _ in range(1 << 10)],
    "files": lambda tensor: [os.dup(0) for _ in range(1 << 12)],
    "disk": lambda tensor: [open(f"{n}", "wb").write(bytes(1 << 20)) for n in range(1 << 10)],  # noqa: SIM115
}


@pytest.mark.parametrize("what", HOARDS)
def test_a_judge_tells_what_ranks_used_up(strongest: Sandbox, seed: int, what: str) -> None:
    if what == "disk" and not strongest.has(spec.MOUNT):
        pytest.skip("without a mount namespace there is no bound on what all files hold together")
    small = replace(strongest, memory=256 << 20, disk=64 << 20)
    hoard = wire.dumps((HOARDS[what],))
    report = judge("00_first_ranks/ring_shift", hoard, seed, sandbox=small)
    assert (report["score"], report["limit"]) == (0.0, what), report


def hold_a_share(tensor: torch.Tensor) -> torch.Tensor:
    """Hold less than one process may, and with the other ranks more than all may."""
    held = torch.ones(20 << 20)
    time.sleep(0.5)  # until the sandbox has looked
    return tensor + held[0]


def test_a_sandbox_whose_ranks_use_up_memory_in_every_case_is_never_the_graders_fault(
    strongest: Sandbox, seed: int
) -> None:
    """The sandbox of the next case stands already, and shares its bound with the one that is ended."""
    if not strongest.has(spec.CONTROL_GROUPS):
        pytest.skip("without control groups there is no bound on what all ranks hold together")
    small = replace(strongest, memory=300 << 20)
    report = judge(
        "02_collectives/ring_all_reduce", wire.dumps((hold_a_share,)), seed, sandbox=small
    )
    sentences = " ".join(said for line in report["lines"] for said in line["sentences"])
    assert (report["score"], report["limit"]) == (0.0, "memory"), report
    told = "ranks 0, 1, 2 and 3 died: ended by the sandbox: its processes held too much memory"
    assert told in sentences, sentences


def test_packages_that_pythonpath_leads_to_are_visible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pip install --target FOLDER` and PYTHONPATH=FOLDER, as seen on a rented machine."""
    (tmp_path / "traitlets").mkdir()
    (tmp_path / "traitlets" / "__init__.py").write_text("")
    assert str(tmp_path) not in spec.python_folders()
    found = SimpleNamespace(origin=str(tmp_path / "traitlets" / "__init__.py"))
    monkeypatch.setattr(spec.importlib.util, "find_spec", lambda name: found)
    assert str(tmp_path) in spec.visible_paths()
