"""How far pip is, from the lines that it prints: one line that changes in a terminal, ten lines in a log.

    43 of 130 packages, 210 MB: jupyterlab-4.6.6 (11.7 MB)

A package whose size pip does not name, such as one from a folder, counts without megabytes. Only the standard
library is used, and no syntax that an old Python could not read.
"""

from __future__ import annotations

import re
import shutil
from typing import TextIO

LARGE = 20  # MB; a log names such a download when it begins
LINES = 10  # in a log, for all packages together
UNITS = {"bytes": 1e-6, "kB": 1e-3, "MB": 1.0, "GB": 1e3}
ARRIVING = re.compile(r"(?:Downloading|Using cached) (\S+) \(([\d.]+) (bytes|kB|MB|GB)\)")
PERCENT = re.compile(r"Progress (\d+) of ([1-9]\d*)")  # of --progress-bar=raw, since pip 24.1


class Progress:
    """Reads pip's lines. total: packages that may be installed; 0 if that is not known."""

    def __init__(self, total: int, stream: TextIO):
        self.total, self.stream, self.live = total, stream, stream.isatty()
        self.looked_up, self.arrived, self.megabytes = 0, 0, 0.0
        self.current = ""
        self.last_line = 0  # packages at the last line of the log

    def read(self, line: str) -> None:
        """Take in a line, and show what it changes."""
        text = line.strip()
        if text.startswith(("Ignoring ", "Requirement already satisfied")):
            self.total = max(0, self.total - 1)
        elif text.startswith("Collecting "):
            self.looked_up += 1
            self.show(text.split()[1])
        elif text.startswith("Processing "):
            self.arrive(package(text.split()[1].rpartition("/")[2]), 0)
        elif text.startswith("Installing collected packages"):
            self.line(f"unpacking {self.sum()}")
        arriving, percent = ARRIVING.match(text), PERCENT.match(text)
        if arriving and not arriving[1].endswith(".metadata"):
            size = float(arriving[2]) * UNITS[arriving[3]]
            self.arrive(f"{package(arriving[1])} ({arriving[2]} {arriving[3]})", size)
        elif percent and self.live:
            self.show(f"{self.current}, {100 * int(percent[1]) // int(percent[2])} %", keep=False)

    def arrive(self, name: str, size: float) -> None:
        self.arrived += 1
        self.megabytes += size
        if not self.live and (size >= LARGE or self.arrived - self.last_line >= self.total / LINES):
            self.last_line = self.arrived
            self.line(self.text(name))
        self.show(name)

    def sum(self) -> str:
        """ "43 of 130 packages, 210 MB"; before the first one arrives, those that pip has looked up."""
        count = str(self.arrived or self.looked_up) + (f" of {self.total}" if self.total else "")
        megabytes = f", {self.megabytes:.0f} MB" if self.megabytes >= 0.5 else ""
        plural = "" if count in ("1", "1 of 1") else "s"
        return f"{count} package{plural}{'' if self.arrived else ' looked up'}{megabytes}"

    def text(self, name: str) -> str:
        return name if self.total == 1 else f"{self.sum()}: {name}"

    def show(self, name: str, keep: bool = True) -> None:
        """Rewrite the terminal's line."""
        if keep:
            self.current = name
        if self.live:
            room = max(20, shutil.get_terminal_size().columns - 1)
            self.stream.write("\r\033[K" + f"    {self.text(name)}"[:room])
            self.stream.flush()

    def line(self, text: str) -> None:
        """Write a line that stays."""
        self.stream.write(("\r\033[K" if self.live else "") + f"    {text}\n")
        self.stream.flush()

    def end(self) -> None:
        """Leave a terminal's line empty for the next text."""
        if self.live:
            self.stream.write("\r\033[K")
            self.stream.flush()


def package(file: str) -> str:
    """Name and version of a file that holds a package: "jupyterlab-4.6.6"."""
    return "-".join(file.split("-")[:2])
