"""Operations that run on a GPU's stream: the host has gone on, or waits somewhere else.

With NCCL, `wait()` only tells the stream to wait; the host hangs later, in `.item()` or
`torch.cuda.synchronize()`, far from the operation that never ends. This thread asks the handles
whether they are complete, books it, and puts the oldest that stays open on the rank's board, where
whoever explains a hang looks for it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from course_lib.ledger.recorder import Recorder
    from course_lib.ledger.work import RecordingWork

EVERY = 0.02  # seconds between two looks
LONG = 0.3  # seconds after which an open operation goes on the board


class Pending:
    """The operations of one rank that the host has waited for and the stream has not finished."""

    def __init__(self, recorder: Recorder):
        self.recorder = recorder
        self.works: deque[tuple[RecordingWork, float]] = deque()
        self.thread: threading.Thread | None = None

    def add(self, work: RecordingWork) -> None:
        self.works.append((work, time.monotonic()))
        if self.thread is None:  # started here, since a process with threads must not be forked
            self.thread = threading.Thread(target=self.look, name="course-pending", daemon=True)
            self.thread.start()

    def look(self) -> None:
        while True:
            while self.works and self.finished(self.works[0][0]):
                work, since = self.works.popleft()
                self.recorder.completed_on_device(work.row)
                del work, since
            if self.works:
                work, since = self.works[0]
                if time.monotonic() - since > LONG:
                    self.recorder.blocked_on_device(work.row, since)
                del work
            time.sleep(EVERY)

    def finished(self, work: RecordingWork) -> bool:
        try:
            return work.inner.is_completed()
        except RuntimeError:
            return True  # it failed; the host's next call raises what went wrong
