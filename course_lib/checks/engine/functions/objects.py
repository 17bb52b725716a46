"""In the rank: bytes of whatever is no tensor, such as lists of numbers and arrays of NumPy's."""

from __future__ import annotations

import tracemalloc
from typing import Any

from course_lib.checks.engine.harness import LIBRARIES

SPARE = 1 << 20  # bytes that a solution's own objects may have, such as a list of its tiles

_start, _stop, _told = tracemalloc.start, tracemalloc.stop, tracemalloc.get_traced_memory
_snapshot = tracemalloc.take_snapshot


class Objects:
    """Within, `kept` are the bytes beside tensors that the student's code made and that are still there.

    Only what goes beyond SPARE counts, and not what libraries make for themselves when they are imported.
    NumPy tells Python of its arrays, in a domain of its own; PyTorch's tensors are not among it.
    """

    def __enter__(self) -> Objects:
        _start()
        return self

    def __exit__(self, *error: Any) -> None:
        _stop()

    @property
    def kept(self) -> int:
        if _told()[0] <= SPARE:
            return 0
        own = (
            trace.size
            for trace in _snapshot().traces
            if trace.domain or not trace.traceback[0].filename.startswith(LIBRARIES)
        )
        return max(0, sum(own) - SPARE)
