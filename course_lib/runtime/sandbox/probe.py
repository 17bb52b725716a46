"""Find out which layers hold on this machine, by putting a process behind them that looks around there."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import socket
import tempfile
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NoReturn

from course_lib.runtime.errors import LaunchError
from course_lib.runtime.sandbox import calls, kernel, spec
from course_lib.runtime.sandbox.bounds import bounds_hold, writable
from course_lib.runtime.sandbox.spec import Sandbox

if TYPE_CHECKING:
    from course_lib.runtime.preloaded import Preloaded

LOOK_AROUND = "course_lib.runtime.sandbox.probe:look_around"
LEAVE_NOTE = "course_lib.runtime.sandbox.probe:leave_note"
NAMESPACES = (spec.MOUNT, spec.PID, spec.NETWORK, spec.IPC)
ALWAYS = (spec.NO_PRIVILEGES, spec.CALLS, spec.LIMITS)


def probe(preloaded: Preloaded, **options: object) -> Sandbox:
    """The strongest sandbox this machine allows; `options` are fields of `Sandbox`.

    Every layer it names has held in a sandbox that was really made.
    """
    base = Sandbox(visible=spec.visible_paths(), user=nobody(), **options)  # pyright: ignore[reportArgumentType]
    bounds = (spec.CONTROL_GROUPS,) if bounds_hold(preloaded) else ()
    for layers in candidates(base.user is not None):
        held = try_out(preloaded, Sandbox(**{**base.to_json(), "layers": (*layers, *bounds)}))
        if held is not None:
            return Sandbox(**{**base.to_json(), **tuples(base), "layers": held})
    return Sandbox(**{**base.to_json(), **tuples(base), "layers": ()})


def tuples(sandbox: Sandbox) -> dict:
    return {"visible": sandbox.visible, "masked": sandbox.masked}


def candidates(root: bool) -> Iterator[tuple[str, ...]]:
    """From the strongest to none. Landlock is for machines that forbid a mount namespace."""
    users = [(spec.LOW_PRIVILEGE,), ()] if root else [()]
    always = ALWAYS if calls.known() else tuple(layer for layer in ALWAYS if layer != spec.CALLS)
    for low in users:
        yield (*NAMESPACES, spec.USER, *low, *always, spec.APART)
    for low in users:
        yield (*NAMESPACES, *low, *always, spec.APART)
        yield (*NAMESPACES, *low, *always)
    for namespaces in ((spec.NETWORK, spec.IPC), ()):
        for low in users:
            if kernel.landlock_version():
                yield (*namespaces, *low, spec.LANDLOCK, *always, spec.APART)
                yield (*namespaces, *low, spec.LANDLOCK, *always)
            yield (*namespaces, *low, *always)


def nobody() -> int | None:
    """The user without rights that root becomes; None if this is not root."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("nobody").pw_uid
    except KeyError:
        return 65534


def try_out(preloaded: Preloaded, sandbox: Sandbox) -> tuple[str, ...] | None:
    """The layers of `sandbox` that hold when it is made; None if it cannot be made.

    It holds two children. The first leaves a note, and the second looks around, also for the note.
    """
    ends = [socket.socketpair() for _ in range(2)]
    with contextlib.ExitStack() as stack:
        own = stack.enter_context(tempfile.NamedTemporaryFile(prefix="probe-"))
        (writer, writers), (looker, lookers) = [tuple(map(stack.enter_context, p)) for p in ends]
        arguments = {"secret": own.name, "parent": os.getpid()}
        entries = [
            (LEAVE_NOTE, {}, [writers.fileno()]), (LOOK_AROUND, arguments, [lookers.fileno()])
        ]  # fmt: skip
        children = preloaded.spawn(entries, sandbox)
        writers.close()
        lookers.close()
        try:
            children.started()
            for mine in (writer, looker):
                mine.settimeout(30)
            looker.sendall(writer.recv(1 << 12))
            answers = json.loads(looker.recv(1 << 16) or b"null")
        except (LaunchError, OSError, ValueError):
            return None
        finally:
            children.end()
    if answers is None or not answers["imports"]:
        return None
    return tuple(layer for layer in sandbox.layers if answers.get(layer, True))


def leave_note(arguments: dict, fds: list[int]) -> NoReturn:
    """In the sandbox: write a file, report its place and its owner, and stay until the end."""
    path = os.path.join(tempfile.gettempdir(), "note")
    with open(path, "w") as file:
        file.write("from a sibling")
    sock = socket.socket(fileno=fds[0])
    sock.sendall(json.dumps({"note": path, "pid": os.getpid()}).encode())
    sock.recv(1)
    os._exit(0)


def look_around(arguments: dict, fds: list[int]) -> NoReturn:
    """In the sandbox: which parts of the machine, and of a sibling, are still visible?"""
    sock = socket.socket(fileno=fds[0])
    sibling = json.loads(sock.recv(1 << 12))
    with open("/proc/self/status") as file:
        status = dict(line.split(":", 1) for line in file)
    with open("/proc/self/uid_map") as file:
        mapped = int(file.read().split()[2])
    hidden = not readable(arguments["secret"])
    answers = {
        "imports": readable(os.__file__) and readable(kernel.__file__),
        spec.MOUNT: hidden,
        spec.LANDLOCK: hidden,
        spec.PID: os.getppid() == 1 and not os.path.exists(f"/proc/{arguments['parent']}/exe"),
        spec.NETWORK: interfaces() == {"lo"},
        spec.USER: mapped == 1,
        spec.LOW_PRIVILEGE: os.getuid() != 0 and os.geteuid() != 0,
        spec.CONTROL_GROUPS: not writable(),
        spec.NO_PRIVILEGES: int(status["CapEff"], 16) == 0 and int(status["NoNewPrivs"]) == 1,
        spec.CALLS: refuses(lambda: kernel.unshare(kernel.NEWUSER)),
        spec.APART: not readable(sibling["note"])
        and not readable(f"/proc/{sibling['pid']}/environ")
        and calls.can_forbid(),  # last: it holds from here on
    }
    sock.sendall(json.dumps(answers).encode())
    os._exit(0)


def readable(path: str) -> bool:
    """Try to read it, because access(2) does not know of Landlock."""
    try:
        with open(path, "rb") as file:
            file.read(1)
    except OSError:
        return False
    return True


def refuses(call: Callable[[], None]) -> bool:
    try:
        call()
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def interfaces() -> set[str]:
    return {name for _, name in socket.if_nameindex()}
