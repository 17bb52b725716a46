"""Run one task on N ranks, watch them, end them after an interrupt too, and report the outcome."""

from __future__ import annotations

import linecache
import os
import selectors
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from course_lib.ledger.ledger import Ledger
from course_lib.ledger.read import read_ledger
from course_lib.runtime import pools, wire
from course_lib.runtime.backend import ALONE, choose
from course_lib.runtime.diagnosis import Failure, damaged_failure, diagnose
from course_lib.runtime.errors import Interrupted, LaunchError
from course_lib.runtime.heavy import HEAVY
from course_lib.runtime.interrupts import raise_lost
from course_lib.runtime.load import slowdown
from course_lib.runtime.moments import PAUSE, Moments, Progress
from course_lib.runtime.output import OnOutput, Output
from course_lib.runtime.places import is_cell, where
from course_lib.runtime.pools import Pool
from course_lib.runtime.replying import malformed, well_formed
from course_lib.runtime.sandbox.spec import APART, Sandbox
from course_lib.runtime.waiting import Snapshot, stuck
from course_lib.runtime.watch import Reply, Watch

MAX_RANKS = 32
STILL = 0.8  # seconds without any event before a deadlock is called one
LONG_STILL = 4.0  # the same if NCCL reports sends as done, and nothing was received
GRACE = 0.4  # seconds that the others get to raise too, after the first rank raised
# backends whose ranks serve several calls: an NCCL communicator costs seconds, and `alone` forks for each
KEPT = {"nccl", ALONE}
START = 120  # seconds for the ranks to join their process group
READY = 60  # seconds for them to begin the task: to import its modules
MOST_REPLY = 1 << 40  # bytes


@dataclass
class Outcome:
    """The outcome of a task."""

    replies: list[Reply | None]
    failure: Failure | None
    ledger: Ledger
    seconds: float
    backend: str
    output: list[list[str]]  # the last lines that each rank printed
    held: list[dict[str, list[int]]] = field(default_factory=list)  # see `Moments.above_base`
    rose: list[dict[str, list[int]]] = field(
        default_factory=list
    )  # by so much since the moment before
    progress: list[dict[str, list[Progress]]] = field(default_factory=list)  # at the same moments
    wire_bytes: int | None = None  # sent on the sandbox's loopback, as the kernel counts it
    limit: str = ""  # the limit for which the sandbox ended the ranks, see `Children.limit`
    imported: tuple[str, ...] = ()  # the parts of `heavy` that a rank needed


_tasks = 0


def write_down(world_size: int, backend: str) -> None:
    """A line for each run, such as "4 nccl", in the file named by the environment variable COURSE_LAUNCHES.

    `make gpu` reads it, so that it notices a run that was meant for the GPUs and fell back to the CPU.
    """
    if file := os.environ.get("COURSE_LAUNCHES"):
        with open(file, "a") as lines:
            lines.write(f"{world_size} {backend}\n")


