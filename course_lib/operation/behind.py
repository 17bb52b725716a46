"""Save without stopping: a copy now, the write behind the next steps.

The run stands still for the copy alone, a memory copy in place of a write to a disk. So delta of the best
interval falls, and tau with its root: saves may come more often. Four things can go wrong:

    no copy           the file of step 1 holds the values of step 2, which were computed meanwhile
    two writes        the later one overtakes, and the older is the newest: one write at a time
    a lost error      the disk was full, and no call said so: it is raised by the next call
    no wait           a program that ends while it writes: call `wait` at the end

The copies' memory is used again; a GPU's tensors go into pinned memory, from which it can be read while it
works. The thread must send nothing: collectives of two threads have no common order.

Memory: the bytes of all tensors once more. Source: torch.distributed.checkpoint.async_save, and Maurya et
al., DataStates-LLM, HPDC 2024.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor


class AsyncCheckpoint:
    """`save(step, tensors)` copies and returns; `write(step, copies)` runs in a thread of its own.

    write: gets copies on the CPU, which it must not keep: the next save fills them with other values.
    """

    def __init__(self, write: Callable[[int, dict[str, Tensor]], Any]):
        self.write = write
        self.copies: dict[str, Tensor] = {}
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self.last: Future | None = None

    @torch.no_grad()
    def save(self, step: int, tensors: Mapping[str, Tensor]) -> None:
        """Begin a save of the values that `tensors` have now; waits first for the one before.

        Raises the error of the save before; then this one has not begun.
        """
        self.wait()  # its copies are still being read
        self.copies = {name: self._room(name, tensor) for name, tensor in tensors.items()}
        for name, tensor in tensors.items():
            self.copies[name].copy_(tensor)
        self.last = self.thread.submit(self.write, step, dict(self.copies))

    def wait(self) -> None:
        """Return when the last save is written, or raise its error, once."""
        last, self.last = self.last, None
        if last is not None:
            last.result()

    def _room(self, name: str, tensor: Tensor) -> Tensor:
        """The memory of the last save's copy if it fits, or new memory."""
        old = self.copies.get(name)
        if old is not None and old.shape == tensor.shape and old.dtype == tensor.dtype:
            return old
        return torch.empty(
            tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=tensor.is_cuda
        )
