"""The handle of an operation: passes everything on to the real one, and books the waiting."""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Iterable
from datetime import timedelta

import numpy as np
import torch
from torch.distributed import Work

from course_lib.ledger import rows
from course_lib.ledger.recorder import CommunicationError, describe, recorder

# PyTorch before 2.8 keeps only the C++ half of a handle that C++ code asked for: without a reference the
# Python half, and with it `wait`, would be gone (DDP then hangs). From 2.8 on a reference to a collective's
# handle would only hold a tensor's memory that nobody waits for.
VERSION = tuple(int(number) for number in torch.__version__.split("+")[0].split(".")[:2])
KEEPS_HALF = VERSION < (2, 8)
SMALL, SAMPLES = 1 << 14, 256  # bytes up to which a tensor in flight is watched whole; else samples


def fingerprint(tensors: list[torch.Tensor]) -> int:
    """A checksum of tensors in flight: whole when small, samples when large."""
    value = 0
    for tensor in tensors:
        if tensor.numel() and tensor.device.type == "cpu":
            # By address: a tensor whose memory NumPy got from torch can never be resized any more, and
            # a copy made by torch would count where somebody counts what a program allocates.
            memory = (ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr())
            flat = np.ctypeslib.as_array(memory)
            step = 1 if flat.size <= SMALL else flat.size // SAMPLES | 1
            value = zlib.crc32(flat[::step].tobytes(), value)
    return value


class RecordingWork(Work):
    """The handle of an operation: passes everything on to the real one, and books the waiting."""

    def __init__(
        self, inner: Work, row: int, sent: list[torch.Tensor],
        message: bool = False, peer: int = -1, device: bool = False,
    ):  # fmt: skip
        super().__init__()
        self.device = device  # it runs on a GPU's stream: wait() does not block the host
        self.inner, self.row, self.sent, self.peer = inner, row, sent, peer
        self.mark = fingerprint(sent) if sent else 0
        self.waited = False
        if message or KEEPS_HALF:
            recorder().handles[row] = self

    def check_untouched(self) -> None:
        if not self.sent or self.waited:
            return
        if fingerprint(self.sent) != self.mark:
            raise CommunicationError(
                f"the tensor {describe(self.sent)} that rank {recorder().rank} sends to rank {self.peer} "
                "was changed before wait(): what arrives may be the old values, the new ones or a mixture. "
                "Call wait() on the handle first, or send a clone()."
            )

    def check_first(self) -> None:
        """gloo's messages count what arrives: a second wait() would wait for one more, for ever."""
        if self.waited and self.peer >= 0 and not self.device:
            raise CommunicationError(
                f"wait() was called before on this handle, of a message with rank {self.peer}: on gloo a "
                "second wait() never returns. Wait once for each handle, where its tensor is needed."
            )

    def wait(self, timeout: timedelta | None = None) -> bool:
        self.check_first()
        rec = recorder()
        before = rec.pending.mark() if self.device else None
        since = rec.begin_wait(self.row)
        try:
            if timeout is None or timeout <= timedelta(0):
                done = self.inner.wait()
            else:
                done = self.inner.wait(timeout)
        finally:
            rec.end_wait(self.row, since, done=not self.device)
        if self.device:
            rec.waits_on_stream(self.row, before)
        self.check_untouched()
        self.waited, self.sent = True, []
        rec.handles.pop(self.row, None)
        return done

    def is_completed(self) -> bool:
        done = self.inner.is_completed()
        if done and not self.waited:
            self.wait()  # it returns at once; books the completion
        return done

    def get_future(self):  # the type differs between PyTorch versions
        rec = recorder()
        rec.log.rows.map[self.row * rows.ROW.size + rows.FLAGS_AT] |= rows.WAITED
        rec.handles.pop(self.row, None)
        if self.device:
            rec.waits_on_stream(self.row, None, self.inner)
        return self.inner.get_future()

    def is_success(self) -> bool:
        return self.inner.is_success()

    def exception(self):
        return self.inner.exception()

    def source_rank(self) -> int:
        return self.inner.source_rank()

    def _source_rank(self) -> int:
        return self.inner._source_rank()

    def result(self):
        return self.inner.result()

    def synchronize(self) -> None:
        self.wait()

    def abort(self) -> None:
        self.inner.abort()  # pyright: ignore[reportAttributeAccessIssue]


class Together(Work):
    """The handle of operations that NCCL begins together: waiting for one of `parts` is waiting for all.

    rows: theirs.
    """

    def __init__(self, inner: Work, rows: Iterable[int]):
        super().__init__()
        self.inner = inner
        self.parts = [RecordingWork(inner, row, [], device=True) for row in rows]

    def wait(self, timeout: timedelta | None = None) -> bool:
        return all([part.wait(timeout) for part in self.parts])

    def is_completed(self) -> bool:
        return all([part.is_completed() for part in self.parts])

    def get_future(self):  # the type differs between PyTorch versions
        futures = [part.get_future() for part in self.parts]
        return futures[0]  # the same for all

    def synchronize(self) -> None:
        self.wait()
