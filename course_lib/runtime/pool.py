"""The kernel's side of the preloaded process, and of the pools of ranks that it forks."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

from course_lib.ledger import rows
from course_lib.runtime import wire
from course_lib.runtime.backend import ALONE
from course_lib.runtime.children import Children, Entry
from course_lib.runtime.errors import LaunchError
from course_lib.runtime.sandbox.spec import Sandbox

ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
PRELOAD = ("torch", "torch.distributed", "numpy.random", "cloudpickle", "course_lib.runtime.rank",
           "course_lib.runtime.alone", "course_lib.runtime.call",
           "course_lib.runtime.sandbox.init")  # fmt: skip
RANK, SINGLE = "course_lib.runtime.rank:start", "course_lib.runtime.alone:start"
SPARES = 3
STACK = 1 << 20  # bytes of a stack that are read


class Preloaded:
    """A process that has imported torch and forks others on request.

    environment: what it is started with, instead of this process's own; `modules` are imported there.
    """

    def __init__(self, modules: tuple[str, ...] = (), environment: dict[str, str] | None = None):
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.environment = dict(os.environ if environment is None else environment)
        given = dict(
            self.environment, **dict.fromkeys(ONE_THREAD, "1"), COURSE_ROLE="preloaded",
            PYTORCH_NVML_BASED_CUDA_CHECK="1",
        )  # fmt: skip
        given.setdefault("GLOO_SOCKET_IFNAME", "lo")
        given.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        code = (
            f"import sys; sys.path[:] = {[os.path.abspath(p) for p in sys.path]!r}\n"
            "from course_lib.runtime.preload import main\n"
            f"main({there.fileno()}, {os.getpid()}, {[*PRELOAD, *modules]!r})"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], pass_fds=[there.fileno()], env=given,
            start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )  # fmt: skip
        there.close()
        self.socket, self.owner = here, os.getpid()
        self.groups: dict[int, Children] = {}
        self.imported = {*PRELOAD, *modules}

    def alive(self) -> bool:
        return self.owner == os.getpid() and self.process.poll() is None

    def spawn(self, entries: Sequence[Entry], sandbox: Sandbox | None = None) -> Children:
        """Fork one process for each entry; see `Children`."""
        return Children(self, entries, sandbox)

    def also_import(self, modules: Sequence[str]) -> None:
        """Import these before the next fork, unless that was asked for before; returns at once."""
        more = [name for name in modules if name not in self.imported]
        if more:
            self.imported.update(more)
            with contextlib.suppress(
                OSError
            ):  # it has ended; the next launch tells, or starts anew
                self.socket.send(json.dumps({"import": more}).encode())

    def read(self, wait: float | None = 0) -> bool:
        """Take in what the process has told; False when nothing came within `wait` seconds."""
        if not select.select([self.socket], [], [], wait)[0]:
            return False
        data = self.socket.recv(1 << 16)
        if not data:
            raise LaunchError(self.obituary())
        message = json.loads(data)
        group = self.groups.get(message.get("of"))
        if group is not None:  # else it speaks of children that were ended
            group.take(message)
        return True

    def obituary(self) -> str:
        code = self.process.wait()
        said = (
            self.process.stderr.read().decode(errors="replace").strip()
            if self.process.stderr
            else ""
        )
        reason = f" It said:\n{said}" if said else ""
        return (
            f"the process that forks the ranks ended (exit code {code}); the next launch() starts a new "
            f"one. If it happens again, run `python -m course_lib.doctor`.{reason}"
        )

    def close(self) -> None:
        self.socket.close()
        if self.owner != os.getpid():
            return
        try:
            self.process.wait(2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stderr:
            self.process.stderr.close()


class Adopted(Preloaded):
    """A server that somebody else started, in the same sandbox, and handed over as a socket."""

    def __init__(self, sock: socket.socket):
        self.socket, self.owner = sock, os.getpid()
        self.environment = dict(os.environ)
        self.groups = {}
        self.imported = set(PRELOAD)
        self.gone = False

    def alive(self) -> bool:
        return self.owner == os.getpid() and not self.gone

    def obituary(self) -> str:
        self.gone = True
        return "the process that forks the ranks has ended; no more ranks can be launched here."

    def close(self) -> None:
        self.socket.close()


class Pool:
    """N ranks, forked and joining their process group, for one task (or several, under NCCL)."""

    def __init__(
        self, preloaded: Preloaded, world_size: int, backend: str, record: bool,
        sandbox: Sandbox | None = None,
    ):  # fmt: skip
        self.preloaded, self.world_size, self.backend = preloaded, world_size, backend
        self.record, self.sandbox = record, sandbox
        self.imported = set(preloaded.imported)  # when these were forked
        self.hello: set[int] = set()
        self.ended = False
        store = rows.anonymous_file("course-store")
        board = rows.anonymous_file("course-board", rows.Board.size(world_size))
        self.board = rows.Board(board, world_size)
        self.sockets: list[socket.socket] = []
        self.receivers: list[wire.Receiver] = []
        self.pipes: list[tuple[int, int]] = []  # stdout, stderr
        self.logs: list[tuple[int, int]] = []  # rows, texts
        self.stacks: list[int] = []
        handed_over, entries = [store, board], []
        for rank in range(world_size):
            mine, its = socket.socketpair()
            mine.setblocking(False)
            out, out_end = os.pipe()
            err, err_end = os.pipe()
            os.set_blocking(out, False)
            os.set_blocking(err, False)
            log = (rows.anonymous_file("course-rows"), rows.anonymous_file("course-texts"))
            stack = rows.anonymous_file("course-stack")
            self.sockets.append(mine)
            self.receivers.append(wire.Receiver(mine))
            self.pipes.append((out, err))
            self.logs.append(log)
            self.stacks.append(stack)
            ends = [its.detach(), out_end, err_end]
            handed_over += ends
            order = {"rank": rank, "world_size": world_size, "backend": backend, "record": record}
            # the store, the board, the logs and the stacks are shared with the rank
            entry = SINGLE if backend == ALONE else RANK
            entries.append((entry, order, [store, board, *ends, *log, stack]))
        try:
            self.children = preloaded.spawn(entries, sandbox)
        finally:
            for fd in handed_over:
                os.close(fd)

    @property
    def pids(self) -> list[int]:
        return self.children.pids

    def exit_code(self, rank: int) -> int | None:
        return self.children.exit_code(rank)

    def stack(self, rank: int, wait: float = 0.5) -> str:
        """The rank's Python stack, also while C code runs; "" when it does not answer."""
        before = os.fstat(self.stacks[rank]).st_size
        self.children.signal(rank, signal.SIGUSR1)
        deadline, size = time.monotonic() + wait, before
        while time.monotonic() < deadline:
            time.sleep(0.005)
            now = os.fstat(self.stacks[rank]).st_size
            if now > before and now == size:
                break
            size = now
        return os.pread(self.stacks[rank], min(size - before, STACK), before).decode(
            errors="replace"
        )

    def end(self) -> None:
        """Kill every rank and what it started; give all memory and descriptors back."""
        if self.ended:
            return
        self.ended = True
        self.children.end()
        for sock in self.sockets:
            sock.close()
        for fd in [fd for group in (*self.pipes, *self.logs, self.stacks) for fd in group]:
            os.close(fd)
        self.board.map.close()


