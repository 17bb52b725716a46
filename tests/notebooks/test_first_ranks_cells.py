"""The tools that notebook 00 gives in its cells: no process outlives an interrupted torchrun."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from autograder.course.config import SOLUTIONS

TWIN = SOLUTIONS / "00_first_ranks" / "00_first_ranks.py"
PROGRAM = """
import os, signal, time
from pathlib import Path

{tool}

WAITS = '''
import os, time
from pathlib import Path

Path({pids!r} + "/" + os.environ["RANK"]).write_text(str(os.getpid()))
while True:
    time.sleep(0.1)
'''
try:
    print(torchrun(WAITS, world_size=2))
except KeyboardInterrupt:
    print("interrupted")
"""


def tool(limit: float) -> str:
    """The imports and the function of the cell, with another time limit."""
    text = TWIN.read_text(encoding="utf-8")
    begin, end = text.index("import re\nimport subprocess\n"), text.index("print(torchrun(script,")
    cell = text[begin:end]
    assert "timeout=100" in cell
    return cell.replace("timeout=100", f"timeout={limit}")


def started(limit: float, pids: Path) -> subprocess.Popen[str]:
    """A process that calls the cell's function. Each of its ranks writes its process's id into `pids`."""
    pids.mkdir()
    program = PROGRAM.format(tool=tool(limit), pids=str(pids))
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)


def test_a_torchrun_that_does_not_end_is_ended_with_its_ranks(
    tmp_path: Path, assert_no_orphans: Callable
) -> None:
    pids = tmp_path / "pids"
    printed, _ = started(20, pids).communicate(timeout=240)
    assert "so it was ended" in printed
    assert_no_orphans(int(file.read_text()) for file in pids.iterdir())


def test_an_interrupt_ends_torchrun_and_its_ranks(
    tmp_path: Path, assert_no_orphans: Callable
) -> None:
    pids = tmp_path / "pids"
    job = started(100, pids)
    while sum(1 for file in pids.iterdir() if file.read_text()) < 2:
        assert job.poll() is None, "it ended before its ranks had started"
        time.sleep(0.1)
    os.kill(job.pid, signal.SIGINT)
    printed, _ = job.communicate(timeout=240)
    assert printed == "interrupted\n"
    # torchrun gives its ranks up to 30 seconds
    assert_no_orphans([int(file.read_text()) for file in pids.iterdir()], seconds=60)
