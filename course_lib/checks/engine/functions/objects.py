"""In the rank: bytes of whatever is no tensor, such as lists of numbers and arrays of NumPy's."""

from __future__ import annotations

import os
import sys
import tracemalloc
from typing import Any

import numpy as np
import torch.distributed as dist

from course_lib.checks.engine.harness import LIBRARIES

SPARE = 1 << 20  # bytes that a solution's own objects may have, such as a list of its tiles

_start, _stop, _told = tracemalloc.start, tracemalloc.stop, tracemalloc.get_traced_memory
_snapshot, _modules = tracemalloc.take_snapshot, sys.modules
_NUMPY = os.path.dirname(np.__file__)


class Objects:
    """Within, `kept` are the bytes beside tensors that came and are still there.

    Only what goes beyond SPARE counts. NumPy tells Python of its arrays; PyTorch's tensors are not among it.
    Where something was imported meanwhile, what libraries made for themselves is taken off, which takes
    seconds where there is much.

    In a process group nothing is counted: gloo's threads come to Python with every message that ends, and
    one that asks for memory in the moment in which tracemalloc is stopped crashes the rank (cpython issue
    128679, in Python up to 3.12.8 and 3.13.1).
    """

    def __enter__(self) -> Objects:
        self.imported, self.counts = len(_modules), not dist.is_initialized()
        if self.counts:
            _start()
        return self

    def __exit__(self, *error: Any) -> None:
        if self.counts:
            _stop()

    @property
    def kept(self) -> int:
        if not self.counts:
            return 0
        there = _told()[0]
        if there > SPARE and len(_modules) > self.imported:
            files = _snapshot().statistics("filename")
            there = sum(one.size for one in files if not of_a_library(one.traceback[0].filename))
        return max(0, there - SPARE)


def of_a_library(file: str) -> bool:
    """Whether what this file's lines make is no solution's; NumPy's arrays are, wherever they are made."""
    return file.startswith(LIBRARIES) and not file.startswith(_NUMPY)
