"""In the rank: what was already sent when backward came past a block, and how much memory was held there.

Both are read where they happen, at the boundaries of blocks, and not from what a class says of itself:
the record of operations grows with each one, and the kernel counts the pages of the process, wherever a
tensor is hidden.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from typing import Any

import torch
from torch import nn

from course_lib.ledger import recorder as recording
from course_lib.ledger import rows

PAGE = os.sysconf("SC_PAGE_SIZE")
M_MMAP_THRESHOLD, M_TRIM_THRESHOLD = -3, -1
SMALL = 64 << 10  # bytes
SUMS, WARM, COOL = 4, 1 << 14, 16  # small sums at a time; elements of each, at first and later
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
_collect, _open, _read, _close = gc.collect, os.open, os.read, os.close


class _Pass(torch.autograd.Function):
    """Identity; in backward it tells that the gradient of this block's output has arrived."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, block: int, watch: Watch) -> torch.Tensor:
        ctx.block, ctx.watch = block, watch
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple:
        ctx.watch.passed(ctx.block)
        return grads[0], None, None


class Watch:
    """Looks whenever forward leaves a block of `model`, and whenever backward enters it from behind.

    passes: of each backward a list of [block, operations begun, of those waited for]; block k is passed
    when the gradients of all later blocks are complete, and its own are not. highest: bytes held at the
    fullest of these moments, above `base`, which was held before; None when memory is not watched.
    """

    def __init__(self, model: nn.Module, base: int | None = None):
        self.passes: list[list[list[int]]] = []
        self.base = base
        self.highest: int | None = None if base is None else 0
        for number, block in enumerate(model.blocks):  # pyright: ignore[reportArgumentType]
            block.register_forward_hook(lambda _, __, out, k=number: self.left(out, k))

    def left(self, out: torch.Tensor, block: int) -> torch.Tensor:
        self.look()
        return _Pass.apply(out, block, self) if out.requires_grad else out  # type: ignore[return-value]

    def passed(self, block: int) -> None:
        self.look()
        if self.passes:
            self.passes[-1].append([block, *begun_and_waited()])

    def backward_begins(self) -> None:
        self.passes.append([])

    def look(self) -> None:
        if self.base is not None and self.highest is not None:
            self.highest = max(self.highest, resident() - self.base)

    def held(self) -> int | None:
        """Bytes held now, above `base`; what nobody refers to any more is given back first."""
        if self.base is None:
            return None
        _collect()
        self.look()
        return resident() - self.base


def begun_and_waited() -> tuple[int, int]:
    """Of this rank's operations: how many were begun, how many of these were waited for."""
    recorder = recording.recorder()
    log, size, count = recorder.log.rows.map, rows.ROW.size, recorder.state.rows
    waited = sum(bool(log[k * size + rows.FLAGS_AT] & rows.WAITED) for k in range(count))
    return count, waited


# ---- memory


def settle(numel: int = COOL) -> None:
    """Small sums for gloo's threads, which keep the tensors of their last operation until the next."""
    group = torch.distributed.group.WORLD
    inner: Any = getattr(group, "inner", group)  # not the recorded one: this is not the student's
    for _ in range(SUMS):
        inner.allreduce([torch.ones(numel)]).wait()


def settled(steps: int) -> tuple[int, ...]:
    """Bytes of each sum of `settle` in a run: once to warm up, at its start, and twice in each step."""
    return (4 * WARM,) * SUMS + (4 * COOL,) * SUMS * (1 + 2 * steps)


def give_back_at_once() -> None:
    """Let the C library return each larger block to the system when it is freed, or it would count on."""
    if _libc is not None:
        _libc.mallopt(M_MMAP_THRESHOLD, SMALL)
        _libc.mallopt(M_TRIM_THRESHOLD, SMALL)


def resident() -> int:
    """Bytes of memory that this process holds by itself, and of what it shares without a file behind it.

    What the C library keeps for later in the midst of its heap is returned first, and does not count.
    """
    if _libc is not None:
        _libc.malloc_trim(0)
    fd = _open("/proc/self/status", os.O_RDONLY)
    try:
        text = _read(fd, 1 << 14).decode()
    finally:
        _close(fd)
    kinds = ("RssAnon:", "RssShmem:", "VmSwap:")
    return sum(1024 * int(line.split()[1]) for line in text.splitlines() if line.startswith(kinds))
