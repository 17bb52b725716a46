"""In the rank: what was already sent when backward came past a block, and how much memory was held there.

Both are read where they happen, at the boundaries of blocks, and not from what a class says of itself:
the record of operations grows with each one, and the kernel counts the pages of the process, wherever a
tensor is hidden. Over NCCL the tensors are on the GPU, and PyTorch's allocator there counts them: pages of
the process would be those of CUDA, which loads its kernels into them (280 MB on an H100).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import os
import sys
from typing import Any

import torch
from torch import nn

from course_lib.checks.engine.memory import Patience
from course_lib.ledger import recorder as recording
from course_lib.ledger import rows
from course_lib.runtime.backend import device

PAGE = os.sysconf("SC_PAGE_SIZE")
M_MMAP_THRESHOLD, M_TRIM_THRESHOLD = -3, -1
SMALL = 64 << 10  # bytes
SUMS, WARM, COOL = 4, 1 << 14, 16  # small sums at a time; elements of each, at first and later
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
_collect, _open, _read, _close = gc.collect, os.open, os.read, os.close
_device, _gpu_memory = device, torch.cuda.memory_stats
_listdir, _readlink, _fstat, _statvfs = os.listdir, os.readlink, os.fstat, os.statvfs


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
    patience: with which it is measured, as "highest" and "held.0" and so on.
    """

    def __init__(self, model: nn.Module, base: int | None = None, patience: Patience | None = None):
        self.patience = patience or Patience({})
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
        if self.highest is not None:
            self.highest = max(self.highest, self.patience.measured("highest", self.above))

    def above(self) -> int:
        return held_here() - (self.base or 0)

    def held(self, place: int, training: bool = True) -> int | None:
        """Bytes held now, above `base`; what nobody refers to any more is given back first.

        training: False when it is over, and what is kept to be told counts as well: it is no peak.
        """
        if self.base is None:
            return None
        _collect()
        if training:
            self.look()
        return self.patience.measured(f"held.{place}", self.above)


def begun_and_waited() -> tuple[int, int]:
    """Of this rank's operations: how many were begun, how many of these were waited for."""
    recorder = recording.recorder()
    log, size, count = recorder.log.rows.map, rows.ROW.size, recorder.state.rows
    waited = sum(bool(log[k * size + rows.FLAGS_AT] & rows.WAITED) for k in range(count))
    return count, waited


# ---- memory


def settle(numel: int = COOL) -> None:
    """Small sums for gloo's threads, which keep the tensors of their last operation until the next.

    All ranks take part. One that is elsewhere, and waits for these, is found: the board tells where they are.
    """
    group = torch.distributed.group.WORLD
    inner: Any = getattr(group, "inner", group)  # not the recorded one: this is not the student's
    recorder = recording.recorder()
    recorder.set_state(rows.MEETING)
    for _ in range(SUMS):
        inner.allreduce([torch.ones(numel)]).wait()
    recorder.set_state(rows.RUNNING)


def settled(moments: int) -> tuple[int, ...]:
    """Bytes of each sum of `settle` in a run: once to warm up, and at each moment that is measured."""
    return (4 * WARM,) * SUMS + (4 * COOL,) * SUMS * moments


def give_back_at_once() -> None:
    """Let the C library return each larger block to the system when it is freed, or it would count on."""
    if _libc is not None:
        _libc.mallopt(M_MMAP_THRESHOLD, SMALL)
        _libc.mallopt(M_TRIM_THRESHOLD, SMALL)


def held_here() -> int:
    """Bytes of memory that this rank holds where its tensors are: on its GPU over NCCL, else in the host."""
    return on_gpu() if _device().type == "cuda" else resident()


def on_gpu() -> int:
    """Bytes that were asked for on the current GPU and not given back yet, without what rounding adds."""
    return _gpu_memory()["requested_bytes.all.current"]


def resident() -> int:
    """Bytes of memory that this process holds by itself, in shared memory, and in files that are memory.

    What the C library keeps for later in the midst of its heap is returned first, and does not count. Pages
    of a file that is memory are shared memory, too, where it is mapped: the larger of the two counts.
    """
    if _libc is not None:
        _libc.malloc_trim(0)
    told = dict(line.split(":", 1) for line in contents("/proc/self/status").splitlines())
    own, shared, swapped = (
        1024 * int(told[kind].split()[0]) for kind in ("RssAnon", "RssShmem", "VmSwap")
    )
    return own + swapped + max(shared, in_files())


def contents(path: str) -> str:
    """A file of the kernel's, by the functions that were here before a student's code."""
    fd = _open(path, os.O_RDONLY)
    try:
        return _read(fd, 1 << 16).decode()
    finally:
        _close(fd)


def in_files() -> int:
    """Bytes of files that are memory: those of a sandbox's private folders, and those without a name."""
    held = {}
    for fd in _listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile: that of the listing always is
            if _readlink(f"/proc/self/fd/{fd}").startswith("/memfd:"):
                found = _fstat(int(fd))
                held[found.st_dev, found.st_ino] = 512 * found.st_blocks
    for folder in private_folders():
        system = _statvfs(folder)
        held[folder] = (system.f_blocks - system.f_bfree) * system.f_frsize
    return sum(held.values())


@functools.cache
def private_folders() -> tuple[str, ...]:
    """Folders in memory that a sandbox made for this rank alone (see `sandbox.enter`); none without one."""
    mounts = [line.split() for line in contents("/proc/self/mounts").splitlines()]
    return tuple({folder for source, folder, *_ in mounts if source == "private"})
