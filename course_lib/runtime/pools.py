"""Pools of ranks that the preloaded process forks: in use, spare, and kept."""

from __future__ import annotations

import atexit
import os
import signal
import socket
import time
from collections.abc import Sequence
from typing import TypeAlias

from course_lib.ledger import rows
from course_lib.runtime import walls, wire
from course_lib.runtime.backend import ALONE
from course_lib.runtime.load import slowdown
from course_lib.runtime.preloaded import Adopted, Preloaded
from course_lib.runtime.sandbox.spec import Sandbox

Environment: TypeAlias = tuple[tuple[str, str | None], ...]
# world size, backend, recorded?, sandbox, what of the environment its process group was made with
Key: TypeAlias = tuple[int, str, bool, Sandbox | None, Environment]

RANK, SINGLE = "course_lib.runtime.rank:start", "course_lib.runtime.alone:start"
SPARES = 3
STACK = 1 << 20  # bytes of a stack that are read
AT_THE_START = ("CUDA_", "NCCL_", "TORCH_NCCL_", "GLOO_", "COURSE_RANKS_PER_GPU")


class Pool:
    """N ranks, forked and joining their process group, for one task (or several, under NCCL)."""

    def __init__(
        self, preloaded: Preloaded, world_size: int, backend: str, record: bool,
        sandbox: Sandbox | None = None, environment: Environment = (),
    ):  # fmt: skip
        """environment: see `read_at_the_start`."""
        self.preloaded, self.world_size, self.backend = preloaded, world_size, backend
        self.environment = environment
        self.record, self.sandbox = record, sandbox
        self.most = rows.OWN if sandbox is None else rows.JUDGED
        self.imported = set(preloaded.imported)  # when these were forked
        self.hello: set[int] = set()
        self.ended = False
        store = rows.anonymous_file("course-store")
        board = rows.anonymous_file("course-board", rows.Board.size(world_size))
        self.board = rows.Board(board, world_size)
        self.sockets: list[socket.socket] = []
        self.receivers: list[wire.Receiver] = []
        self.moments: list[socket.socket] = []  # on which a rank asks to be measured
        self.pipes: list[tuple[int, int]] = []  # stdout, stderr
        self.logs: list[tuple[int, int]] = []  # rows, texts
        self.stacks: list[int] = []
        handed_over, entries = [store, board], []
        for rank in range(world_size):
            mine, its = socket.socketpair()
            mine.setblocking(False)
            measuring, measured = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            measuring.setblocking(False)
            out, out_end = os.pipe()
            err, err_end = os.pipe()
            os.set_blocking(out, False)
            os.set_blocking(err, False)
            log = (rows.anonymous_file("course-rows"), rows.anonymous_file("course-texts"))
            stack = rows.anonymous_file("course-stack")
            self.sockets.append(mine)
            self.moments.append(measuring)
            self.receivers.append(wire.Receiver(mine))
            self.pipes.append((out, err))
            self.logs.append(log)
            self.stacks.append(stack)
            ends = [its.detach(), out_end, err_end, measured.detach()]
            handed_over += ends
            order = {
                "rank": rank, "world_size": world_size, "backend": backend, "record": record,
                "rows": self.most.rows, "environment": dict(environment),
            }  # fmt: skip
            # the store, the board, the logs and the stacks are shared with the rank
            entry = SINGLE if backend == ALONE else RANK
            entries.append((entry, order, [store, board, *ends, *log, stack]))
        try:
            around = walls.take(preloaded, sandbox, world_size) if backend == "gloo" else None
            place, room = (around.place, walls.ROOM) if around else (0, 0)
            self.children = preloaded.spawn(entries, sandbox, place, room)
            if around is not None:
                around.children = self.children
        finally:
            for fd in handed_over:
                os.close(fd)

    @property
    def pids(self) -> list[int]:
        return self.children.pids

    def exit_code(self, rank: int) -> int | None:
        return self.children.exit_code(rank)

    def stack(self, rank: int, wait: float = 0.5) -> str:
        """The rank's Python stack, also while C code runs; "" if it does not answer.

        wait: seconds, and more of them on a busy machine.
        """
        before = os.fstat(self.stacks[rank]).st_size
        self.children.signal(rank, signal.SIGUSR1)
        deadline, size = time.monotonic() + wait * slowdown(), before
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
        """Kill every rank and everything it started; give all memory and descriptors back."""
        if self.ended:
            return
        self.ended = True
        self.children.end()
        for sock in (*self.sockets, *self.moments):
            sock.close()
        for fd in [fd for group in (*self.pipes, *self.logs, self.stacks) for fd in group]:
            os.close(fd)
        self.board.map.close()


