"""Says which part of the benchmarks runs, for how long so far, and for how long it ran the last time."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from benchmarks.table import Row

LASTED = (
    Path(__file__).parent.parent / "build" / "benchmarks.json"
)  # seconds of each part, on this machine


class Progress:
    """Announces parts and shows the seconds that pass. lasted: the file with the seconds of earlier runs."""

    def __init__(self, stream: TextIO, parts: int, lasted: Path = LASTED) -> None:
        self.stream, self.parts, self.lasted = stream, parts, lasted
        self.number = 0

    def watched(self, part: str, rows: Iterable[Row]) -> Iterator[Row]:
        """The rows of a part, as they come; when it has ended, its seconds are kept for the next time."""
        self.number += 1
        before = self._before().get(part)
        known = f"it took {before:.0f} s last time" if before else "some minutes on a busy machine"
        print(f"[{self.number}/{self.parts}] {part} ({known}) ...", file=self.stream, flush=True)
        began, waiting = time.monotonic(), iter(rows)
        while True:
            with self._ticking(part, began):
                row = next(waiting, None)
            if row is None:
                break
            yield row
        seconds = time.monotonic() - began
        print(f"{part}: {seconds:.0f} s", file=self.stream, flush=True)
        self.lasted.parent.mkdir(parents=True, exist_ok=True)
        self.lasted.write_text(json.dumps(self._before() | {part: round(seconds, 1)}))

    def _before(self) -> dict[str, float]:
        try:
            return json.loads(self.lasted.read_text())
        except (OSError, ValueError):
            return {}  # the first run, or one that was cut off while it wrote

    @contextmanager
    def _ticking(self, part: str, began: float) -> Iterator[None]:
        """On a terminal, a line that counts the seconds until the next row."""
        if not self.stream.isatty():
            yield
            return
        over = threading.Event()

        def tick() -> None:
            while not over.wait(1.0):
                text = f"\r{part}: {time.monotonic() - began:.0f} s so far "
                print(text, end="", file=self.stream, flush=True)

        ticker = threading.Thread(target=tick, daemon=True)
        ticker.start()
        try:
            yield
        finally:
            over.set()
            ticker.join()
            print("\r\x1b[K", end="", file=self.stream, flush=True)
