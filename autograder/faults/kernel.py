"""Faults of the process that runs the notebook: it dies, hangs, floods, or uses up what it is given."""

from __future__ import annotations

from autograder.faults.row import (
    FULL,
    KERNEL,
    LOST,
    NAMED,
    POINTS_TELL,
    PROCESSES,
    Row,
    before,
)

COSTS_ONE = "another exercise loses its points, or the class waits"
GOES_ON = "grading goes on waiting, or another submission is late"
CUT = "the output is kept whole, or its length costs points"
STAYS = "a process outlives its submission"
BY_TIME = "by the time that the class takes"
BY_SIZE = "by the size of the notebook that is kept"
BY_LIST = "by the list of processes afterwards"


def dying(name: str, code: str, *, quick: bool = False) -> Row:
    return Row(
        name, KERNEL, before(code), "kernel died", LOST, COSTS_ONE, POINTS_TELL,
        says=NAMED, quick=quick,
    )  # fmt: skip


def hanging(name: str, code: str, *, quick: bool = False) -> Row:
    return Row(
        name, KERNEL, before(code), "timed out", LOST, GOES_ON, BY_TIME,
        says=r"time|second|\d s\b", quick=quick,
    )  # fmt: skip


def failing(name: str, code: str, says: str) -> Row:
    return Row(name, KERNEL, before(code), "graded", LOST, COSTS_ONE, POINTS_TELL, says=says)


def flooding(name: str, code: str, *, quick: bool = False) -> Row:
    return Row(
        name, KERNEL, before(code), "too much output", FULL, CUT, BY_SIZE,
        says="output|print", quick=quick,
    )  # fmt: skip


def spilling(name: str, code: str) -> Row:
    """Output that may count towards one limit or another."""
    return Row(
        name, KERNEL, before(code), "graded", FULL, CUT, BY_SIZE,
        or_status=("too much output",),
    )  # fmt: skip


def greedy(name: str, status: str, code: str, *needs: str, quick: bool = False) -> Row:
    return Row(
        name, KERNEL, before(code), status, LOST, "the machine or a neighbour runs short of it",
        "by what the machine has left, and by the honest submissions' points",
        says=NAMED, needs=needs, quick=quick,
    )  # fmt: skip


def harmless(name: str, code: str, must_not: str, noticed: str, *, quick: bool = False) -> Row:
    return Row(name, KERNEL, before(code), "graded", FULL, must_not, noticed, quick=quick)


ROWS = [
    dying("killed", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"),
    dying("segfault", "import ctypes\nctypes.string_at(0)"),
    dying("exits-at-once", "import os\nos._exit(0)", quick=True),
    dying("closes-every-descriptor", "import os\nos.closerange(0, 512)"),
    failing("sys-exit", "import sys\nsys.exit(0)", "SystemExit|exit"),
    failing("asks-for-input", "name = input('Your name? ')", "input|EOFError"),
    failing(
        "error-that-cannot-be-printed",
        """
        class Unspeakable(Exception):
            def __str__(self):
                raise SystemExit

        raise Unspeakable
        """,
        NAMED,
    ),
    hanging("busy-loop", "while True:\n    pass"),
    hanging(
        "catches-the-interrupt",
        """
        while True:
            try:
                while True:
                    pass
            except BaseException:
                pass
        """,
        quick=True,
    ),
    hanging("hangs-in-c", "import itertools\nsum(itertools.repeat(0))"),
    hanging("stops-itself", "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)"),
    Row(
        "endless-printing", KERNEL, before("while True:\n    print('and again ' * 1_000)"),
        "too much output", LOST, GOES_ON, BY_SIZE, says="print|longer",
        or_status=("timed out",),
    ),
    flooding("a-million-lines", "print('line\\n' * 1_000_000)", quick=True),
    flooding("a-line-of-200-mb", "print('x' * 200_000_000)"),
    spilling(
        "a-display-of-50-mb",
        "from IPython.display import HTML\ndisplay(HTML('x' * 50_000_000))",
    ),
    harmless(
        "html-of-unclosed-elements",
        "from IPython.display import HTML\ndisplay(HTML('<div>' * 38_000))",
        "the page takes hours, and the class waits",
        BY_TIME,
    ),
    harmless(
        "a-drawing-nested-too-deeply",
        """
        shapes = "<g>" * 30_000 + "</g>" * 30_000
        display({"image/svg+xml": f'<svg xmlns="http://www.w3.org/2000/svg">{shapes}</svg>'}, raw=True)
        """,
        "the page cannot be made, and the submission has no grade",
        POINTS_TELL,
    ),
    spilling(
        "threads-that-go-on-printing",
        """
        import threading

        def chatter():
            while True:
                print("still here")

        for _ in range(3):
            threading.Thread(target=chatter, daemon=True).start()
        """,
    ),
    harmless(
        "prints-before-and-after",
        "import os, sys\nos.write(1, b'from C\\n')\nprint('a warning', file=sys.stderr)",
        "a warning costs points",
        POINTS_TELL,
    ),
    harmless(
        "daemon-left-behind",
        """
        import subprocess

        subprocess.Popen(["sleep", "4321"], start_new_session=True)
        """,
        STAYS,
        BY_LIST,
        quick=True,
    ),
    harmless(
        "orphan-of-an-orphan",
        """
        import os, time

        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(4321)
            os._exit(0)
        """,
        STAYS,
        BY_LIST,
    ),
    harmless(
        "fork-that-goes-on-as-the-notebook",
        "import os\nos.fork()",
        "the copy answers in the notebook's place, or a verdict comes twice",
        POINTS_TELL,
    ),
    harmless(
        "ignores-every-signal",
        """
        import signal

        for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_IGN)
        """,
        STAYS,
        BY_LIST,
    ),
    harmless("closes-its-output", "import os\nos.close(1)\nos.close(2)", COSTS_ONE, POINTS_TELL),
    greedy(
        "out-of-memory",
        "out of memory",
        "hoard = []\nwhile True:\n    hoard.append(b'x' * (1 << 26))",
        quick=True,
    ),
    greedy(
        "fork-bomb",
        "too many processes",
        """
        import os, time

        notebook = os.getpid()
        while True:
            try:
                os.fork()
            except OSError:
                if os.getpid() == notebook:
                    raise
                time.sleep(600)
        """,
        PROCESSES,
    ),
    Row(
        "fork-bomb-that-never-rests", KERNEL,
        before(
            """
            import os

            while True:
                try:
                    os.fork()
                except OSError:
                    pass
            """
        ),
        "too many processes", LOST, "the machine or a neighbour has no processor left", BY_TIME, says=NAMED,
        or_status=("timed out", "out of memory"), needs=(PROCESSES,),
    ),
    greedy(
        "too-many-sleepers",
        "too many processes",
        """
        import os, time

        for _ in range(5_000):
            if os.fork() == 0:
                time.sleep(600)
        """,
        PROCESSES,
    ),
    greedy(
        "descriptors-exhausted",
        "too many files",
        "files = []\nwhile True:\n    files.append(open('/dev/null'))",
    ),
    greedy(
        "2-gb-of-files",
        "disk full",
        """
        for number in range(32):
            with open(f"file{number}", "wb") as file:
                file.write(bytes(1 << 26))
        """,
    ),
]  # fmt: skip
