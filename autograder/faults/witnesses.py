"""Witnesses of a row that succeeded after all: marks, connections, secrets in outputs, processes, files.

They do not ask the submission. Each looks from outside for the traces that a success would have left.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import re
import signal
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

from autograder.faults.desk import ASSIGNMENT, Course, script_word
from autograder.outcome.result import Result

PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37
LOOKS_EVERY = 0.1  # seconds in which a listener notices that it has ended
GONE_WITHIN = 5.0  # seconds in which processes that grading ended are gone
LARGEST_KEPT = 8 << 20  # bytes: more of one submission means that its output was kept whole

# ---- connections


@dataclass
class Listener:
    """Waits for connections on the grader's machine, by TCP and by an abstract name."""

    port: int = 0
    callers: list[str] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    @contextlib.contextmanager
    def listening(self) -> Iterator[Listener]:
        with contextlib.ExitStack() as stack:
            tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            self.port = tcp.getsockname()[1]
            local = stack.enter_context(socket.socket(socket.AF_UNIX))
            local.bind(f"\0selftest-{self.port}")
            local.listen()
            threads = [
                threading.Thread(target=self._wait, args=(kind, listener), daemon=True)
                for kind, listener in (("TCP", tcp), ("an abstract socket", local))
            ]
            for thread in threads:
                thread.start()
            try:
                yield self
            finally:
                self.ended.set()
                for thread in threads:
                    thread.join()

    def _wait(self, kind: str, server: socket.socket) -> None:
        """Count the connections, also those that wait in the queue when the end comes."""
        server.settimeout(LOOKS_EVERY)
        while True:
            last = self.ended.is_set()
            try:
                connection, _ = server.accept()
            except TimeoutError:
                if last:
                    return
                continue
            connection.close()
            self.callers.append(kind)


# ---- processes


def children_of(pid: int) -> list[int]:
    """The living processes below `pid`; a zombie, which its parent has only to read, is none."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            _, _, rest = entry.read_text().rpartition(")")
        except OSError:  # it ended meanwhile
            continue
        state, parent = rest.split()[:2]
        if state not in "ZX":
            parents.setdefault(int(parent), []).append(int(entry.parent.name))
    family, waiting = [], [pid]
    while waiting:
        below = parents.get(waiting.pop(), [])
        family += below
        waiting += below
    return family


@dataclass
class Leftovers:
    """Processes that were started under the watch and still run at its end, each in words."""

    processes: list[str] = field(default_factory=list)


@contextlib.contextmanager
def watching_processes() -> Iterator[Leftovers]:
    """A context in which this process adopts the orphans of its descendants, so that none is overlooked.

    Processes that were started in it and still run some seconds after its end are named, and ended. This
    works on Linux alone; elsewhere nothing is watched.
    """
    left = Leftovers()
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "prctl") or not Path("/proc/self/stat").exists():
        left.processes.append("this system does not tell which processes were left behind")
        yield left
        return
    was = ctypes.c_int()
    library.prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(was), 0, 0, 0)
    library.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before = set(children_of(os.getpid()))
    try:
        yield left
    finally:
        deadline = time.monotonic() + GONE_WITHIN
        while (new := set(children_of(os.getpid())) - before) and time.monotonic() < deadline:
            time.sleep(0.05)
        for pid in sorted(new):
            left.processes.append(f"process {pid} was left behind: {_command(pid)}")
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        library.prctl(PR_SET_CHILD_SUBREAPER, was.value, 0, 0, 0)


def _command(pid: int) -> str:
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return "it has ended meanwhile"
    return line.replace(b"\0", b" ").decode(errors="replace").strip()[:200]


# ---- files


def snapshot(*folders: Path) -> dict[str, str]:
    """The content of the folders: {path: digest of a file's content, or the kind of another entry}."""
    states = {}
    for folder in folders:
        for path in folder.rglob("*"):
            if "__pycache__" in path.parts:
                continue
            if path.is_symlink() or not path.is_file():
                states[str(path)] = "folder" if path.is_dir() else "not a regular file"
            else:
                with open(path, "rb") as file:
                    states[str(path)] = hashlib.file_digest(file, "sha256").hexdigest()
    return states


def differences(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Sentences about what was written, changed or removed."""
    sentences = [f"{path} was written" for path in sorted(after.keys() - before.keys())]
    sentences += [f"{path} was removed" for path in sorted(before.keys() - after.keys())]
    both = before.keys() & after.keys()
    return sentences + [
        f"{path} was changed" for path in sorted(both) if before[path] != after[path]
    ]


# ---- traces of one submission


def signs_of_success(course: Course, student: str, result: Result) -> list[str]:
    """Sentences on everything that the row of `student` achieved; none if it achieved nothing."""
    sentences = []
    if (course.marks / student).exists():
        sentences.append("it wrote a file outside the sandbox")
    kept = course.out / "autograded" / student / ASSIGNMENT / f"{ASSIGNMENT}.ipynb"
    if kept.is_file():
        if kept.stat().st_size > LARGEST_KEPT:
            sentences.append(f"{kept.stat().st_size >> 20} MB of it were kept")
        elif course.canary in _outputs(kept):
            sentences.append("it printed a secret of the instructor's")
    if course.canary in json.dumps(result.to_json()):
        sentences.append("its result holds a secret of the instructor's")
    page = course.out / "feedback" / student / ASSIGNMENT / f"{ASSIGNMENT}.html"
    if page.is_file():
        text = page.read_text(encoding="utf-8")
        sentences += [f"the feedback page runs script in {page}" for page in active(text, student)]
    return sentences


def _outputs(notebook: Path) -> str:
    """The outputs of the cells, without the student's source."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return json.dumps([cell.get("outputs", []) for cell in cells])


def planted_triggers(book: Path) -> list[str]:
    """The triggers in a gradebook; nbgrader's has none of its own."""
    if not book.is_file():
        return []
    with contextlib.closing(sqlite3.connect(f"file:{book}?mode=ro", uri=True)) as connection:
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")
        return [f"the gradebook holds a trigger {name!r}" for (name,) in names]


class _Active(HTMLParser):
    """Collects the places of a page in which a word would run as script."""

    def __init__(self, word: str) -> None:
        super().__init__(convert_charrefs=True)
        self.word = word
        self.open = ""
        self.places: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open = tag
        for name, value in attrs:
            if self.word not in (value or ""):
                continue
            runs = re.match(r"\s*(javascript|data):", value or "", re.IGNORECASE)
            if name.startswith("on") or name == "srcdoc" or runs:
                self.places.append(f"<{tag} {name}=...>")

    def handle_endtag(self, tag: str) -> None:
        self.open = ""

    def handle_data(self, data: str) -> None:
        if self.open == "script" and self.word in data:
            self.places.append("<script>")


def active(page: str, student: str) -> list[str]:
    """The places of an HTML page in which script of this student's row would run."""
    parser = _Active(script_word(student))
    parser.feed(page)
    parser.close()
    return parser.places