_preloaded: Preloaded | None = None
_spares: dict[Key, Pool] = {}
_others: dict[SeparateProcess, Preloaded] = {}
_modules: tuple[str, ...] = ()
_environment: dict[str, str] | None = None


def preloaded(on_gpus: bool = False) -> Preloaded:
    """The preloaded process of this process, started if there is none, or if ranks need other libraries."""
    global _preloaded
    if _preloaded is not None and _environment is None and _preloaded.outdated(on_gpus):
        _preloaded.close()
        _preloaded = None
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

    environment: the environment that its children see instead of this process's.
    """
    global _modules, _environment
    _modules, _environment = modules, environment
    preloaded()


class SeparateProcess:
    """A preloaded process that forks no ranks for `pool`, but other processes on request. `close` ends it."""

    def __init__(self, *modules: str, environment: dict[str, str] | None = None):
        self.modules, self.environment = modules, environment
        self.process()

    def process(self) -> Preloaded:
        """The process, started again if it has ended."""
        process = _others.get(self)
        if process is None or not process.alive():
            process = _others[self] = Preloaded(self.modules, self.environment)
        return process


def pool(
    world_size: int, backend: str, record: bool, sandbox: Sandbox | None = None,
    imports: Sequence[str] = (),
) -> Pool:  # fmt: skip
    """Ranks that wait for a task: the spare ones if there are any, else new ones.

    Spare ranks that were forked before the preloaded process was asked for `imports` are ended, because each
    would import them again, at the same time as the others.
    """
    process = preloaded(on_gpus=backend == "nccl")
    environment = read_at_the_start(process, sandbox)
    spare = _spares.pop((world_size, backend, record, sandbox, environment), None)
    if spare is not None and spare.preloaded is process and healthy(spare):
        if spare.imported.issuperset(imports):
            return spare
        spare.end()
    return Pool(process, world_size, backend, record, sandbox, environment)


def read_at_the_start(process: Preloaded, sandbox: Sandbox | None) -> Environment:
    """The notebook's changes to the variables that CUDA, NCCL and gloo read when a rank starts.

    Ranks in a sandbox get nothing of the notebook's environment.
    """
    if sandbox is not None:
        return ()
    changes = process.environment_changes()
    return tuple(sorted(item for item in changes.items() if item[0].startswith(AT_THE_START)))


def healthy(pool: Pool) -> bool:
    while pool.preloaded.read(0):
        continue
    good = not any(pool.exit_code(rank) is not None for rank in range(pool.world_size))
    if not good:
        pool.end()
    return good


def keep(pool: Pool) -> None:
    """Keep ranks that are clean for the next call (see `run.KEPT`).

    No other ranks on GPUs are kept, because each rank's CUDA context takes up to a gigabyte of GPU memory.
    """
    if pool.backend == "nccl":
        end_kept("nccl")
    _spares[pool.world_size, pool.backend, pool.record, pool.sandbox, pool.environment] = pool


def end_kept(backend: str) -> None:
    """End the ranks of this backend that wait for another call."""
    for key in [key for key in _spares if key[1] == backend]:
        _spares.pop(key).end()


def spare(
    world_size: int, backend: str = "gloo", record: bool = True, sandbox: Sandbox | None = None
) -> None:
    """Fork ranks ahead of the next call; returns immediately. One spare pool of each size, three sizes."""
    process = preloaded(on_gpus=backend == "nccl")
    environment = read_at_the_start(process, sandbox)
    key = (world_size, backend, record, sandbox, environment)
    if key in _spares:
        return
    while len(_spares) >= SPARES:
        _spares.pop(next(iter(_spares))).end()
    _spares[key] = Pool(process, world_size, backend, record, sandbox, environment)


def end_standing() -> None:
    """End the standing sandboxes (see `walls`), and ranks that were forked ahead in them."""
    for key in [key for key in _spares if key[3] is not None and key[3].stands]:
        _spares.pop(key).end()
    walls.end_all()


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
        walls.end_all()
        _preloaded.close()
    while _others:
        _, process = _others.popitem()
        if process.owner == os.getpid():
            process.close()
    _spares.clear()
    _preloaded = None
