"""The preloaded process has imported torch and run nothing, so it can fork ranks in milliseconds.

It is started fresh, not forked from the notebook's kernel, which has threads and perhaps a CUDA context
that a fork would break. It has one thread, runs no tensor operation and never asks for CUDA, so that
its children may do all of that. It ends with its kernel, and its ranks end with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import re
import selectors
import signal
import socket
import sys
import traceback
from typing import Any, NoReturn

from course_lib.runtime import endings
from course_lib.runtime.load import take_turns
from course_lib.runtime.pages import made_large, room_for_small_objects
from course_lib.runtime.sandbox import calls
from course_lib.runtime.sandbox.control import remove_groups, remove_own_groups
from course_lib.runtime.sandbox.init import close_all_but, keep
from course_lib.runtime.sandbox.kernel import PR_SET_PDEATHSIG
from course_lib.runtime.sandbox.spec import CONTROL_GROUPS, Sandbox

ENDING = 1.0  # seconds in which sandboxes end with the process that forked them
SOON = 0.05  # seconds until the next look whether a control group is empty
IDLE = 0.005  # seconds without a request after which there is time for work that can wait
OVER = object()
rooms: list[list[bytes]] = []  # the objects that hold them open


def main(fd: int, kernel_pid: int, modules: list[str]) -> None:
    """Serve fork requests on the socket `fd` until the kernel is gone."""
    control = socket.socket(fileno=fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the kernel's; it ends the ranks itself
    for module in modules:
        importlib.import_module(module)
    import torch

    torch.set_num_threads(1)
    make_ready()
    gc.collect()
    gc.freeze()  # the collector would touch, and so copy, every shared page in every rank
    server = Server(control, kernel_pid)
    # until here Linux ended it together with the kernel; from here on it sees that itself, and tidies up
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 0)
    server.serve()


def make_ready() -> None:
    """Make once the objects that every rank would otherwise make after its fork, in some milliseconds."""
    from course_lib.runtime.rank import DEPRECATED

    for pattern in DEPRECATED:
        re.compile(pattern, re.IGNORECASE)  # kept by `re`, where `warnings` finds it
    with contextlib.suppress(KeyError):  # a machine whose calls are not known has no filter
        calls.program_of_ranks()
    rooms.append(room_for_small_objects())


def import_more(modules: list[str]) -> None:
    """Import for the ranks to come. If a module is missing, the rank that needs it will report that."""
    for module in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    rooms.append(room_for_small_objects())
    gc.collect()
    gc.freeze()


class Server:
    """Forks groups of processes on request, and reports to the other end when one of them ends."""

    def __init__(self, control: socket.socket, kernel_pid: int | None):
        self.control = control
        self.selector = selectors.DefaultSelector()
        self.selector.register(control, selectors.EVENT_READ, ("request",))
        self.groups: dict[int, int] = {}  # without a sandbox: number of the group -> process group
        # in a sandbox: number of the group -> number of the sandbox and its keeper
        self.places: dict[int, tuple[int, int]] = {}
        self.links: dict[int, tuple[socket.socket, int]] = {}  # of the sandbox -> init and keeper
        self.bounded: set[int] = set()  # keepers that have a control group
        self.emptied: set[int] = set()  # keepers that ended, whose group is still there
        self.looked_at: dict[int, tuple] = {}  # processes without a handle
        self.left_to_do = made_large()  # while nothing else is to be done
        if kernel_pid is not None:
            try:
                self.watch(kernel_pid, "kernel")
            except ProcessLookupError:
                os._exit(0)

    def watch(self, pid: int, what: str, *about: Any) -> None:
        """Have `happened` called at the end of this child, or of the kernel."""
        ended = endings.handle(pid)
        if ended is None:
            self.looked_at[pid] = (what, *about)
        else:
            self.selector.register(ended, selectors.EVENT_READ, (what, *about))

    def tell(self, message: dict) -> None:
        try:
            self.control.send(json.dumps(message).encode())
        except OSError:
            self.end()

    def end(self) -> NoReturn:
        """The kernel is gone, so end every process and everything it started."""
        for group in self.groups.values():
            with contextlib.suppress(ProcessLookupError):  # this one ended before
                os.killpg(group, signal.SIGKILL)
        if self.bounded or self.emptied:
            for link, _ in self.links.values():
                link.close()
            remove_own_groups(ENDING)
        os._exit(0)  # sandboxes end with their link

    def serve(self) -> NoReturn:
        while True:
            if self.emptied:
                self.emptied = remove_groups(self.emptied)
            ready = self.selector.select(self.patience())
            if not ready and self.left_to_do is not None:
                self.left_to_do = (
                    self.left_to_do if next(self.left_to_do, OVER) is not OVER else None
                )
            for key, _ in ready:
                if key.data[0] in ("kernel", "child", "keeper"):  # the handle of an ended process
                    self.selector.unregister(key.fileobj)
                    os.close(key.fd)
                self.happened(*key.data)
            for pid in [pid for pid in self.looked_at if endings.has_ended(pid)]:
                self.happened(*self.looked_at.pop(pid))

    def patience(self) -> float | None:
        """Seconds until there is something to do although nothing has happened."""
        if self.left_to_do is not None:
            return IDLE
        return endings.LOOK if self.looked_at else SOON if self.emptied else None

    def happened(self, what: str, *about: Any) -> None:
        if what == "request":
            self.request()
        elif what == "kernel":
            self.end()
        elif what == "child":
            self.reap(*about)
        elif what == "link":
            self.relay(*about)
        elif what == "keeper":
            self.end_of_keeper(*about)

    def request(self) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self.control, 1 << 20, 253)
        except ConnectionResetError:
            data, fds = b"", []
        if not data:
            self.end()
        order = json.loads(data)
        if "fork" in order:
            (self.fork_sandboxed if order["sandbox"] else self.fork)(order, fds)
        elif "import" in order:
            import_more(order["import"])
            self.left_to_do = made_large()
        elif "end" in order:
            self.groups.pop(order["end"], None)
            place, _ = self.places.pop(order["end"], (0, 0))
            if place == order["end"]:  # its own sandbox
                self.close_link(place)
            else:
                self.pass_on(place, {"clear": True})
        elif "leave" in order:
            self.close_link(order["leave"])
        else:
            ((what, about),) = order.items()
            group, *rest = about if isinstance(about, list) else [about]
            if group in self.places:
                self.pass_on(self.places[group][0], {what: rest})
        for fd in fds:
            os.close(fd)

    # ---- without a sandbox

    def fork(self, order: dict, fds: list[int]) -> None:
        pgid, pids = 0, []
        for number in range(len(order["children"])):
            parent, pid = os.getpid(), os.fork()
            if pid == 0:
                run_child(order, number, fds, parent, pgid)
            pgid = pgid or pid
            with contextlib.suppress(PermissionError, ProcessLookupError):
                os.setpgid(pid, pgid)  # here and in the child, which may come first, or be gone
            pids.append(pid)
            self.watch(pid, "child", pid, order["fork"], number)
        self.groups[order["fork"]] = pgid
        self.tell({"of": order["fork"], "pids": pids, "pgid": pgid})

    def reap(self, pid: int, group: int, number: int) -> None:
        _, status = os.waitpid(pid, 0)
        self.tell({"of": group, "exit": [number, os.waitstatus_to_exitcode(status)]})

    # ---- in a sandbox: a keeper, its init, and the children below that

    def fork_sandboxed(self, order: dict, fds: list[int]) -> None:
        """Fork in the sandbox named by the order if it exists already; else in a new one."""
        place, group = order["place"], order["fork"]
        if place in self.links:
            self.places[group] = place, self.links[place][1]
            self.pass_on(place, order, fds)
        else:
            self.places[group] = place, self.make_sandbox(place, order, fds)

    def pass_on(self, place: int, order: dict, fds: list[int] | None = None) -> None:
        if place in self.links:
            with contextlib.suppress(OSError):  # its init has just ended: its keeper reports that
                socket.send_fds(self.links[place][0], [json.dumps(order).encode()], fds or [])

    def make_sandbox(self, place: int, order: dict, fds: list[int]) -> int:
        """Make a sandbox; returns its keeper."""
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent, sandbox = os.getpid(), Sandbox.from_json(order["sandbox"])
        pid = os.fork()
        if pid == 0:
            try:
                die_with(parent)
                close_all_but([*fds, there.fileno()])
                keep(sandbox, there, order, fds, run_entry)
            finally:
                os._exit(70)
        there.close()
        if sandbox.has(CONTROL_GROUPS):
            self.bounded.add(pid)
        self.links[place] = here, pid
        self.selector.register(here, selectors.EVENT_READ, ("link", place, pid))
        self.watch(pid, "keeper", place, pid)
        return pid

    def relay(self, place: int, keeper: int) -> bool:
        """Pass on the messages of a sandbox's init; False at the end of the link."""
        link, its = self.links.get(place, (None, 0))
        if link is None or its != keeper:  # there is another sandbox now in this one's place
            return False
        try:
            data = link.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self.close_link(place)
            return False
        message = json.loads(data)
        if "up" in message:
            message |= {"pids": message.pop("up"), "keeper": keeper}
        self.tell(message)
        return True

    def close_link(self, place: int) -> None:
        """The init ends when it finds its link closed."""
        link, _ = self.links.pop(place, (None, 0))
        if link is not None:
            self.selector.unregister(link)
            link.close()

    def end_of_keeper(self, place: int, pid: int) -> None:
        os.waitpid(pid, 0)
        while self.relay(place, pid):
            continue  # the last messages of init
        for group in [group for group, where in self.places.items() if where == (place, pid)]:
            del self.places[group]
            self.tell({"of": group, "over": True})
        if pid in self.bounded:
            self.bounded.remove(pid)
            self.emptied.add(pid)


def run_child(order: dict, number: int, fds: list[int], parent: int, pgid: int) -> NoReturn:
    """In a child without a sandbox."""
    try:
        die_with(parent)
        os.setpgid(0, pgid)
        take_turns()
        run_entry(order, number, fds)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(70)


def run_entry(order: dict, number: int, fds: list[int]) -> NoReturn:
    """Call the child's entry with its descriptors; all others are closed."""
    entry, arguments, places = order["children"][number]
    own = [fds[place] for place in places]
    close_all_but(own)
    module, _, name = entry.partition(":")
    getattr(importlib.import_module(module), name)(arguments, own)
    os._exit(70)  # an entry does not return


def die_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def serve(arguments: dict, fds: list[int]) -> NoReturn:
    """Entry of a server inside a sandbox. It forks for another process there, which holds the other end."""
    Server(socket.socket(fileno=fds[0]), None).serve()
