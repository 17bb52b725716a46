"""The state of the ranks while they are watched."""

from __future__ import annotations

from dataclasses import dataclass, field

from course_lib.ledger import rows
from course_lib.runtime.moments import Moments
from course_lib.runtime.pools import Pool

Reply = tuple[dict, list[bytearray]]


@dataclass
class Watch:
    """The knowledge of the loop below about the ranks."""

    pool: Pool
    task: int
    moments: Moments
    replies: dict[int, tuple[dict, list[bytearray]]] = field(default_factory=dict)
    exits: dict[int, int] = field(default_factory=dict)
    first_trouble: float | None = None
    verdict: str | None = None  # "deadlock" or "timeout"
    late: str = ""  # of a timeout: the time that has passed
    waiting: dict[int, set[int]] = field(default_factory=dict)
    taken_in: bool = True  # the value with which the deadlock was found, see `Order`

    @property
    def alive(self) -> set[int]:
        return set(range(self.pool.world_size)) - set(self.exits)

    @property
    def running(self) -> set[int]:
        return self.alive - set(self.replies)

    def all_begun(self) -> bool:
        """Whether every rank has begun the task. A student's code runs only afterwards."""
        states = [self.pool.board.read(rank) for rank in range(self.pool.world_size)]
        return all(state.task == self.task and state.state != rows.IDLE for state in states)

    def raised(self) -> list[int]:
        return [rank for rank, (reply, _) in self.replies.items() if not reply["ok"]]

    def result(self, rank: int) -> Reply | None:
        reply, buffers = self.replies.get(rank, ({"ok": False}, []))
        return (reply["header"], buffers) if reply["ok"] else None

    def clean(self) -> bool:
        return all(reply.get("clean") for reply, _ in self.replies.values())

    def imported(self, module: str) -> bool:
        """Whether some rank had that module at its end."""
        imports = [reply.get("imported") for reply, _ in self.replies.values()]
        return any(isinstance(names, list) and module in names for names in imports)