def run_ranks(
    entry: str, header: dict | list[dict], buffers: Sequence[Any], *, world_size: int, timeout: float,
    backend: str | None = None, seed: int = 0, on_output: OnOutput | None = None, spare: bool = True,
    sandbox: Sandbox | None = None, reply_limit: int = MOST_REPLY, ahead: int | None = None,
    imports: Sequence[str] = (), longest: float = 0, enough: Sequence[Mapping[str, float]] = (),
    moments: Collection[str] | None = None, room: int = 0,
) -> Outcome:  # fmt: skip
    """Run `entry` ("module:function") on `world_size` ranks; never raises for a failure in them.

    The function is called as function(header, buffers, rank) and returns (header, buffers). `header`
    and `buffers` can be one for all ranks or a list with one for each. In a `sandbox` the ranks get
    nothing of this process's folder and environment. A rank whose answer is longer than `reply_limit`
    bytes has failed. With backend ALONE, the one rank has no process group, and is kept while it is clean,
    until `pools.end_kept` ends it. While the ranks run, `ahead` ranks are forked for the next task; at the
    end, with `spare`, as many as have run. `imports`: modules that every rank needs, and imports before
    `timeout` begins. If a rank needs other parts of PyTorch, later ranks find them imported.
    moments: names of the moments at which ranks are measured; enough: for each rank, bytes that are enough
    there; room: bytes that a base may have above the start; see `Moments`.
    longest: seconds that the ranks may have instead of `timeout` if a busy machine slows them down.
    LaunchError if no ranks can be started; KeyboardInterrupt passes through after the ranks were ended.
    """
    global _tasks
    _tasks += 1
    backend = ALONE if backend == ALONE else choose(world_size, backend)
    write_down(world_size, backend)
    record = backend != ALONE and os.environ.get("COURSE_LEDGER", "on") != "off"
    if sandbox is not None and backend == "nccl":
        sandbox = sandbox.without(
            APART
        )  # NCCL's ranks pass buffers on by sockets and shared memory
    pools.preloaded().also_import(imports)
    pool = pools.pool(world_size, backend, record, sandbox, imports)
    watch = Watch(pool, _tasks, Moments(pool, enough, moments, room))
    output, began = Output(world_size, on_output), time.monotonic()
    kept = False
    try:
        wait_for_hello(watch, began)
        for receiver in pool.receivers:
            receiver.limit = reply_limit
        before = pool.children.loopback()
        began = time.monotonic()
        hand_out(watch, entry, header, buffers, seed, imports)
        if ahead is not None and backend not in KEPT:
            pools.spare(ahead, backend, record, sandbox)
        try:
            observe(watch, output, timeout, longest)
        except KeyboardInterrupt:
            drain(watch, output)
            text = diagnose(watch, interrupted=True)
            raise Interrupted(text.message if text else "") from None
        seconds = time.monotonic() - began
        failure = diagnose(watch)
        drain(watch, output)
        ended = began + seconds
        ledger = read_ledger(pool.board, pool.logs, began, where, backend, ended, pool.most)
        if ledger.damaged:
            failure = damaged_failure(watch, ledger.damaged)
        orderly = failure is None and watch.clean() and not ledger.unmatched()
        kept = backend in KEPT and orderly
        replies = [watch.result(rank) for rank in range(world_size)]
        heavy = [name for name in HEAVY if watch.imported(name)]
        pool.preloaded.also_import(heavy)
        new = tuple(name for name in heavy if name not in {*pool.imported, *imports})
        said = [list(lines) for lines in output.tail]
        after = pool.children.loopback() if before is not None else None
        sent = after - before if before is not None and after is not None else None
        limit = pool.children.limit
        held, rose = watch.moments.above_base(), watch.moments.rises
        progress = watch.moments.progress
        return Outcome(
            replies, failure, ledger, seconds, backend, said, held, rose, progress, sent, limit, new
        )
    finally:
        if kept:
            pools.keep(pool)
        else:
            pool.end()
            if spare and backend not in KEPT:
                pools.spare(world_size, backend, record, sandbox)


def wait_for_hello(watch: Watch, began: float) -> None:
    """Nothing is sent until all ranks are connected. A rank that failed earlier would break the rest."""
    pool = watch.pool
    for rank in set(range(pool.world_size)) - pool.hello:
        with selectors.DefaultSelector() as selector:
            selector.register(pool.sockets[rank], selectors.EVENT_READ)
            selector.register(pool.preloaded.socket, selectors.EVENT_READ)
            while rank not in pool.hello:
                if not selector.select(max(0.0, began + START - time.monotonic())):
                    raise LaunchError(
                        f"rank {rank} did not join the process group within {START} seconds. "
                        "Run `python -m course_lib.doctor`."
                    )
                while pool.preloaded.read(0):
                    continue
                try:
                    if pool.receivers[rank].read() is not None:
                        pool.hello.add(rank)
                except EOFError:
                    raise LaunchError(start_failure(pool, rank)) from None


def start_failure(pool: Pool, rank: int) -> str:
    said = Output(pool.world_size, None)
    while said.read(pool.pipes[rank][1], rank, "err"):
        continue
    said.finish()
    last = "\n".join(said.tail[rank]) or "it said nothing"
    return f"rank {rank} ended while it joined the process group. Its last words:\n{last}"


def hand_out(
    watch: Watch, entry: str, header: Any, buffers: Sequence[Any], seed: int, imports: Sequence[str]
) -> None:
    pool = watch.pool
    walled = pool.sandbox is not None
    task = {
        "id": watch.task, "entry": entry, "seed": seed, "path": [os.path.abspath(p) for p in sys.path],
        "folder": None if walled else os.getcwd(),
        "environment": {} if walled else pool.preloaded.environment_changes(),
        "sources": cell_sources(),
        "imports": list(imports),
    }  # fmt: skip
    for rank, sock in enumerate(pool.sockets):
        own_header = header[rank] if isinstance(header, list) else header
        own = buffers[rank] if buffers and isinstance(buffers[0], list) else buffers
        sock.settimeout(START)
        try:
            wire.send(sock, {**task, "header": own_header}, own)
        except OSError:
            pass  # a dead rank: its exit code, which `observe` reads, says why
        finally:
            sock.setblocking(False)


