"""Save without stopping: copy immediately, and write behind the next steps.

The run stops only for the copy, which is a memory copy instead of a write to a disk. So delta of the best
interval becomes smaller, and tau falls with its root, which means that you can save more often. Four things
can go wrong:

    no copy           the file of step 1 holds the values of step 2, because they were computed meanwhile
    two writes        the later one overtakes, so the older is the newest: do one write at a time
    a lost error      the disk was full, but no call said so: the next call raises the error
    no wait           a program that ends while it writes: call `wait` at the end

The copies' memory is reused. A GPU's tensors go into pinned memory, from which they can be written while the
GPU works. The thread must not send anything, because collectives of two threads have no common order.

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
    """`save(step, tensors)` copies and returns; `write(step, copies)` runs in its own thread.

    write: receives copies on the CPU. It must not keep them, because the next save fills them with other
    values.
    """

    def __init__(self, write: Callable[[int, dict[str, Tensor]], Any]):
        self.write = write
        self.copies: dict[str, Tensor] = {}
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self.last: Future | None = None

    @torch.no_grad()
    def save(self, step: int, tensors: Mapping[str, Tensor]) -> None:
        """Begin a save of the values `tensors` have now, after waiting for the previous save.

        Raises the error of the previous save, and then does not begin this one.
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
