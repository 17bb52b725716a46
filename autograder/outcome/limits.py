"""The limits of a submission. Reaching one of them gives a status of its own and a sentence."""

from __future__ import annotations

from dataclasses import asdict, dataclass

KB, MB, GB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True)
class Limits:
    """Seconds are of wall time, sizes are bytes.

    cell, check, submission: seconds for one cell, for one exercise's check, for everything.
    memory: of all processes of a submission together, above what they share with the preloaded process.
    processes: in the notebook's sandbox, and in that of each set of ranks.
    output: kept of one cell's prints, half of it from the beginning and half from the end.
    disk: of the private temporary folder. notebook: of the file that is handed in.
    payload: of the objects that an exercise hands to its check.
    """

    cell: float = 120
    check: float = 180
    submission: float = 900
    memory: int = 4 * GB
    processes: int = 256
    descriptors: int = 1024
    output: int = 64 * KB
    disk: int = 512 * MB
    notebook: int = 20 * MB
    payload: int = 256 * MB

    def to_json(self) -> dict:
        return asdict(self)
