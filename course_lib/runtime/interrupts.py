"""A Ctrl-C that Python loses is raised after all.

KeyboardInterrupt is raised wherever Python is at the moment. In a callback of a weak reference, or in a
finalizer, exceptions are only printed ("Exception ignored in ..."), and the cell would run on.
`run.py` ends the ranks of an interrupted call.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

_arrived = False  # while `never_lost` is under way: whether there was one


@contextlib.contextmanager
def never_lost() -> Iterator[None]:
    """Within this context, `raise_lost` raises an interrupt that was lost. So does the end of the context."""
    global _arrived
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # a thread gets no signals; another handler, also an outer `never_lost`, stays
        return
    _arrived = False
    signal.signal(signal.SIGINT, _note)
    try:
        yield
        raise_lost()
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _arrived = False


def raise_lost() -> None:
    if _arrived:
        raise KeyboardInterrupt


def _note(number: int, frame: FrameType | None) -> None:
    global _arrived
    _arrived = True
    signal.default_int_handler(number, frame)
