"""Drives an executor from outside: cells go in, their outputs and outcomes come back as data.

The process at the other end runs a student's code and may send, print, close or kill anything in its reach.
Nothing that comes from it is unpickled; messages are checked (`autograder.sandbox.messages`), text is bounded
(`autograder.sandbox.transcript`), and every wait has an end.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from autograder.outcome import sentences, statuses
from autograder.outcome.limits import Limits
from autograder.sandbox import messages
from autograder.sandbox.child import Start
from autograder.sandbox.transcript import Transcript
from course_lib.runtime import wire
from course_lib.runtime.errors import LaunchError

OK, ERROR = "ok", "error"  # a cell's outcome, besides the statuses of limits
START = 120.0  # seconds for the process to be ready
GRACE = 3.0  # seconds in which an interrupted cell has to end
LAST_WORDS = 5.0  # seconds between the end of the channel and that of the process
TICK = 0.1
FLOOD = 4096  # times `Limits.output`: a cell that prints more is stopped
PIECE = 1 << 16
DRAINED = 4 << 20  # bytes that are read from the pipes at a time


@dataclass(frozen=True)
class CellRun:
    """The outcome of a cell.

    outputs: as nbformat keeps them; kind: OK, ERROR or one of `statuses.LIMITS`, with a sentence for these
    and some errors; error: the type of the cell's exception; finished: whether the cell came to an end of its
    own, be it an error, so that running it again is worth a try; alive: whether the process can go on.
    """

    kind: str
    outputs: list[dict] = field(default_factory=list)
    sentence: str = ""
    error: str = ""
    finished: bool = True
    alive: bool = True


@dataclass(frozen=True)
class Refusal:
    """The reason why no objects were handed in. kind: ERROR or one of `statuses.LIMITS`."""

    sentence: str
    kind: str = ERROR


class StoppedError(Exception):
    """The process did not answer; it is ended. kind: one of `statuses.LIMITS`."""

    def __init__(self, kind: str, sentence: str):
        super().__init__(sentence)
        self.kind, self.sentence = kind, sentence


class Executor:
    """One process that runs one notebook's cells. LaunchError if it does not start."""

    def __init__(self, start: Start, limits: Limits):
        self.limits, self.alive, self.asked = limits, False, 0
        self.control, its = socket.socketpair()
        out, out_end = os.pipe()
        err, err_end = os.pipe()
        heard_end, self.heard = os.pipe()
        self.pipes = {out: "stdout", err: "stderr"}
        self.receiver = messages.Messages(self.control, messages.HEADER)
        self.selector = selectors.DefaultSelector()
        try:
            self.child = start([its.fileno(), out_end, err_end, heard_end])
        finally:
            its.close()
            for fd in (out_end, err_end, heard_end):
                os.close(fd)
        os.set_blocking(self.heard, False)
        self.control.setblocking(False)
        self.selector.register(self.control, selectors.EVENT_READ, "control")
        self.selector.register(self.child.news(), selectors.EVENT_READ, "news")
        for fd in self.pipes:
            os.set_blocking(fd, False)
            self.selector.register(fd, selectors.EVENT_READ, "pipe")
        self.alive = True
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        said = Transcript(1 << 16)
        try:
            self._answer(START, said, lambda header: header.get("ready") is True)
        except StoppedError as stopped:
            last = "".join(output.get("text", "") for output in said.outputs())
            raise LaunchError(
                f"the process for the notebook did not start: {stopped.sentence}. {last}"
            ) from None

    def run(self, source: str, number: int, seconds: float) -> CellRun:
        """Run a cell as In[number] for at most `seconds`; never raises for an error of the cell."""
        said = Transcript(self.limits.output)
        self.receiver.limit = messages.HEADER
        try:
            answer, _ = self._ask({"run": source, "number": number}, seconds, said, "done")
        except StoppedError as stopped:
            return CellRun(
                stopped.kind, said.outputs(), stopped.sentence, finished=False, alive=self.alive
            )
        outputs = said.outputs()
        error = messages.sound(str(answer["done"]))[: messages.NAME]
        limit = messages.limit_of(answer.get("limit"))
        if limit:
            sentence = sentences.of_limit(limit, self.limits, error)
            return CellRun(limit, outputs, sentence, error, alive=self.alive)
        if said.cut:
            sentence = sentences.of_output(said.printed, said.left_out, self.limits)
            return CellRun(statuses.TOO_MUCH_OUTPUT, outputs, sentence, error)
        return CellRun(ERROR if error else OK, outputs, sentences.of_error(error, outputs), error)

    def submit(
        self, expressions: Sequence[str], seconds: float, functions: bool = False
    ) -> list[wire.Buffer] | Refusal:
        """The pickled values of `expressions` in the notebook; only the ranks unpickle them.

        functions: refuse values that cannot be called.
        """
        most = self.limits.payload
        self.receiver.limit = messages.HEADER + most
        command = {"submit": list(expressions), "functions": functions, "most": most}
        said = Transcript(self.limits.output)  # prints of pickling belong to no cell
        try:
            answer, buffers = self._ask(command, seconds, said, "submitted", "refused", "done")
        except StoppedError as stopped:
            return Refusal(stopped.sentence, stopped.kind)
        if "refused" in answer:
            return Refusal(messages.sound(str(answer["refused"]))[: messages.ERROR_TEXT])
        if "done" in answer:
            limit = messages.limit_of(answer.get("limit"))
            error = messages.sound(str(answer["done"]))[: messages.NAME]
            sentence = (
                sentences.of_limit(limit, self.limits, error)
                if limit
                else f"{error} while handing in"
            )
            return Refusal(sentence, limit or ERROR)
        return list(buffers)

    def close(self) -> None:
        """Kill the process and all that it started."""
        if self.alive:
            self.alive = False
            self.child.end()
        self.selector.close()
        self.control.close()
        for fd in (*self.pipes, self.heard):
            if fd >= 0:
                os.close(fd)
        self.pipes, self.heard = {}, -1

    # ---- one question, and the wait for its answer

    def _ask(
        self, command: dict, seconds: float, said: Transcript, *keys: str
    ) -> tuple[dict, list[bytearray]]:
        """StoppedError if there is no answer; unless it only took too long, the process is ended."""
        if not self.alive:
            raise StoppedError(statuses.KERNEL_DIED, "the notebook's process has ended")
        self.asked += 1
        self.control.settimeout(seconds)
        try:
            wire.send(self.control, {**command, "id": self.asked})
        except OSError:
            pass  # it has ended, or does not listen: the wait for its answer finds out
        finally:
            self.control.setblocking(False)
        return self._answer(
            seconds,
            said,
            lambda header: header.get("answers") == self.asked and any(k in header for k in keys),
        )

    def _answer(
        self, seconds: float, said: Transcript, wanted: Callable[[dict], bool]
    ) -> tuple[dict, list[bytearray]]:
        deadline, stop = time.monotonic() + seconds, None
        try:
            while True:
                message = self._look(said, max(0.0, min(TICK, deadline - time.monotonic())))
                if message is not None:
                    if wanted(message[0]):
                        self._drain(said)
                        if stop is not None:
                            raise stop
                        return message
                    self._take(message[0], said)
                    with contextlib.suppress(OSError):  # it has ended, or does not listen
                        os.write(self.heard, b".")
                if stop is None:
                    stop = self._overdue(said, seconds, deadline)
                    if stop is not None:
                        deadline = time.monotonic() + GRACE
                        self.child.interrupt()
                elif time.monotonic() > deadline:
                    raise StoppedError(stop.kind, f"{stop.sentence} and could not be interrupted")
        except StoppedError as stopped:
            if stopped is not stop:
                self._end()
            raise
        except EOFError:
            raise self._ended(said, stop) from None
        except (wire.WireError, ValueError, RecursionError) as error:
            self._end()
            raise StoppedError(
                statuses.KERNEL_DIED,
                f"the notebook's process was ended: a cell wrote into its channel to grading ({error})",
            ) from None

    def _overdue(self, said: Transcript, seconds: float, deadline: float) -> StoppedError | None:
        if time.monotonic() > deadline:
            return StoppedError(
                statuses.TIMED_OUT, f"the cell ran longer than its time limit of {seconds:g} s"
            )
        if said.printed > FLOOD * self.limits.output:
            return StoppedError(
                statuses.TOO_MUCH_OUTPUT, f"the cell was stopped after it had printed {said.printed:,} bytes"
            )  # fmt: skip
        return None

    def _look(self, said: Transcript, wait: float) -> tuple[dict, list[bytearray]] | None:
        """Wait a moment for a message; EOFError when the process has ended."""
        message = None
        for key, _ in self.selector.select(wait):
            if key.data == "pipe":
                self._read_pipe(key.fd, said)
            elif key.data == "control":
                try:
                    message = self.receiver.read()
                except OSError:
                    raise EOFError from None
                self._drain(said)  # prints from before the message was sent
        if message is None and self.child.exit_code() is not None:
            raise EOFError
        return message

    def _take(self, header: dict, said: Transcript) -> None:
        """A message in the middle of a cell."""
        if "clear" in header:
            said.clear(wait=header["clear"] is True)
            return
        output = messages.output_of(header.get("output"))
        name = header.get("display_id", "")
        if output is not None and isinstance(name, str):
            said.show(output, name[: messages.NAME], header.get("update") is True)

    def _drain(self, said: Transcript) -> None:
        """Read what stands in the pipes, within reason: a thread may be printing without end."""
        for fd in list(self.pipes):
            for _ in range(DRAINED // PIECE):
                if not self._read_pipe(fd, said):
                    break

    def _read_pipe(self, fd: int, said: Transcript) -> bool:
        try:
            data = os.read(fd, PIECE)
        except BlockingIOError:
            return False
        if not data:
            with contextlib.suppress(KeyError):  # seen before
                self.selector.unregister(fd)
            return False
        said.write(self.pipes[fd], data)
        return True

    # ---- the end of the process

    def _ended(self, said: Transcript, stop: StoppedError | None) -> StoppedError:
        """The channel or the process ended: for which reason?"""
        deadline = time.monotonic() + LAST_WORDS
        while (code := self.child.exit_code()) is None and time.monotonic() < deadline:
            self._drain(said)
            time.sleep(0.01)
        self._drain(said)
        limit = self.child.limit()
        self._end()
        if limit:
            return StoppedError(limit, sentences.of_limit(limit, self.limits))
        if stop is not None:
            return StoppedError(stop.kind, f"{stop.sentence}; the interrupt ended the process")
        return StoppedError(statuses.KERNEL_DIED, sentences.of_end(code))

    def _end(self) -> None:
        self.alive = False
        self.child.end()
