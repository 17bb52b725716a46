"""One run at a time writes into an output folder."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path


class BusyError(Exception):
    """Another run is grading into the same folder."""


@contextlib.contextmanager
def only_one(out: Path) -> Iterator[None]:
    """Keep a second run out of `out`, which would grade everything twice. Raises BusyError.

    The lock is the process's own: it is free again however the process ends.
    """
    out.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(out / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(f"another run is grading into {out}; wait for it, or end it") from None
        yield
