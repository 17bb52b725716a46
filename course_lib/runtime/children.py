"""Processes forked from the preloaded one, seen from the process that asked for them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

from course_lib.runtime.errors import LaunchError
from course_lib.runtime.held import Held, held_with_children
from course_lib.runtime.sandbox.spec import PID, Sandbox

START = 120  # seconds until the children must be there
KILLED = -signal.SIGKILL
Socket: TypeAlias = socket.socket

# "module:function", JSON-able arguments, descriptors: called in the child as function(arguments, descriptors)
Entry = tuple[str, dict[str, Any], Sequence[int]]


class Forker(Protocol):
    """The preloaded process, as far as its children need it (`Preloaded` imports this file)."""

    socket: Socket
    groups: dict[int, Children]

    def ask(self, request: dict) -> None: ...
    def read(self, wait: float | None = 0) -> bool: ...
    def alive(self) -> bool: ...
    def obituary(self) -> str: ...


class Children:
    """A few processes that were forked together and end together, in a sandbox or without one.

    The constructor does not wait, but the first question to them does. LaunchError if they could not be
    started.
    """

    count = 0

    def __init__(
        self,
        preloaded: Forker,
        entries: Sequence[Entry],
        sandbox: Sandbox | None = None,
        place: int = 0,
        room: int = 0,
    ):
        """place: the number of a standing sandbox (see `walls`) with room for them; 0: their own."""
        self.id, self.preloaded, self.sandbox = Children.number(), preloaded, sandbox
        self.place = place
        self.exits: dict[int, int] = {}
        self.limit = ""  # "memory" or "processes": they were ended since they took too much of it
        self._forked: dict | None = None
        self._loopback: int | None = None
        self.measured: dict[int, Held] = {}  # the answers to `measure`, once they are there
        self.sent: dict[
            int, int | None
        ] = {}  # on the sandbox's own loopback, when a child was measured last
        self._over = self.ended = False
        self._number = len(entries)
        descriptors: list[int] = []
        children = []
        for entry, arguments, fds in entries:
            places = []
            for fd in fds:
                if fd not in descriptors:
                    descriptors.append(fd)
                places.append(descriptors.index(fd))
            children.append([entry, arguments, places])
        order = {
            "fork": self.id,
            "children": children,
            "place": place or self.id,
            "room": room,
            "sandbox": sandbox.to_json() if sandbox else None,
        }
        preloaded.groups[self.id] = self
        try:
            socket.send_fds(preloaded.socket, [json.dumps(order).encode()], descriptors)
        except OSError:
            raise LaunchError(preloaded.obituary()) from None

    @classmethod
    def number(cls) -> int:
        """A new number, for children or for a standing sandbox."""
        cls.count += 1
        return cls.count

    @property
    def broken(self) -> bool:
        """Whether their sandbox has ended, or will."""
        return self._over or bool(self.limit) or "failed" in (self._forked or {})

    def take(self, message: dict) -> None:
        """Take in a message of the preloaded process on these children."""
        if "pids" in message or "failed" in message:
            self._forked = message
        elif "exit" in message:
            number, code = message["exit"]
            self.exits[number] = code
        elif "limit" in message:
            self.limit = message["limit"]
        elif "loopback" in message:
            self._loopback = message["loopback"]
        elif "measured" in message:
            number, *amounts = message["measured"]
            self.measured[number] = Held(*amounts)
            self.sent[number] = message["sent"]
        elif "over" in message:
            self._over = True
            for number in range(self._number):
                self.exits.setdefault(number, KILLED)

    def started(self, wait: float = START) -> dict:
        """The preloaded process's message on the fork; waits for it."""
        deadline = time.monotonic() + wait
        while self._forked is None:
            if self._over:
                raise LaunchError("the sandbox ended before its processes had started.")
            if not self.preloaded.read(max(0.0, deadline - time.monotonic())):
                raise LaunchError(
                    f"the ranks did not start within {wait:.0f} seconds. The machine might be out of memory "
                    "or very busy. Run `python -m course_lib.doctor`."
                )
        if "failed" in self._forked:
            raise LaunchError(f"the sandbox could not be made: {self._forked['failed']}")
        return self._forked

    @property
    def pids(self) -> list[int]:
        """Process ids; those inside the sandbox if it has a pid namespace."""
        return self.started()["pids"]

    def exit_code(self, number: int) -> int | None:
        """The exit code, if it is known by now; negative: the signal that ended it."""
        return self.exits.get(number)

    def signal(self, number: int, signum: int) -> None:
        """Send a signal to one child. Nothing happens if it has ended."""
        if self.sandbox is not None:
            self.preloaded.ask({"signal": [self.id, number, signum]})
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pids[number], signum)

    def loopback(self, wait: float = 5) -> int | None:
        """Bytes sent on the sandbox's own loopback until now, without headers, counted by the kernel.

        None if the network is the machine's, or if the sandbox is gone.
        """
        if self.sandbox is None or not self.sandbox.isolates_network or self._over:
            return None
        self._loopback = None
        self.preloaded.ask({"loopback": self.id})
        deadline = time.monotonic() + wait
        while self._loopback is None and not self._over:
            if not self.preloaded.read(max(0.0, deadline - time.monotonic())):
                return None
        return self._loopback

    def measure(self, number: int) -> None:
        """Have one child's memory measured from outside. `measured` has it soon, or the child has ended."""
        if self.sandbox is not None:
            self.preloaded.ask({"measure": [self.id, number]})
            return
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            self.measured[number] = held_with_children(self.pids[number])

    def end(self) -> None:
        """Kill them and everything they started. Returns when the order is given."""
        if self.ended:
            return
        self.ended = True
        if self.place:
            self.preloaded.ask({"end": self.id})
        elif self.preloaded.alive():
            with contextlib.suppress(LaunchError):
                forked = self.started()
                if self.sandbox is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(forked["pgid"], signal.SIGKILL)
                elif self.sandbox.has(PID):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(forked["keeper"], signal.SIGKILL)
            self.preloaded.ask({"end": self.id})
        self.preloaded.groups.pop(self.id, None)
