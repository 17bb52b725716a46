"""The description of a sandbox: its walls, the files that can be seen in it, and its limits."""

from __future__ import annotations

import importlib.util
import os
import site
import sys
import sysconfig
from dataclasses import asdict, dataclass, replace

import course_lib

# in the order in which a report names them
MOUNT, PID, NETWORK, IPC, USER = (
    "mount namespace", "pid namespace", "network namespace", "ipc namespace", "user namespace",
)  # fmt: skip
LOW_PRIVILEGE, LANDLOCK = "low-privilege user", "Landlock"
NO_PRIVILEGES, LIMITS = "no privileges", "limits"
CONTROL_GROUPS = "control groups"  # bound memory and processes of all together
CALLS = "filter of system calls"
APART = "ranks apart"  # from each other: only the network is common to them
LAYERS = (
    MOUNT,
    PID,
    NETWORK,
    IPC,
    USER,
    LOW_PRIVILEGE,
    LANDLOCK,
    NO_PRIVILEGES,
    CALLS,
    LIMITS,
    CONTROL_GROUPS,
    APART,
)

SYSTEM = ("/usr", "/lib", "/lib64", "/lib32", "/bin", "/sbin", "/opt/cuda")
SETTINGS = (  # of /etc no more than programs need
    "/etc/alternatives", "/etc/fonts", "/etc/group", "/etc/hosts", "/etc/ld.so.cache", "/etc/localtime",
    "/etc/mime.types", "/etc/nsswitch.conf", "/etc/passwd", "/etc/ssl",
)  # fmt: skip
PACKAGES = ("torch", "numpy", "cloudpickle", "IPython", "traitlets", "nbformat", "matplotlib")
DEVICES = (
    "null",
    "full",
    "random",
    "urandom",
)  # no "zero": mapped, it is memory that is not counted


@dataclass(frozen=True)
class Sandbox:
    """Plain data, so that it can be sent to the process that forks.

    layers: names from LAYERS that are used here (see `probe`).
    visible: the only folders and files that can be read; masked: those inside them that cannot.
    user: the user id without rights that root becomes; None if the grader is not root.
    memory: bytes of all processes together, above the bytes they share with the preloaded process.
    disk: bytes of the private folder (of each rank's folder, if ranks are kept apart). The rest are limits
    of one process, except for `processes`. stands: whether it is kept for later ranks (see
    `runtime.walls`), until the grader ends it.
    """

    layers: tuple[str, ...] = ()
    visible: tuple[str, ...] = ()
    masked: tuple[str, ...] = ()
    user: int | None = None
    memory: int = 4 << 30
    processes: int = 256
    descriptors: int = 1024
    disk: int = 512 << 20
    stands: bool = False

    def to_json(self) -> dict:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict) -> Sandbox:
        lists = {name: tuple(data[name]) for name in ("layers", "visible", "masked")}
        return cls(**{**data, **lists})

    def has(self, *layers: str) -> bool:
        return all(layer in self.layers for layer in layers)

    def without(self, *layers: str) -> Sandbox:
        return replace(self, layers=tuple(layer for layer in self.layers if layer not in layers))

    @property
    def isolates_files(self) -> bool:
        return self.has(MOUNT) or self.has(LANDLOCK)

    @property
    def isolates_network(self) -> bool:
        return self.has(NETWORK)


def python_folders() -> tuple[str, ...]:
    """The folders this Python needs to import: its environment, its standard library, this package.

    Folders added by PYTHONPATH or `pip install --target` belong to them as well, if they hold packages
    the course uses.
    """
    paths = sysconfig.get_paths()
    folders = {
        sys.prefix, sys.base_prefix, *(paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")),
        os.path.dirname(os.path.abspath(course_lib.__file__)),
    }  # fmt: skip
    if site.ENABLE_USER_SITE:
        folders.add(site.getusersitepackages())
    for package in PACKAGES:
        module = importlib.util.find_spec(package)
        if module is not None and module.origin is not None:
            folders.add(os.path.dirname(os.path.dirname(module.origin)))
    real = {os.path.realpath(folder) for folder in folders}
    return tuple(sorted(folder for folder in folders | real if os.path.isdir(folder)))


def visible_paths() -> tuple[str, ...]:
    """The least that Python, torch and shell commands need, without any of the course's sources."""
    there = [path for path in (*SYSTEM, *SETTINGS) if os.path.lexists(path)]
    return tuple(dict.fromkeys((*there, *python_folders())))


def outermost(paths: tuple[str, ...]) -> list[str]:
    """Without the paths that lie inside another one."""
    kept: list[str] = []
    for path in sorted(paths):
        if not any(path == known or path.startswith(known.rstrip("/") + "/") for known in kept):
            kept.append(path)
    return kept
