"""A copy of the course, and JupyterLab in it, started as a student starts it: by `make lab`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import psutil

from tests.conftest import alive, describe, wait_until_gone

ROOT = Path(__file__).resolve().parents[2]
READY = ".venv/installed.json"
# Folders of a clone that a run must neither read nor change.
OWN = (".git", ".venv", "build", "dist", "out", "work", ".pytest_cache", ".ruff_cache")
# The choices on the command line of the `make` that runs these tests are not for the ones that they start.
OUTER_MAKE = ("MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "MAKELEVEL", "ARGS")
MARK = "COURSE_BROWSER_SERVER"
POLL = 0.1  # seconds between two looks at a state that announces no change


def copy_of_the_course(folder: Path) -> Path:
    """The course in `folder`, with the same `.venv`; in it the tests may write, and grade, as they like."""
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*OWN))
    # Sandboxes show a link and the folder behind it, but not a second link on the way.
    (folder / ".venv").symlink_to((ROOT / ".venv").resolve())
    return folder


def make(target: str, arguments: str = "", **more: str) -> list[str]:
    """The command that a person types. `.venv` is taken as it is, since the tests run in it."""
    choices = [f"{name}={value}" for name, value in more.items()]
    return [
        "make",
        "--no-print-directory",
        f"--old-file={READY}",
        target,
        f"ARGS={arguments}",
        *choices,
    ]


def environment(course: Path, **more: str) -> dict[str, str]:
    """The environment of a program in the copy, whose packages come before the installed ones."""
    kept = {name: value for name, value in os.environ.items() if name not in OUTER_MAKE}
    return {**kept, "PYTHONPATH": str(course), **more}


class Server:
    """JupyterLab behind `make lab`, on a free port, with settings of its own.

    address, token: where a browser finds it. `stop` ends it with its kernels, and fails if a process is left.
    When the process of the tests is killed, the kernel tells `make`, and `make` ends the server.
    """

    def __init__(self, course: Path, folder: Path, arguments: str = ""):
        self.folder, self.mark = folder, f"{os.getpid()}-{folder.name}"
        folder.mkdir(parents=True)
        own = {
            "JUPYTER_CONFIG_DIR": str(folder / "config"),
            "JUPYTER_DATA_DIR": str(folder / "data"),
            "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
            "IPYTHONDIR": str(folder / "ipython"),
            MARK: self.mark,
        }
        # The page is asked for the states of its cells and its kernel through the application's own object.
        lab = f"--no-browser --ServerApp.port={free_port()} --LabApp.expose_app_in_browser=True {arguments}"
        self.log = folder / "server.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", *make("lab", lab)],
                cwd=course,
                env=environment(course, **own),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # an interrupt of the tests comes to it through `stop` alone
            )
        try:
            self.pid, self.address, self.token = self._wait()
        except BaseException:
            self.stop()
            raise

    def _wait(self) -> tuple[int, str, str]:
        """Process, address and token, from the file that the server writes once it listens."""
        while self.process.poll() is None:
            for file in (self.folder / "runtime").glob("jpserver-*.json"):
                try:
                    said = json.loads(file.read_text())
                    self._get(said["url"] + "api/status", said["token"])
                except (ValueError, OSError):  # half written, or not listening yet
                    continue
                return said["pid"], said["url"], said["token"]
            time.sleep(POLL)
        raise AssertionError(f"`make lab` ended at once:\n{self.log.read_text()[-3000:]}")

    def _get(self, address: str, token: str, method: str = "GET") -> bytes:
        request = urllib.request.Request(
            address, headers={"Authorization": f"token {token}"}, method=method
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.read()

    def processes(self) -> list[int]:
        """All processes that descend from `make lab`, orphans included: each has inherited the mark."""
        mark = f"{MARK}={self.mark}".encode()
        inherited = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                marked = mark in (folder / "environ").read_bytes().split(b"\0")
            except OSError:  # it has just ended, or it belongs to another user
                continue
            if marked and alive(int(folder.name)):
                inherited.append(int(folder.name))
        return inherited

    def orphans(self) -> list[int]:
        """Processes that have outlived the one that started them."""
        family = self.processes()
        return [pid for pid in family if parent(pid) not in {*family, os.getpid()}]

    def own(self) -> set[int]:
        """Of `processes` those of the server itself: `make`, and Jupyter."""
        return {self.process.pid, self.pid}

    def kernels(self) -> list[int]:
        """The processes of the kernels that run."""
        programs = {child.pid: child.cmdline() for child in psutil.Process(self.pid).children()}
        return [pid for pid, command in programs.items() if "ipykernel_launcher" in command]

    def end_kernels(self) -> None:
        """Shut all kernels down, as closing a notebook's tab does; AssertionError for what outlives them."""
        for session in json.loads(self._get(self.address + "api/sessions", self.token)):
            self._get(f"{self.address}api/sessions/{session['id']}", self.token, method="DELETE")
        left = wait_until_gone([pid for pid in self.processes() if pid not in self.own()], 60.0)
        assert not left, f"left by a kernel: {'; '.join(map(describe, left))}"

    def stop(self) -> None:
        """End the server as a person who closes the terminal does; AssertionError for what is left."""
        pid = getattr(self, "pid", None)
        if pid and alive(pid):
            os.kill(pid, signal.SIGTERM)
        elif self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
        left = wait_until_gone(self.processes(), 60.0)
        sentences = [describe(process) for process in left]
        for process in left:
            psutil.Process(process).kill()
        self.process.wait()
        assert not left, f"left by `make lab`: {'; '.join(sentences)}"


def parent(pid: int) -> int:
    """The parent of a process; this process, if it has just ended."""
    try:
        return psutil.Process(pid).ppid()
    except psutil.NoSuchProcess:
        return os.getpid()


def free_port() -> int:
    """A port that is free now; if another program takes it first, Jupyter takes the next one."""
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]