_preloaded: Preloaded | None = None
_spares: dict[tuple, Pool] = {}
_modules: tuple[str, ...] = ()
_environment: dict[str, str] | None = None


def preloaded() -> Preloaded:
    """The preloaded process of this process, started when there is none."""
    global _preloaded
    if _preloaded is None or not _preloaded.alive():
        _spares.clear()
        _preloaded = Preloaded(_modules, _environment)
    return _preloaded


def adopt(sock: socket.socket) -> None:
    """Let `sock`'s other end, a `preload.Server`, fork the ranks of this process."""
    global _preloaded
    _preloaded = Adopted(sock)


def preload(*modules: str, environment: dict[str, str] | None = None) -> None:
    """Start the preloaded process in the background; `modules` are imported there beforehand.

    environment: what its children see instead of this process's environment.
    """
    global _modules, _environment
    _modules, _environment = modules, environment
    preloaded()


def pool(
    world_size: int, backend: str, record: bool, sandbox: Sandbox | None = None,
    imports: Sequence[str] = (),
) -> Pool:  # fmt: skip
    """Ranks that wait for a task: the spare ones when there are, else new ones.

    Spare ranks that were forked before the preloaded process was asked for `imports` are ended: each would
    import them again, at the same time as the others and within the task's time.
    """
    process = preloaded()
    found = _spares.pop((world_size, backend, record, sandbox), None)
    if found is not None and found.preloaded is process and healthy(found):
        if found.imported.issuperset(imports):
            return found
        found.end()
    return Pool(process, world_size, backend, record, sandbox)


def healthy(pool: Pool) -> bool:
    while pool.preloaded.read(0):
        continue
    good = not any(pool.exit_code(rank) is not None for rank in range(pool.world_size))
    if not good:
        pool.end()
    return good


def keep(pool: Pool) -> None:
    """Keep ranks that are clean for the next call (see `run.KEPT`)."""
    _spares[pool.world_size, pool.backend, pool.record, pool.sandbox] = pool


def end_kept(backend: str) -> None:
    """End the ranks of this backend that wait for another call."""
    for key in [key for key in _spares if key[1] == backend]:
        _spares.pop(key).end()


def spare(
    world_size: int, backend: str = "gloo", record: bool = True, sandbox: Sandbox | None = None
) -> None:
    """Fork ranks ahead of the next call; returns at once. One spare pool of each size, three sizes."""
    key = (world_size, backend, record, sandbox)
    if key in _spares:
        return
    while len(_spares) >= SPARES:
        _spares.pop(next(iter(_spares))).end()
    _spares[key] = Pool(preloaded(), world_size, backend, record, sandbox)


def end_spares() -> None:
    """End the ranks that were forked ahead."""
    while _spares:
        _spares.popitem()[1].end()


@atexit.register
def close() -> None:
    """End the preloaded process and every rank."""
    global _preloaded
    if _preloaded is not None and _preloaded.owner == os.getpid():
        end_spares()
        _preloaded.close()
    _spares.clear()
    _preloaded = None
