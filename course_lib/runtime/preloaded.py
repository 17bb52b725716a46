"""The kernel's side of the preloaded process: start it, ask it to fork and to import, read its messages."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence

from course_lib.runtime import libraries
from course_lib.runtime.children import Children, Entry
from course_lib.runtime.errors import LaunchError
from course_lib.runtime.sandbox.kernel import PR_SET_PDEATHSIG
from course_lib.runtime.sandbox.spec import Sandbox

ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
PRELOAD = ("torch", "torch.distributed", "numpy.random", "cloudpickle", "course_lib.runtime.rank",
           "course_lib.runtime.alone", "course_lib.runtime.call",
           "course_lib.runtime.sandbox.init")  # fmt: skip


def tied() -> str:
    """Code with which a process that this one starts ends with it, even while it imports for seconds.

    Linux ends it together with the thread that started it, so this is only for the main thread, which lives
    as long as its process. In other cases, and on other systems, the code is empty, and the process imports
    everything before it ends.
    """
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        return ""
    return (
        f"import ctypes, os; ctypes.CDLL(None).prctl({PR_SET_PDEATHSIG}, {signal.SIGKILL:d})\n"
        f"if os.getppid() != {os.getpid()}: os._exit(0)\n"
    )


class Preloaded:
    """A process that has imported torch and forks others on request.

    environment: the environment of its start, instead of this process's own; it imports `modules`.
    """

    def __init__(self, modules: tuple[str, ...] = (), environment: dict[str, str] | None = None):
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.environment = dict(os.environ if environment is None else environment)
        variables = dict(
            libraries.of_ranks(self.environment), **dict.fromkeys(ONE_THREAD, "1"), COURSE_ROLE="preloaded",
            PYTORCH_NVML_BASED_CUDA_CHECK="1",
        )  # fmt: skip
        # All ranks are on this machine. Another interface, which an image or a cluster's profile may name,
        # can be missing here, and is missing in a sandbox.
        variables |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
        variables.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        # NCCL's order of messages is explained in words where it matters, not by a warning in every rank
        variables.setdefault("TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING", "false")
        code = (
            f"{tied()}import sys; sys.path[:] = {[os.path.abspath(p) for p in sys.path]!r}\n"
            "from course_lib.runtime.preload import main\n"
            f"main({there.fileno()}, {os.getpid()}, {[*PRELOAD, *modules]!r})"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], pass_fds=[there.fileno()], env=variables,
            start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )  # fmt: skip
        there.close()
        self.socket, self.owner = here, os.getpid()
        self.groups: dict[int, Children] = {}
        self.imported = {*PRELOAD, *modules}
        self.wheels = libraries.wheels()

    def alive(self) -> bool:
        return self.owner == os.getpid() and self.process.poll() is None

    def outdated(self, on_gpus: bool) -> bool:
        """Whether it has loaded other libraries than a process started now would; on_gpus: NCCL as well."""
        changed = libraries.changed(self.environment, os.environ)
        return changed or (on_gpus and self.wheels != libraries.wheels())

    def environment_changes(self) -> dict[str, str | None]:
        """The changes of os.environ since this process was started; None if the variable was removed."""
        before, now = self.environment, dict(os.environ)
        ours = {*ONE_THREAD, "COURSE_ROLE"}
        changed = {k: v for k, v in now.items() if before.get(k) != v and k not in ours}
        return {**changed, **{k: None for k in before if k not in now and k not in ours}}

    def spawn(
        self,
        entries: Sequence[Entry],
        sandbox: Sandbox | None = None,
        place: int = 0,
        room: int = 0,
    ) -> Children:
        """Fork one process for each entry; see `Children`."""
        return Children(self, entries, sandbox, place, room)

    def leave(self, place: int) -> None:
        """End a standing sandbox (see `walls`)."""
        self.ask({"leave": place})

    def ask(self, request: dict) -> None:
        with contextlib.suppress(OSError):  # it is gone, and its children with it
            self.socket.send(json.dumps(request).encode())

    def also_import(self, modules: Sequence[str]) -> None:
        """Import these before the next fork, unless they were asked for before. Returns immediately."""
        more = [name for name in modules if name not in self.imported]
        if more:
            self.imported.update(more)
            self.ask({"import": more})  # if it has ended, the next launch says so, or starts anew

    def read(self, wait: float | None = 0) -> bool:
        """Take in the messages of the process; False if none came within `wait` seconds."""
        if not select.select([self.socket], [], [], wait)[0]:
            return False
        try:
            data = self.socket.recv(1 << 16)
        except ConnectionResetError:  # it ended before it had read all messages
            data = b""
        if not data:
            raise LaunchError(self.obituary())
        message = json.loads(data)
        group = self.groups.get(message.get("of"))
        if group is not None:  # else the message is about children that were ended
            group.take(message)
        return True

    def obituary(self) -> str:
        code = self.process.wait()
        said = (
            self.process.stderr.read().decode(errors="replace").strip()
            if self.process.stderr
            else ""
        )
        reason = f" It said:\n{said}" if said else ""
        return (
            f"the process that forks the ranks ended (exit code {code}), but the next launch() starts a new "
            f"one. If it happens again, run `python -m course_lib.doctor`.{reason}"
        )

    def close(self) -> None:
        self.socket.close()
        if self.owner != os.getpid():
            return
        try:
            self.process.wait(2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stderr:
            self.process.stderr.close()


class Adopted(Preloaded):
    """A server that another process started, in the same sandbox, and handed over as a socket."""

    def __init__(self, sock: socket.socket):
        self.socket, self.owner = sock, os.getpid()
        self.environment = dict(os.environ)
        self.groups = {}
        self.imported = set(PRELOAD)
        self.gone = False

    def alive(self) -> bool:
        return self.owner == os.getpid() and not self.gone

    def outdated(self, on_gpus: bool) -> bool:
        return False  # it cannot be started anew

    def obituary(self) -> str:
        self.gone = True
        return "the process that forks the ranks has ended, so no more ranks can be launched here."

    def close(self) -> None:
        self.socket.close()
