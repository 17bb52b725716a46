"""Inside the sandbox: runs cells on command, and hands in the objects that an exercise's check judges.

    {"run": source, "number": 5}      {"output": ...}, {"clear": ...}, then {"done": name of the error}
    {"submit": [expressions], ...}    {"submitted": n} and buffers, or {"refused": sentence}

Commands come over a socket, one at a time, and the answers go back there. The cells' prints go through two
pipes, by descriptor, so that prints of C code, threads and child processes are caught too.
Verdicts never come here, and graded cells are never run here. The process ends by being killed.
"""

from __future__ import annotations

import contextlib
import io
import os
import socket
import sys
import threading
from collections.abc import Sequence
from typing import Any, NoReturn

from autograder.sandbox import shell
from course_lib.runtime import pools, wire
from course_lib.runtime.pickling import explain

CLIENT = "course_lib.checks.client"

# Taken before the first byte of a student's: a cell may replace what it finds in these modules.
_exit, _pid, _read, _dumps, _send = os._exit, os.getpid, os.read, wire.dumps, wire.send

shell.warm()  # the process that forks executors imports this module beforehand


def main(args: dict, fds: Sequence[int]) -> NoReturn:
    """Entry of the process.

    fds: the socket for commands and answers; the pipes for stdout and stderr; a pipe with a byte for
    each output that was heard; and, where `launch` is to find ranks without importing torch once more,
    the socket of a server that forks them.
    """
    control, out, err, heard, *servers = fds
    redirect(out, err)
    if servers:
        pools.adopt(socket.socket(fileno=servers[0]))
    sys.modules[CLIENT] = shell.inert_client()
    Executor(socket.socket(fileno=control), heard).serve()


def redirect(out: int, err: int) -> None:
    """Descriptors 1 and 2 become the pipes, 0 is empty."""
    null = os.open(os.devnull, os.O_RDONLY)
    for fd, target in ((null, 0), (out, 1), (err, 2)):
        os.dup2(fd, target)
        os.close(fd)
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    for name, fd in (("stdout", 1), ("stderr", 2)):
        raw = os.fdopen(fd, "wb", buffering=8192, closefd=False)
        stream = io.TextIOWrapper(raw, "utf-8", "backslashreplace", line_buffering=True)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


class Executor:
    """The loop: a command, its work, its answer."""

    def __init__(self, sock: socket.socket, heard: int):
        self.sock, self.heard, self.owner, self.lock = sock, heard, _pid(), threading.Lock()
        self.receiver = wire.Receiver(sock)
        self.shell = shell.make(self.show)

    def show(self, header: dict) -> None:
        """Send an output and wait until it was received: later prints come behind it."""
        self.send(header)
        if _pid() == self.owner:
            with contextlib.suppress(OSError):  # the cell closed the descriptor
                _read(self.heard, 1)

    def send(self, header: dict, buffers: Sequence[wire.Buffer] = ()) -> None:
        """One message. A child process that a cell forked has no voice: two would mix their bytes."""
        if _pid() == self.owner:
            with self.lock:
                _send(self.sock, header, buffers)

    def serve(self) -> NoReturn:
        self.send({"ready": True})
        while True:
            try:
                message = self.receiver.read()
            except EOFError:
                _exit(0)
            if message is not None:
                self.obey(message[0])

    def obey(self, command: dict) -> None:
        answer: dict[str, Any]
        buffers: Sequence[wire.Buffer] = ()
        try:
            shell.interruptible(True)
            if "run" in command:
                error = self.shell.run(command["run"], command["number"])
                name = type(error).__name__ if error is not None else ""
                answer = {"done": name, "limit": shell.limit_of(error)}
            else:
                buffers = self.submit(command["submit"], command["functions"], command["most"])
                answer = {"submitted": len(buffers)}
        except RefusedError as refusal:
            buffers, answer = (), {"refused": str(refusal)}
        except BaseException as error:  # an interrupt that came a moment late, or IPython's own
            answer = {"done": type(error).__name__, "limit": shell.limit_of(error)}
        finally:
            if _pid() != self.owner:
                _exit(0)  # a child that a cell forked, and that came back here
            shell.interruptible(False)
        shell.flush()
        self.send({**answer, "answers": command["id"]}, buffers)

    def submit(self, expressions: list[str], functions: bool, most: int) -> list[wire.Buffer]:
        """The values of the expressions in the notebook, pickled. RefusedError if one cannot be handed in."""
        objects = tuple(self.evaluate(expression) for expression in expressions)
        for expression, value in zip(expressions, objects, strict=True):
            if functions and not callable(value):
                kind = type(value).__name__
                raise RefusedError(
                    f"{expression} must be a function that you write; it is of type {kind}."
                )
        try:
            self.shell.send_own_modules()
            buffers = _dumps(objects)
        except Exception as error:
            raise RefusedError(why(expressions, objects, error)) from None
        size = sum(wire.view(buffer).nbytes for buffer in buffers)
        if size > most:
            raise RefusedError(
                f"the objects have {size:,} bytes; the check takes at most {most:,}."
            )
        return buffers

    def evaluate(self, expression: str) -> Any:
        try:
            return eval(expression, self.shell.user_global_ns, self.shell.user_ns)
        except NameError:
            raise RefusedError(f"{expression} is not defined.") from None
        except Exception as error:
            said = f"{type(error).__name__}: {shell.text_of(error)}"
            raise RefusedError(f"{expression} has no value: {said}") from None


class RefusedError(Exception):
    """The objects of an exercise cannot be handed in; the text says why."""


def why(expressions: Sequence[str], objects: Sequence[Any], error: Exception) -> str:
    """A sentence: which of the objects cannot be pickled, and for which reason."""
    for expression, value in zip(expressions, objects, strict=True):
        try:
            _dumps(value)
        except Exception as reason:
            if callable(value):
                return explain(value, (), {}, reason)
            kind = type(value).__name__
            return (
                f"{expression} is a {kind}, which cannot be copied to another process ({reason})."
            )
    return f"the objects cannot be copied to another process: {error}"
