"""A journal that many processes write, some of which are killed while they write."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import NamedTuple


class Line(NamedTuple):
    """rank: of the process that wrote it, -1 outside of all ranks; time: on the machine's monotonic clock."""

    time: float
    pid: int
    rank: int
    text: str


class Journal:
    """Lines in one file. Each line is one write to a file opened for appending, so lines do not mix."""

    def __init__(self, path: str | Path):
        self.path = Path(path)

    def note(self, text: str) -> None:
        line = Line(time.monotonic(), os.getpid(), int(os.environ.get("RANK", -1)), text)
        with self.path.open("ab", buffering=0) as file:
            file.write(json.dumps(line).encode() + b"\n")

    def lines(self) -> list[Line]:
        """All lines so far, in the order in which they were written."""
        if not self.path.exists():
            return []
        return [Line(*json.loads(line)) for line in self.path.read_bytes().splitlines()]

    def die_once(self, text: str) -> None:
        """Kill this process with SIGKILL, unless a process has already died here with this text."""
        if all(line.text != text for line in self.lines()):
            self.note(text)
            os.kill(os.getpid(), signal.SIGKILL)
