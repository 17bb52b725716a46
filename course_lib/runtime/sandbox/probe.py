"""Which layers hold on this machine: found by putting a process behind them and looking around there."""

from __future__ import annotations

import json
import os
import pwd
import socket
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

from course_lib.runtime.errors import LaunchError
from course_lib.runtime.sandbox import kernel, spec
from course_lib.runtime.sandbox.spec import Sandbox

if TYPE_CHECKING:
    from course_lib.runtime.pool import Preloaded

LOOK_AROUND = "course_lib.runtime.sandbox.probe:look_around"
NAMESPACES = (spec.MOUNT, spec.PID, spec.NETWORK, spec.IPC)
ALWAYS = (spec.NO_PRIVILEGES, spec.LIMITS)


def probe(preloaded: Preloaded, **options: object) -> Sandbox:
    """The strongest sandbox that this machine allows; `options` are fields of `Sandbox`.

    Every layer that it names was seen to hold, in a sandbox that was really made.
    """
    base = Sandbox(visible=spec.visible_paths(), user=nobody(), **options)  # pyright: ignore[reportArgumentType]
    for layers in candidates(base.user is not None):
        held = try_out(preloaded, Sandbox(**{**base.to_json(), "layers": layers}))
        if held is not None:
            return Sandbox(**{**base.to_json(), **tuples(base), "layers": held})
    return Sandbox(**{**base.to_json(), **tuples(base), "layers": ()})


def tuples(sandbox: Sandbox) -> dict:
    return {"visible": sandbox.visible, "masked": sandbox.masked}


def candidates(root: bool) -> Iterator[tuple[str, ...]]:
    """From the strongest to none. Landlock is for machines that forbid a mount namespace."""
    users = [(spec.LOW_PRIVILEGE,), ()] if root else [()]
    for low in users:
        yield (*NAMESPACES, spec.USER, *low, *ALWAYS)
    for low in users:
        yield (*NAMESPACES, *low, *ALWAYS)
    for namespaces in ((spec.NETWORK, spec.IPC), ()):
        for low in users:
            if kernel.landlock_version():
                yield (*namespaces, *low, spec.LANDLOCK, *ALWAYS)
            yield (*namespaces, *low, *ALWAYS)


def nobody() -> int | None:
    """The user without rights that root becomes; None where this is not root."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("nobody").pw_uid
    except KeyError:
        return 65534


def try_out(preloaded: Preloaded, sandbox: Sandbox) -> tuple[str, ...] | None:
    """The layers that hold in such a sandbox, as far as they were asked for; None if it cannot be made."""
    mine, its = socket.socketpair()
    with mine, its, tempfile.NamedTemporaryFile(prefix="probe-") as own:
        arguments = {"secret": own.name, "parent": os.getpid()}
        children = preloaded.spawn([(LOOK_AROUND, arguments, [its.fileno()])], sandbox)
        its.close()
        try:
            children.started()
            mine.settimeout(30)
            seen = json.loads(mine.recv(1 << 16) or b"null")
        except (LaunchError, TimeoutError, ValueError):
            return None
        finally:
            children.end()
    if seen is None or not seen["imports"]:
        return None
    return tuple(layer for layer in sandbox.layers if seen.get(layer, True))


def look_around(arguments: dict, fds: list[int]) -> NoReturn:
    """In the sandbox: what of the machine is still there?"""
    with open("/proc/self/status") as file:
        status = dict(line.split(":", 1) for line in file)
    with open("/proc/self/uid_map") as file:
        mapped = int(file.read().split()[2])
    hidden = not readable(arguments["secret"])
    seen = {
        "imports": readable(os.__file__) and readable(kernel.__file__),
        spec.MOUNT: hidden,
        spec.LANDLOCK: hidden,
        spec.PID: os.getppid() == 1 and not os.path.exists(f"/proc/{arguments['parent']}/exe"),
        spec.NETWORK: interfaces() == {"lo"},
        spec.USER: mapped == 1,
        spec.LOW_PRIVILEGE: os.getuid() != 0 and os.geteuid() != 0,
        spec.NO_PRIVILEGES: int(status["CapEff"], 16) == 0 and int(status["NoNewPrivs"]) == 1,
    }
    socket.socket(fileno=fds[0]).sendall(json.dumps(seen).encode())
    os._exit(0)


def readable(path: str) -> bool:
    """Seen by reading: access(2) knows nothing of Landlock."""
    try:
        with open(path, "rb") as file:
            file.read(1)
    except OSError:
        return False
    return True


def interfaces() -> set[str]:
    return {name for _, name in socket.if_nameindex()}
