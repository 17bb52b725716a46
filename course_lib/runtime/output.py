"""The output that ranks print: shown line by line while they run, tagged, and bounded."""

from __future__ import annotations

import os
import re
import sys
from collections import deque
from collections.abc import Callable

from course_lib.ledger.wording import listed
from course_lib.runtime.places import file_name, is_cell

HEAD_LINES, HEAD_BYTES = 500, 1 << 17  # shown of each rank while it runs
TAIL_LINES = 5  # the last of the lines that were not shown
LONGEST = 4000  # characters of one line
# gloo says it of each group that it has made, in PyTorch 2.9: eight lines in a cell of eight ranks.
MADE = re.compile(
    r"\[Gloo\] Rank \d+ is connected to (\d+) peer ranks\."
    r" Expected number of connected peer ranks is : \1"
)
# A line of the stack that Python prints when C code has crashed.
OF_A_CRASH = re.compile(r'  File "([^"]+)", line (\d+) in (.+)')

OnOutput = Callable[[int, str, str], None]


def show(rank: int, stream: str, line: str) -> None:
    """Print a rank's line in the cell. Warnings also go to stdout, as graders fail cells that use stderr."""
    tag = f"[rank {rank}]" if stream == "out" else f"[rank {rank}, stderr]"
    sys.stdout.write(f"{tag} {line if stream == 'out' else with_cells(line)}\n")
    sys.stdout.flush()


def with_cells(line: str) -> str:
    """The line; in the stack of a crash, a notebook's cell is named by its number instead of its file."""
    place = OF_A_CRASH.fullmatch(line)
    if place is None or not is_cell(place[1]):
        return line
    return f"  {file_name(place[1])}, line {place[2]} in {place[3]}"


class Output:
    """Reads the ranks' pipes. It passes on the first lines of each rank and keeps the last of a storm."""

    def __init__(self, world_size: int, on_line: OnOutput | None):
        self.on_line = on_line
        self.partial: dict[tuple[int, str], bytes] = {}
        self.lines, self.bytes = [0] * world_size, [0] * world_size
        self.kept: list[deque[tuple[str, str]]] = [
            deque(maxlen=TAIL_LINES) for _ in range(world_size)
        ]
        self.tail: list[deque[str]] = [deque(maxlen=40) for _ in range(world_size)]
        self.warned: dict[str, int] = {}  # a warning of N ranks is shown once
        self.repeats: dict[str, list[int]] = {}

    def read(self, fd: int, rank: int, stream: str) -> bool:
        """Take in the bytes in the pipe; False at its end or if it is empty."""
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return False
        if not data:
            return False
        head, newline, rest = (self.partial.get((rank, stream), b"") + data).rpartition(b"\n")
        if len(rest) > LONGEST * 4:  # a line without end
            head, newline, rest = (head + b"\n" if newline else b"") + rest, b"\n", b""
        self.partial[rank, stream] = rest
        if newline:
            self.take(rank, stream, head)
        return True

    def take(self, rank: int, stream: str, data: bytes) -> None:
        self.bytes[rank] += len(data)
        for raw in data.split(b"\n"):
            line = raw.decode("utf-8", "replace")
            if MADE.fullmatch(line):
                continue
            if len(line) > LONGEST:
                line = f"{line[:LONGEST]} ... ({len(line):,} characters)"
            self.lines[rank] += 1
            self.tail[rank].append(line)
            if stream == "err" and self.repeated(rank, line):
                continue
            if self.lines[rank] <= HEAD_LINES and self.bytes[rank] <= HEAD_BYTES + len(data):
                if self.on_line:
                    self.on_line(rank, stream, line)
            else:
                self.kept[rank].append((stream, line))

    def repeated(self, rank: int, line: str) -> bool:
        """Has another rank printed this very line to stderr? Then count it, and do not show it."""
        first = self.warned.setdefault(line, rank)
        if first != rank and line.strip():
            ranks = self.repeats.setdefault(line, [first])
            if rank not in ranks:
                ranks.append(rank)
                return True
        return False

    def finish(self) -> None:
        """After the last byte: unfinished lines, lines left out in a storm, ranks that repeated a line."""
        for (rank, stream), rest in self.partial.items():
            if rest:
                self.take(rank, stream, rest)
        self.partial.clear()
        if not self.on_line:
            return
        for rank, kept in enumerate(self.kept):
            if kept:
                hidden = (
                    self.lines[rank] - HEAD_LINES if self.lines[rank] > HEAD_LINES else len(kept)
                )
                self.on_line(
                    rank, "out", f"... printed {hidden:,} more lines ({self.bytes[rank]:,} bytes in all); "
                    f"the last {len(kept)}:",
                )  # fmt: skip
                for stream, line in kept:
                    self.on_line(rank, stream, line)
        for ranks in {tuple(sorted(ranks)) for ranks in self.repeats.values()}:
            rest = [rank for rank in ranks if rank != ranks[0]]
            self.on_line(
                ranks[0], "err", f"(the same from rank{'s' * (len(rest) > 1)} {listed(rest)})"
            )
