"""Process 1 of a sandbox forks its children, reports how they end, and ends all processes with itself.

A standing sandbox (see `runtime.walls`) gets new children after the last ones were ended. Process 1 runs
only this library, and holds rights that the children do not have, so that they can neither stop nor
trace it. When it ends, the kernel ends every process of the pid namespace. On a machine without such
namespaces, it ends its descendants itself, including those that left their session.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import socket
import traceback
from collections.abc import Callable, Iterable
from typing import NoReturn

from course_lib.runtime import held
from course_lib.runtime.load import take_turns
from course_lib.runtime.sandbox import control, enter, kernel, spec
from course_lib.runtime.sandbox.spec import Sandbox

LOOK = 0.25  # seconds between two looks at the memory
AHEAD = -10  # niceness, if that is allowed: hundreds of busy processes must not starve it
HEADER, HEADER_6 = 52, 72  # bytes of a packet: IP's, of version 4 or 6, and TCP's with a time stamp
PAGE = os.sysconf("SC_PAGE_SIZE")
MOST_FDS = 253  # that one message can carry

# becomes child number k of an order with these descriptors, in the child
Run = Callable[[dict, int, list[int]], NoReturn]


def keep(sandbox: Sandbox, link: socket.socket, order: dict, fds: list[int], run: Run) -> NoReturn:
    """In a fresh fork of the preloaded process: be the keeper of one sandbox until it ends.

    order: of the first children, with the descriptors that they get.
    """
    try:
        watch = control.enter(sandbox, max(len(order["children"]), order.get("room", 0)))
        enter.leave_host(sandbox)
        if not sandbox.has(spec.PID):
            # only this process ends the descendants: it must outlive its parent for that
            kernel.prctl(kernel.PR_SET_PDEATHSIG, 0)
            Init(sandbox, link, order, fds, run, watch).serve()
        init = os.fork()
        if init == 0:
            die_with_parent()
            Init(sandbox, link, order, fds, run, watch).serve()
        close_all_but([])
        os.waitpid(init, 0)
    except BaseException as error:
        report_failure(link, order["fork"], error)
        if not sandbox.has(spec.PID):
            end_descendants()
    os._exit(0)


def close_all_but(fds: list[int]) -> None:
    """All descriptors but 0, 1, 2 and these."""
    low = 3
    for fd in sorted(set(fds)):
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, max(low, os.sysconf("SC_OPEN_MAX")))


def report_failure(link: socket.socket, group: int, error: BaseException) -> None:
    text = "".join(traceback.format_exception(error))[-4000:]
    failed = f"{type(error).__name__}: {error}"
    with contextlib.suppress(OSError):  # the addressee is gone
        link.send(json.dumps({"of": group, "failed": failed, "at": text}).encode())


def die_with_parent() -> None:
    ctypes.CDLL(None).prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)


class Init:
    """The loop of process 1. group: the number of the present children."""

    def __init__(
        self, sandbox: Sandbox, link: socket.socket, order: dict, fds: list[int], run: Run,
        watch: control.Watch | None = None,
    ):  # fmt: skip
        self.sandbox, self.link, self.run, self.watch = sandbox, link, run, watch
        self.children: dict[int, int] = {}  # pid here -> number
        self.group, self.ended = 0, False
        self.niceness = os.getpriority(os.PRIO_PROCESS, 0)
        enter.build(sandbox)
        self.folder = "" if sandbox.has(spec.MOUNT) else os.getcwd()
        if not sandbox.has(spec.PID):
            kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        self.woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.limit = sandbox.memory + private_bytes(os.getpid())
        self.fork(order, fds)
        kept = [link.fileno(), self.woken, wake, *(watch.fds if watch else [])]
        close_all_but(kept)  # a child's end is to be its alone
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, AHEAD)

    def fork(self, order: dict, fds: list[int]) -> None:
        """Fork a child for each entry of the order."""
        self.group = order["fork"]
        for number in range(len(order["children"])):
            pid = os.fork()
            if pid == 0:
                self.become(number, order, fds)
            self.children[pid] = number
        self.tell({"up": list(self.children)})

    def become(self, number: int, order: dict, fds: list[int]) -> NoReturn:
        """In child `number`: give up everything, then start."""
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setpriority(os.PRIO_PROCESS, 0, self.niceness)
            take_turns()
            die_with_parent()
            os.setsid()
            if self.watch is not None:
                control.give_way()
            enter.give_up_rights(self.sandbox, number)
            die_with_parent()  # changing the user ended it
            self.run(order, number, fds)
        except BaseException:
            traceback.print_exc()
        os._exit(70)

    def tell(self, message: dict) -> None:
        try:
            self.link.send(json.dumps({"of": self.group, **message}).encode())
        except OSError:
            self.end()

    def serve(self) -> NoReturn:
        while True:
            ready, _, _ = select.select([self.link, self.woken], [], [], LOOK)
            if self.woken in ready:
                os.read(self.woken, 4096)
            self.reap()
            if self.link in ready:
                data, fds = self.receive()
                if not data:
                    self.end()
                self.obey(json.loads(data), fds)
                for fd in fds:
                    os.close(fd)
            self.ask_kernel()
            self.watch_memory()

    def receive(self) -> tuple[bytes, list[int]]:
        """An order; b"" if the other end is gone, even if it has left messages of ours unread."""
        try:
            data, fds, _, _ = socket.recv_fds(self.link, 1 << 20, MOST_FDS)
        except ConnectionResetError:
            return b"", []
        return data, fds

    def obey(self, order: dict, fds: list[int]) -> None:
        if "fork" in order:
            try:
                self.fork(order, fds)
            except OSError as error:  # no memory, or too many processes: these children's failure
                report_failure(self.link, order["fork"], error)
                self.end()
        elif "clear" in order:
            self.clear()
        elif "signal" in order:
            number, signum = order["signal"]
            pid = next((pid for pid, n in self.children.items() if n == number), None)
            if pid is not None:
                os.kill(pid, signum)
        elif "loopback" in order:
            self.tell({"loopback": loopback_bytes()})
        elif "measure" in order:
            self.measure(*order["measure"])

    def measure(self, number: int) -> None:
        """Report a child's memory; nothing if it has ended, which is reported anyway."""
        for pid in [pid for pid, n in self.children.items() if n == number]:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                measured = held.held_with_children(pid, still=True)
                own = self.sandbox.isolates_network
                sent = loopback_bytes() if own else None
                self.tell({"measured": [number, *measured], "sent": sent})

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            number = self.children.pop(pid, None)
            if number is not None:  # else an orphan that fell to process 1
                self.ask_kernel()  # report the reason before the end
                self.tell({"exit": [number, os.waitstatus_to_exitcode(status)]})

    def ask_kernel(self) -> None:
        """If a bound of the control group was reached, report it and end everything."""
        limit = self.watch.reached() if self.watch is not None and not self.ended else ""
        if limit:
            self.tell({"limit": limit})
            self.end()

    def watch_memory(self) -> None:
        """Bound the memory all processes hold by themselves. Shared, preloaded pages do not count."""
        if self.ended or (self.watch is not None and self.watch.amount("held") <= self.limit):
            return  # the kernel counts all that is counted here, and more
        pids = self.inhabitants()
        files = bytes_without_a_name(pids)
        if files + sum(resident_bytes(pid) for pid in pids) <= self.limit:
            return  # an upper bound, cheaply had
        total = files + sum(private_bytes(pid) for pid in pids)
        if total > self.limit:
            self.ended = True
            self.tell({"limit": "memory", "held": total})
            for pid in pids:
                kill(pid)

    def clear(self) -> None:
        """End every process of the pid namespace but this one, without a report of their ends."""
        self.children.clear()
        self.group = 0
        with contextlib.suppress(ChildProcessError):  # no child is left: orphans fall to process 1
            while True:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(-1, signal.SIGKILL)
                os.waitpid(-1, 0)
        if self.watch is not None:
            self.watch.forget()

    def inhabitants(self) -> list[int]:
        if self.sandbox.has(spec.PID):
            return [pid for pid in all_pids() if pid != 1]
        return descendants(os.getpid(), all_pids())

    def end(self) -> NoReturn:
        if not self.sandbox.has(spec.PID):
            for pid in self.inhabitants():
                kill(pid)
        self.link.close()  # now, since processes that fork without end may take a while
        if not self.sandbox.has(spec.PID):
            end_descendants()
        if self.folder:
            shutil.rmtree(self.folder, ignore_errors=True)
        os._exit(0)


def kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # it ended by itself


def end_descendants() -> None:
    """Kill all that this process or one of its children started, until nothing of it is left."""
    while pids := descendants(os.getpid(), all_pids()):
        for pid in pids:
            kill(pid)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def descendants(root: int, everybody: list[int]) -> list[int]:
    parents = {pid: parent_of(pid) for pid in everybody}
    family, grown = {root}, True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in family} - family
        family, grown = family | more, bool(more)
    return sorted(family - {root})


def read(path: str) -> str:
    """A file of /proc; "" if its process has just ended."""
    try:
        with open(path) as file:
            return file.read()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return ""


def parent_of(pid: int) -> int:
    after_name = read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return int(after_name[1]) if len(after_name) > 1 else 0


def resident_bytes(pid: int) -> int:
    fields = read(f"/proc/{pid}/statm").split()
    return int(fields[1]) * PAGE if len(fields) > 1 else 0


def private_bytes(pid: int) -> int:
    """Bytes that would come free if the process ended."""
    lines = read(f"/proc/{pid}/smaps_rollup").splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Private_"))


def bytes_without_a_name(pids: Iterable[int]) -> int:
    """Bytes of files that are memory and have no name, each once, however many processes have it open.

    A file mapped by a process is also among its private pages. Nothing in the course needs such files.
    """
    nbytes: dict[object, int] = {}
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            nbytes.update(held.files_without_a_name(pid))
    return sum(nbytes.values())


def loopback_bytes() -> int:
    """Bytes sent on this sandbox's own loopback interface, counted by the kernel, without headers.

    Small messages have more bytes of headers than of their own. If the headers were counted, there would be
    room for as many bytes that no record shows.
    """
    header = HEADER_6 if len(read("/proc/self/net/tcp6").splitlines()) > 1 else HEADER
    for line in read("/proc/self/net/dev").splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == "lo":
            nbytes, packets = map(int, counts.split()[8:10])
            return nbytes - header * packets
    return 0
