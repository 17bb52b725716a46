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

from course_lib.ledger import rows
from course_lib.runtime import wire
from course_lib.runtime.errors import LaunchError

ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
PRELOAD = ("torch", "torch.distributed", "numpy.random", "cloudpickle", "course_lib.runtime.rank",
           "course_lib.runtime.call")  # fmt: skip


class Preloaded:
    """A process that has imported torch and forks ranks on request."""

    def __init__(self, modules: tuple[str, ...] = ()):
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.environment = dict(os.environ)
        environment = dict(
            os.environ, **dict.fromkeys(ONE_THREAD, "1"), COURSE_ROLE="preloaded",
            PYTORCH_NVML_BASED_CUDA_CHECK="1",
        )  # fmt: skip
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
        environment.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        code = (
            f"import sys; sys.path[:] = {[os.path.abspath(p) for p in sys.path]!r}\n"
            "from course_lib.runtime.preload import main\n"
            f"main({there.fileno()}, {os.getpid()}, {[*PRELOAD, *modules]!r})"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], pass_fds=[there.fileno()], env=environment,
            start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )  # fmt: skip
        there.close()
        self.socket, self.owner = here, os.getpid()
        self.forked: dict[int, dict] = {}
        self.exits: dict[tuple[int, int], int] = {}

    def alive(self) -> bool:
        return self.owner == os.getpid() and self.process.poll() is None

    def read(self, wait: float | None = 0) -> bool:
        """Take in what the process has told; False when nothing came within `wait` seconds."""
        if not select.select([self.socket], [], [], wait)[0]:
            return False
        data = self.socket.recv(1 << 16)
        if not data:
            raise LaunchError(self.obituary())
        message = json.loads(data)
        if "forked" in message:
            self.forked[message["forked"]] = message
        elif "exit" in message:
            pool, rank, code = message["exit"]
            self.exits[pool, rank] = code
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


class Pool:
    """N ranks, forked and joining their process group, for one task (or several, under NCCL)."""

    count = 0

    def __init__(self, preloaded: Preloaded, world_size: int, backend: str, record: bool):
        Pool.count += 1
        self.id, self.preloaded, self.world_size, self.backend = (
            Pool.count,
            preloaded,
            world_size,
            backend,
        )
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
        given = [store, board]
        for _ in range(world_size):
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
            # the logs and stacks are shared with the rank, the rest is handed over
            given += [its.detach(), out_end, err_end, os.dup(log[0]), os.dup(log[1]), os.dup(stack)]
        order = {"pool": self.id, "world_size": world_size, "backend": backend, "record": record}
        try:
            socket.send_fds(preloaded.socket, [json.dumps(order).encode()], given)
        except OSError:
            raise LaunchError(preloaded.obituary()) from None
        finally:
            for fd in given:
                os.close(fd)

    def _order(self, wait: float = 120) -> dict:
        deadline = time.monotonic() + wait
        while self.id not in self.preloaded.forked:
            if not self.preloaded.read(deadline - time.monotonic()):
                raise LaunchError(
                    f"the ranks did not start within {wait:.0f} seconds; the machine may be out of memory "
                    "or very busy. Run `python -m course_lib.doctor`."
                )
        return self.preloaded.forked[self.id]

    @property
    def pids(self) -> list[int]:
        return self._order()["pids"]

    def exit_code(self, rank: int) -> int | None:
        return self.preloaded.exits.get((self.id, rank))

    def stack(self, rank: int, wait: float = 0.5) -> str:
        """The rank's Python stack, also while C code runs; "" when it does not answer."""
        before = os.fstat(self.stacks[rank]).st_size
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pids[rank], signal.SIGUSR1)
        deadline, size = time.monotonic() + wait, before
        while time.monotonic() < deadline:
            time.sleep(0.005)
            now = os.fstat(self.stacks[rank]).st_size
            if now > before and now == size:
                break
            size = now
        return os.pread(self.stacks[rank], size - before, before).decode(errors="replace")

    def end(self) -> None:
        """Kill every rank and what it started; give all memory and descriptors back."""
        if self.ended:
            return
        self.ended = True
        if self.preloaded.alive():
            with contextlib.suppress(LaunchError):
                order = self._order()
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(order["pgid"], signal.SIGKILL)
                with contextlib.suppress(OSError):
                    self.preloaded.socket.send(json.dumps({"forget": order["pgid"]}).encode())
                self.preloaded.forked.pop(self.id, None)
        for sock in self.sockets:
            sock.close()
        for fd in [fd for group in (*self.pipes, *self.logs, self.stacks) for fd in group]:
            os.close(fd)
        self.board.map.close()


_preloaded: Preloaded | None = None
_spares: dict[tuple, Pool] = {}
_modules: tuple[str, ...] = ()


def preloaded() -> Preloaded:
    """The preloaded process of this process, started when there is none."""
    global _preloaded
    if _preloaded is None or not _preloaded.alive():
        _spares.clear()
        _preloaded = Preloaded(_modules)
    return _preloaded


def preload(*modules: str) -> None:
    """Start the preloaded process in the background; `modules` are imported there beforehand."""
    global _modules
    _modules = modules
    preloaded()


def pool(world_size: int, backend: str, record: bool) -> Pool:
    """Ranks that wait for a task: the spare ones when there are, else new ones."""
    process = preloaded()
    found = _spares.pop((world_size, backend, record), None)
    if found is not None and found.preloaded is process and healthy(found):
        return found
    return Pool(process, world_size, backend, record)


def healthy(pool: Pool) -> bool:
    while pool.preloaded.read(0):
        continue
    good = not any(pool.exit_code(rank) is not None for rank in range(pool.world_size))
    if not good:
        pool.end()
    return good


def keep(pool: Pool) -> None:
    """Keep ranks that are clean for the next call (NCCL: a communicator costs seconds)."""
    _spares[pool.world_size, pool.backend, True] = pool


def spare(world_size: int, backend: str = "gloo", record: bool = True) -> None:
    """Fork ranks ahead of the next call; returns at once. One spare pool of each size, two sizes."""
    key = (world_size, backend, record)
    if key in _spares:
        return
    while len(_spares) >= 3:
        _spares.pop(next(iter(_spares))).end()
    _spares[key] = Pool(preloaded(), world_size, backend, record)


@atexit.register
def close() -> None:
    """End the preloaded process and every rank."""
    global _preloaded
    if _preloaded is not None and _preloaded.owner == os.getpid():
        for waiting in _spares.values():
            waiting.end()
        _preloaded.close()
    _spares.clear()
    _preloaded = None
