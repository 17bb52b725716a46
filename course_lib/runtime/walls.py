"""Sandboxes that stay while an exercise is judged, for the ranks of one case after another.

Making a sandbox and taking it down costs as much as three ranks. Between two cases, every process in it
except its own is ended, and their folders, shared memory, sockets and namespaces end with them. So the ranks
of a case find nothing left by earlier ranks. While the ranks of a case run, the ranks of the next case are
forked in another sandbox, so there are two at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

from course_lib.runtime.children import Children
from course_lib.runtime.preloaded import Preloaded
from course_lib.runtime.sandbox.spec import APART, IPC, MOUNT, NETWORK, PID, Sandbox

# Without one of these, something of a rank could outlive it in the sandbox.
NEEDED = (MOUNT, PID, NETWORK, IPC, APART)
ROOM = 8  # children for which each of them has room


@dataclass
class Walls:
    """One standing sandbox. imported: the imports of the preloaded process when it was made."""

    process: Preloaded
    sandbox: Sandbox
    place: int
    imported: frozenset[str]
    children: Children | None = None

    def free(self) -> bool:
        return self.children is None or self.children.ended

    def fit(self, process: Preloaded, sandbox: Sandbox) -> bool:
        return (
            self.process is process
            and self.sandbox == sandbox
            and self.imported == process.imported
            and not (self.children is not None and self.children.broken)
        )

    def end(self) -> None:
        self.process.leave(self.place)


_standing: list[Walls] = []


def take(process: Preloaded, sandbox: Sandbox | None, world_size: int) -> Walls | None:
    """Walls for this many ranks, old or new; None if these ranks need a sandbox of their own."""
    if sandbox is None or not (sandbox.stands and sandbox.has(*NEEDED) and world_size <= ROOM):
        return None
    for walls in [walls for walls in _standing if walls.free()]:
        if walls.fit(process, sandbox):
            return walls
        _standing.remove(walls)
        walls.end()
    _standing.append(Walls(process, sandbox, Children.number(), frozenset(process.imported)))
    return _standing[-1]


def end_all() -> None:
    """End the sandboxes without ranks."""
    for walls in [walls for walls in _standing if walls.free()]:
        _standing.remove(walls)
        walls.end()