def cell_sources() -> dict[str, str]:
    """Sources of notebook cells, so that tracebacks and `inspect` work in the ranks too."""
    return {
        name: "".join(entry[2])
        for name, entry in list(linecache.cache.items())
        if len(entry) == 4 and (is_cell(name) or name.startswith(("<", "Cell In[")))
    }


def observe(watch: Watch, output: Output, timeout: float, longest: float) -> None:
    """Read replies, output and exits until every rank is done, or it is clear that some never will be.

    The time counts from the moment at which the last rank has begun the task.
    """
    pool, ready = watch.pool, False
    began, seconds = time.monotonic(), READY + timeout
    with selectors.DefaultSelector() as selector:
        for rank in range(pool.world_size):
            selector.register(pool.sockets[rank], selectors.EVENT_READ, ("reply", rank))
            selector.register(pool.moments[rank], selectors.EVENT_READ, ("moment", rank))
            for stream, fd in zip(("out", "err"), pool.pipes[rank], strict=True):
                selector.register(fd, selectors.EVENT_READ, (stream, rank))
        selector.register(pool.preloaded.socket, selectors.EVENT_READ, ("process", -1))
        latest = [(0, time.monotonic())] * pool.world_size  # each rank's events, and their time
        look_again = 0.0
        while watch.running or watch.moments.waiting:
            raise_lost()
            wait = PAUSE if watch.moments.waiting else 0.05 if watch.first_trouble else 0.1
            for key, _ in selector.select(wait):
                take(watch, output, selector, key)
            watch.moments.step()
            now = time.monotonic()
            if watch.first_trouble is None and (watch.exits or watch.raised()):
                watch.first_trouble = now
            if watch.first_trouble and now - watch.first_trouble > GRACE:
                return
            if not ready and watch.all_begun():
                ready, began, seconds = True, now, timeout
            limit = max(seconds, min(longest, seconds * slowdown()))
            if now - began > limit:
                watch.verdict = "timeout"
                watch.late = late(seconds, now - began if limit > seconds else seconds)
                return
            for rank, (events, _) in enumerate(latest):
                if (count := pool.board.read(rank).events) != events:
                    latest[rank] = (count, now)
            still = {rank for rank, (_, since) in enumerate(latest) if now - since > STILL}
            if still & watch.running and not watch.first_trouble and now > look_again:
                look_again = now + STILL / 4
                snap = Snapshot.of(pool)
                long = all(now - latest[rank][1] > LONG_STILL for rank in watch.running)
                for taken_in in (True, False) if snap.in_order and long else (True,):
                    waiting = stuck(snap, watch.running, taken_in)
                    if waiting and set(waiting) <= still:
                        watch.waiting, watch.verdict = waiting, "deadlock"
                        watch.taken_in = taken_in
                        return


def late(limit: float, passed: float) -> str:
    """How long the ranks ran before they were ended, and why if that is longer than the limit."""
    why = f" (instead of {brief(limit)}, because the machine is busy)" if passed > limit else ""
    return f"{brief(passed)} seconds{why}"


def brief(seconds: float) -> str:
    return f"{seconds:.3g}" if seconds < 100 else f"{seconds:.0f}"


def take(watch: Watch, output: Output, selector: selectors.BaseSelector, key: Any) -> None:
    kind, rank = key.data
    pool = watch.pool
    if kind == "process":
        while pool.preloaded.read(0):
            continue
        for r in watch.alive:
            if (code := pool.exit_code(r)) is not None:
                watch.exits[r] = code
                watch.moments.ended(r)
    elif kind == "reply":
        try:
            message = pool.receivers[rank].read()
            if message is not None and message[0].get("task") == watch.task:
                watch.replies[rank] = (well_formed(message[0]), message[1])
                watch.moments.replied(rank)
        except (EOFError, OSError):
            selector.unregister(key.fileobj)  # it died: its exit code follows
        except (wire.WireError, ValueError, RecursionError) as error:
            selector.unregister(key.fileobj)
            watch.replies[rank] = (malformed(error), [])
    elif kind == "moment":
        try:
            watch.moments.read(rank)
        except (EOFError, OSError):
            selector.unregister(key.fileobj)
        except wire.WireError as error:
            selector.unregister(key.fileobj)
            watch.replies[rank] = (malformed(error), [])
    elif not output.read(key.fd, rank, kind):
        selector.unregister(key.fd)


def drain(watch: Watch, output: Output) -> None:
    for rank, fds in enumerate(watch.pool.pipes):
        for stream, fd in zip(("out", "err"), fds, strict=True):
            for _ in range(10_000):  # a rank that prints for ever must not hold us
                if not output.read(fd, rank, stream):
                    break
    output.finish()
