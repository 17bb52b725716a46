"""Work for many submissions, side by side: a `concurrent.futures` executor whose workers may die.

The standard library's process pool gives up all its work when one process dies. Here each worker is a
process of its own: one that dies costs at most the submission that it was busy with, which is tried
once more, and is replaced. A worker is started fresh and never forked from this process, which has
threads; it ends with this process, however that ends. Its answer is JSON and is never unpickled.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pickle
import queue
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
ANSWER_BYTES = 512 << 20
GOODBYE = 5.0  # seconds in which a worker that is not needed any more has to end


class WorkerDiedError(Exception):
    """The worker ended, or gave no answer in time, as often as it was tried."""


class TaskError(Exception):
    """The function raised in the worker; the text is the error's, and its traceback follows."""


# ---- in the worker


def serve(descriptor: int, parent: int, prepare: Callable[[], Any] | None = None) -> None:
    """Make the calls that come through the socket until it is closed. The main function of a worker."""
    die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the grader's, which ends its workers
    if prepare is not None:
        prepare()
    connection = Connection(descriptor)
    while True:
        try:
            order = connection.recv_bytes()
        except EOFError:
            return
        connection.send_bytes(answer(order))


def answer(order: bytes) -> bytes:
    """Call the pickled (function, arguments); its value, or its exception, as JSON."""
    try:
        function, arguments = pickle.loads(order)
        return json.dumps({"value": function(*arguments)}).encode()
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        return json.dumps({"error": said, "traceback": traceback.format_exc()}).encode()


def die_with(parent: int) -> None:
    """Have the kernel end this process when the thread that started it ends, or end now if it has."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


# ---- in the grader


class Worker:
    """One worker process. It must be started by a thread that outlives it: see `die_with`."""

    def __init__(self, prepare: str = "", log: Path | None = None) -> None:
        here, there = socket.socketpair()
        module, _, function = prepare.partition(":")
        imported = f"from {module} import {function} as prepare" if prepare else "prepare = None"
        code = (
            f"import sys; sys.path[:] = {[os.path.abspath(entry) for entry in sys.path]!r}\n"
            "from autograder.run.jobs import die_with, serve\n"
            f"die_with({os.getpid()})\n"  # before the imports, which take seconds
            f"{imported}\n"
            f"serve({there.fileno()}, {os.getpid()}, prepare)"
        )
        with contextlib.ExitStack() as stack:
            stack.callback(there.close)
            said = stack.enter_context(open(log or os.devnull, "ab"))
            self.process = subprocess.Popen(
                [sys.executable, "-c", code],
                pass_fds=[there.fileno()],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env=environment(),
            )
        self.connection = Connection(here.detach())

    def ask(self, order: bytes, seconds: float | None) -> Any:
        """The value of the pickled call. Raises TaskError, and WorkerDiedError if none came."""
        try:
            self.connection.send_bytes(order)
            if not self.connection.poll(seconds):
                raise WorkerDiedError(f"the worker gave no answer within {seconds:.0f} s")
            answer = json.loads(self.connection.recv_bytes(ANSWER_BYTES))
        except (EOFError, OSError) as error:
            raise WorkerDiedError(f"the worker's process ended ({self._exit(error)})") from None
        if "error" in answer:
            raise TaskError(answer["error"], answer["traceback"])
        return answer["value"]

    def _exit(self, error: Exception) -> str:
        try:
            return f"exit code {self.process.wait(GOODBYE)}"
        except subprocess.TimeoutExpired:  # it closed its socket and goes on: it is killed next
            return str(error)

    def close(self, seconds: float = GOODBYE) -> None:
        """Let the process end by itself, or end it after `seconds`."""
        self.connection.close()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def environment() -> dict[str, str]:
    """This process's, for a worker.

    PyTorch keeps to one thread there: the expected values of a case are small, and OpenMP's threads would
    spin between two operations on the cores that ranks and other workers need. A number that is set already
    stays.
    """
    # COURSE_ROLE: else course_lib would start a preloaded process that the sandbox's would replace
    return {"OMP_NUM_THREADS": "1", **os.environ, "COURSE_ROLE": "grader"}


@dataclass
class Job:
    order: bytes
    future: Future[Any] = field(default_factory=Future)


class LocalWorkers(Executor):
    """`count` workers on this machine.

    prepare: "module:function", called in each worker when it starts. seconds: a worker that is busy
    with one call for longer counts as dead; None: never. tries: how often a call is given to a worker
    before its future gets WorkerDiedError. log: a file for the workers' prints.
    """

    def __init__(
        self,
        count: int,
        *,
        prepare: str = "",
        seconds: float | None = None,
        tries: int = 2,
        log: Path | None = None,
    ) -> None:
        self.prepare, self.seconds, self.tries, self.log = prepare, seconds, tries, log
        self.count = count
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._stopping = False
        self._workers: dict[int, Worker] = {}  # by slot
        self._slots = [
            threading.Thread(target=self._slot, args=(number,), daemon=True)
            for number in range(count)
        ]
        for slot in self._slots:
            slot.start()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call `fn(*args)` in a worker. `fn` is importable there; its value is JSON."""
        if kwargs:
            raise TypeError("a worker takes no keyword arguments")
        return self.submit_order(pickle.dumps((fn, args)))

    def submit_order(self, order: bytes) -> Future[Any]:
        """`submit` for a call that is pickled already, as (function, arguments)."""
        if self._stopping:
            raise RuntimeError("the workers have been shut down")
        job = Job(order)
        self._jobs.put(job)
        return job.future

    def processes(self) -> list[int]:
        """The ids of the worker processes."""
        return [worker.process.pid for worker in list(self._workers.values())]

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the workers when the calls that were submitted are done, or without the waiting ones."""
        self._stopping = True
        if cancel_futures:
            with contextlib.suppress(queue.Empty):
                while True:
                    if (job := self._jobs.get_nowait()) is not None and job.future.cancel():
                        job.future.set_running_or_notify_cancel()  # wakes the threads that wait for it
        for _ in self._slots:
            self._jobs.put(None)
        if wait:
            for slot in self._slots:
                slot.join()

    def kill(self) -> None:
        """End the workers now; the calls that they are busy with get WorkerDiedError."""
        self._stopping, self.tries = True, 0
        for worker in list(self._workers.values()):
            worker.process.kill()
        self.shutdown(cancel_futures=True)

    # ---- one thread for each worker

    def _slot(self, number: int) -> None:
        self._workers[number] = self._start()
        try:
            while (job := self._jobs.get()) is not None:
                if job.future.set_running_or_notify_cancel():
                    self._run(number, job)
        finally:
            self._workers.pop(number).close(0 if self._stopping and not self.tries else GOODBYE)

    def _start(self) -> Worker:
        return Worker(self.prepare, self.log)

    def _run(self, number: int, job: Job) -> None:
        tried = 0
        while True:
            tried += 1
            try:
                job.future.set_result(self._workers[number].ask(job.order, self.seconds))
                return
            except WorkerDiedError as error:
                self._workers[number].close(0)
                if self.tries:  # else all are being ended
                    self._workers[number] = self._start()
                if tried >= self.tries:
                    job.future.set_exception(error)
                    return
            except Exception as error:
                job.future.set_exception(error)
                return
