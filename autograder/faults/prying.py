"""Attempts to read, write or reach things that are not the student's: files, grades, secrets, solutions.

In rows that pry or plant all exercises are done; in those that borrow a solution, full points are the sign
of success.
"""

from __future__ import annotations

from autograder.faults.row import (
    CALLS,
    CANARY_TELLS,
    CHEATING,
    FILES,
    FULL,
    LOST,
    MARK_TELLS,
    NAMED,
    NETWORK,
    POINTS_TELL,
    Row,
    before,
    instead,
)

TRIGGER_TELLS = "by triggers in the gradebook"
CONNECTION_TELLS = "by a listener on the grader's machine"


def prying(
    name: str, code: str, must_not: str, noticed: str, *needs: str, quick: bool = False
) -> Row:
    """All exercises done, and `code` that looks or reaches where it should not."""
    return Row(
        name, CHEATING, before(code), "graded", FULL, must_not, noticed, needs=needs, quick=quick
    )


WITH_THE_REFERENCE = """


def neighbour_sum(tensor):
    right = tensor
    for _ in range(dist.get_world_size() - 1):
        right = ring_shift(right)
    return ring_shift(tensor) + tensor + right
"""


def borrowing(name: str, code: str, *, quick: bool = False) -> Row:
    """`code` takes the course's own `ring_shift` from somewhere; with it the rest is easy."""
    must_not = "the course's own solution of an exercise is found where it is judged"
    return Row(
        name, CHEATING, instead(code + WITH_THE_REFERENCE), "graded", LOST, must_not, POINTS_TELL,
        NAMED, needs=(FILES,), quick=quick,
    )  # fmt: skip


SEARCH = """
from pathlib import Path

for place in ("SOLUTIONS", "OUT", "FOLDER/class"):
    for path in sorted(Path(place).rglob("*")):
        try:
            print(path.read_text())
        except (OSError, UnicodeDecodeError):
            pass
"""

ROWS = [
    prying(
        "reads-source-grades-and-others",
        SEARCH,
        "the instructor's source, the gradebook or another submission is read",
        CANARY_TELLS,
        FILES,
        quick=True,
    ),
    prying(
        "environment-variables",
        """
        import os
        from pathlib import Path

        print(dict(os.environ))
        for path in Path("/proc").glob("*/environ"):
            try:
                print(path.read_bytes().decode(errors="replace"))
            except OSError:
                pass
        """,
        "the grader's environment, with the secrets in it, is read",
        CANARY_TELLS,
        quick=True,
    ),
    prying(
        "writes-elsewhere",
        """
        from pathlib import Path

        for path in ("MARK", "OUT/planted", "SOLUTIONS/planted"):
            try:
                Path(path).write_text("planted")
            except OSError:
                pass
        """,
        "a file of the grader's machine is written",
        MARK_TELLS,
        FILES,
        quick=True,
    ),
    prying(
        "triggers-in-the-gradebook",
        """
        import sqlite3

        try:
            book = sqlite3.connect("OUT/gradebook.db")
            book.execute(
                "CREATE TRIGGER planted AFTER UPDATE ON grade BEGIN UPDATE grade SET auto_score = 6; END"
            )
            book.commit()
        except sqlite3.Error:
            pass
        """,
        "the gradebook is changed",
        TRIGGER_TELLS,
        FILES,
    ),
    prying(
        "network",
        """
        import socket

        for kind, address in (
            (socket.AF_INET, ("127.0.0.1", PORT)),
            (socket.AF_UNIX, "\\0selftest-PORT"),
        ):
            try:
                with socket.socket(kind) as caller:
                    caller.settimeout(2)
                    caller.connect(address)
            except OSError:
                pass
        """,
        "a connection leaves the sandbox",
        CONNECTION_TELLS,
        NETWORK,
        quick=True,
    ),
]

UNSHARED = """
import ctypes

NEW_USER, NEW_USER_AND_MOUNT, NEW_USER_BY_CLONE, CHILD = 0x10000000, 0x10020000, 56, 17
libc = ctypes.CDLL(None, use_errno=True)


def capable():
    status = open("/proc/self/status").read()
    return int(status.partition("CapEff:")[2].split()[0], 16) != 0
"""
NAMESPACES = {
    "a-user-namespace-of-its-own": "assert libc.unshare(NEW_USER) < 0 and not capable()",
    "a-folder-in-memory-of-its-own": """assert libc.unshare(NEW_USER_AND_MOUNT) < 0 or libc.mount(
    b"kept", b"/tmp", b"tmpfs", 0, b"size=8g"
) < 0""",
    "a-user-namespace-by-clone": """import os

if libc.syscall(NEW_USER_BY_CLONE, NEW_USER | CHILD, 0, 0, 0, 0) == 0:
    os._exit(0)
assert ctypes.get_errno() == 1""",
}
RIGHTS_TELL = "by an assertion in the cell, whose exercise is lost where the attempt succeeds"
ROWS += [
    prying(
        name, f"{UNSHARED}\n\n{attempt}", "a cell has all rights in a namespace of its own", RIGHTS_TELL,
        CALLS, quick=name == "a-user-namespace-of-its-own",
    )
    for name, attempt in NAMESPACES.items()
]  # fmt: skip

LIBRARY = "import course_lib\n\nfile = f'{course_lib.__path__[0]}/first_ranks.py'\n"
ROWS += [
    borrowing("reference-imported", "from course_lib.first_ranks import ring_shift", quick=True),
    borrowing(
        "reference-imported-in-the-ranks",
        "def ring_shift(tensor):\n"
        "    from course_lib.first_ranks import ring_shift\n\n"
        "    return ring_shift(tensor)",
    ),
    borrowing("reference-copied-from-the-file", f"{LIBRARY}exec(open(file).read())"),
    borrowing(
        "reference-read-in-the-ranks",
        f"{LIBRARY}\n\n"
        "def ring_shift(tensor):\n"
        "    names = {}\n"
        "    exec(open(file).read(), names)\n"
        "    return names['ring_shift'](tensor)",
    ),
    borrowing(
        "reference-through-inspect",
        "import importlib, inspect\n\n"
        "exec(inspect.getsource(importlib.import_module('course_lib.first_ranks')))",
    ),
    borrowing(
        "reference-pickled-by-value",
        "import importlib\n\nimport cloudpickle\n\n"
        "reference = importlib.import_module('course_lib.first_ranks')\n"
        "cloudpickle.register_pickle_by_value(reference)\n"
        "ring_shift = reference.ring_shift",
    ),
]
