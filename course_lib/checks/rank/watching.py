"""In the rank: the messages sent by the time backward came past a block, and the moments to measure memory.

Both are taken at the boundaries of blocks, and neither from a class's own account: the record of operations
grows with each one, and the process that watches this one counts its pages (`course_lib.runtime.moments`),
wherever a tensor is hidden. Over NCCL the tensors are on the GPU, and PyTorch's allocator there counts them:
pages of the process would be those of CUDA, which loads its kernels into them (280 MB on an H100).
"""

from __future__ import annotations

import ctypes
import gc
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from course_lib.checks.wire import Count
from course_lib.ledger import rows
from course_lib.ledger.group import real
from course_lib.ledger.recorder import current_recorder
from course_lib.runtime import moments
from course_lib.runtime.backend import device
from course_lib.runtime.moments import HIGHEST

M_MMAP_THRESHOLD, M_TRIM_THRESHOLD = -3, -1
ROOM = 250_000  # bytes that a student's classes take when they are read
SMALL = 64 << 10  # bytes
SUMS, WARM, COOL = 4, 1 << 14, 16  # small sums at a time; elements of each, at first and later
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
_collect, _reach = gc.collect, moments.reach
_device, _gpu_memory = device, torch.cuda.memory_stats


class _Passing(torch.autograd.Function):
    """Identity; in backward it tells that the gradient of this block's output has arrived."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, block: int, watch: Watch) -> torch.Tensor:
        ctx.block, ctx.watch = block, watch
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple:
        ctx.watch.passed(ctx.block)
        return grads[0], None, None


@dataclass(frozen=True)
class Pass:
    """A moment of backward: the gradients of all later blocks are complete, those of `block` are not.

    begun, waited: operations of the rank that had begun, and how many of them it had waited for; latest:
    whether it had waited for the last of them.
    """

    block: Count
    begun: Count
    waited: Count
    latest: bool


class Watch:
    """Looks whenever forward leaves a block of `model`, and whenever backward enters it from behind.

    passes: of each backward. memory: whether these moments are measured, as "highest".
    """

    def __init__(self, model: nn.Module, memory: bool = False):
        self.passes: list[list[Pass]] = []
        self.memory = memory
        for number, block in enumerate(model.blocks):  # pyright: ignore[reportArgumentType]
            block.register_forward_hook(lambda _, __, out, k=number: self.left(out, k))

    def left(self, out: torch.Tensor, block: int) -> torch.Tensor:
        self.look(HIGHEST)
        return _Passing.apply(out, block, self) if out.requires_grad else out  # type: ignore[return-value]

    def passed(self, block: int) -> None:
        self.look(HIGHEST)
        if self.passes:
            self.passes[-1].append(Pass(block, *begun_and_waited(), latest_waited()))

    def backward_begins(self) -> None:
        self.passes.append([])

    def look(self, *names: str) -> None:
        if self.memory:
            measured(*names)

    def held(self, place: int, training: bool = True) -> None:
        """Measure this rank now, as "held.PLACE"; objects without references are freed first.

        training: False when it is over, and copies for the reply count as well: this is not a peak.
        """
        if self.memory:
            _collect()
            self.look(f"held.{place}", *([HIGHEST] if training else []))


def begun_and_waited() -> tuple[int, int]:
    """Of this rank's operations: how many were begun, how many of these were waited for."""
    recorder = current_recorder()
    log, size, count = recorder.log.rows.map, rows.ROW.size, recorder.state.rows
    waited = sum(bool(log[k * size + rows.FLAGS_AT] & rows.WAITED) for k in range(count))
    return count, waited


def latest_waited() -> bool:
    """Whether this rank has waited for the operation that it began last."""
    recorder = current_recorder()
    at = (recorder.state.rows - 1) * rows.ROW.size + rows.FLAGS_AT
    return recorder.state.rows > 0 and bool(recorder.log.rows.map[at] & rows.WAITED)


# ---- memory


def settle(numel: int = COOL) -> None:
    """Small sums for gloo's threads, which keep the tensors of their last operation until the next.

    All ranks take part. One that is elsewhere, and waits for these, is found: the board tells where they are.
    """
    group = torch.distributed.group.WORLD
    inner: Any = real(group)  # not the recorded one: this is not the student's
    recorder = current_recorder()
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


def warm_up() -> None:
    """Have libraries load and allocate what they need for products, exponentials and a backward."""
    for dtype in (torch.float32, torch.float64):
        x = torch.ones(2, 128, 128, dtype=dtype, requires_grad=True)
        y = torch.einsum("bij,bjk->bik", x.softmax(-1), x @ x).logsumexp(-1).exp()
        y.where(x[:, 0] > 0, 0).sum().backward()


def measured(*names: str) -> None:
    """Measure this rank: on its GPU under NCCL, else on the host.

    Free memory in the midst of the C library's heap is returned first, and does not count.
    """
    give_back()
    _reach(*names, on_gpu=on_gpu() if _device().type == "cuda" else None)


def give_back() -> None:
    if _libc is not None:
        _libc.malloc_trim(0)


def on_gpu() -> int:
    """Bytes that were asked for on the current GPU and not given back yet, without what rounding adds."""
    return _gpu_memory()["requested_bytes.all.current"]
