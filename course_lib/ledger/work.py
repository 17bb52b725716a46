"""The handle of an operation. It passes everything on to the real handle, and books the waiting."""

from __future__ import annotations

import ctypes
import functools
import math
import time
import weakref
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from numpy import (
    ctypeslib,
)  # before the fork: NumPy itself would import it at the first use, in every rank
from torch.distributed import Work

from course_lib.ledger.recorder import CommunicationError, current_recorder
from course_lib.ledger.tensors import describe
from course_lib.ledger.wires import TimedOut

# If C++ code asked for a handle, PyTorch before 2.8 keeps only its C++ half. Without a reference, the Python
# half would be freed together with `wait`, and DDP would hang. From 2.8 on, a reference to a collective's
# handle would only keep the memory of a tensor for which no program waits.
VERSION = tuple(int(number) for number in torch.__version__.split("+")[0].split(".")[:2])
KEEPS_HALF = VERSION < (2, 8)
SMALL, SAMPLES = 1 << 14, 256  # bytes up to which a tensor in flight is watched whole; else samples


def fingerprint(tensors: list[torch.Tensor]) -> int:
    """A checksum of tensors in flight. It reads small tensors whole, and samples of large ones."""
    value = 0
    for tensor in tensors:
        if tensor.numel() and tensor.device.type == "cpu":
            # By address, because a tensor whose memory NumPy got from torch can never be resized again, and
            # a copy made by torch would be counted with the program's own allocations.
            memory = (ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr())
            flat = ctypeslib.as_array(memory)
            step = 1 if flat.size <= SMALL else flat.size // SAMPLES | 1
            value = zlib.crc32(flat[::step].tobytes(), value)
    return value


@dataclass
class Handle:
    """The state of a `RecordingWork`, stored apart so that a recorded program has no name for it.

    inner: the real handle; row: its row in the record; sent: the tensors of a message on its way out; peer:
    the other end; device: whether it runs on a GPU's stream, where wait() does not block the host; mark: the
    `fingerprint` of the sent tensors.
    """

    inner: Any
    row: int
    sent: list[torch.Tensor]
    peer: int
    device: bool
    mark: int
    waited: bool = False


_handles: weakref.WeakKeyDictionary[RecordingWork, Handle] = weakref.WeakKeyDictionary()
_wait, _is_completed = (
    Work.wait,
    Work.is_completed,
)  # as they were before a program could replace them


def put_behind(work: RecordingWork, other: Any) -> None:
    """Have `work` ask another handle from now on, with methods of the same names."""
    _handles[work].inner = other


class RecordingWork(Work):
    """The handle of an operation. It passes everything on to the real handle, and books the waiting."""

    def __init__(
        self, inner: Work, row: int, sent: list[torch.Tensor],
        message: bool = False, peer: int = -1, device: bool = False,
    ):  # fmt: skip
        super().__init__()
        recorder = current_recorder()
        mark = fingerprint(sent) if sent and recorder.has_values else 0
        _handles[self] = Handle(inner, row, sent, peer, device, mark)
        if message or KEEPS_HALF:
            recorder.handles[row] = self

    def wait(self, timeout: timedelta | None = None) -> bool:
        own, rec = _handles[self], current_recorder()
        check_first(own)
        before = rec.pending.mark() if own.device else None
        since = rec.begin_wait(own.row)
        wait = (
            functools.partial(_wait, own.inner) if isinstance(own.inner, Work) else own.inner.wait
        )
        endless = timeout is None or timeout <= timedelta(0)
        until = math.inf
        if timeout is not None and not endless:
            until = time.monotonic() + timeout.total_seconds()
        try:
            done = wait() if timeout is None or endless else wait(timeout)
            rec.cross(own.row, until)
        except TimedOut:
            own.waited = own.peer >= 0  # gloo has counted the message: see `check_first`
            raise
        finally:
            rec.end_wait(own.row, since, done=not own.device)
        if own.device:
            rec.waits_on_stream(own.row, before)
        check_untouched(own)
        own.waited, own.sent = True, []
        rec.handles.pop(own.row, None)
        return done

    def is_completed(self) -> bool:
        own = _handles[self]
        real = isinstance(own.inner, Work)
        done = _is_completed(own.inner) if real else own.inner.is_completed()
        done = done and current_recorder().has_crossed(own.row)
        if done and not own.waited:
            self.wait()  # it returns at once; books the completion
        return done

    def get_future(self):  # the type differs between PyTorch versions
        own, rec = _handles[self], current_recorder()
        future = rec.crossing(
            own.row, own.inner.get_future()
        )  # gloo has none for a message, and raises
        rec.gave_future(own.row)
        rec.handles.pop(own.row, None)
        if own.device:
            rec.waits_on_stream(own.row, None, own.inner)
        return future

    def is_success(self) -> bool:
        return _handles[self].inner.is_success()

    def exception(self):
        return _handles[self].inner.exception()

    def source_rank(self) -> int:
        return _handles[self].inner.source_rank()

    def _source_rank(self) -> int:
        return _handles[self].inner._source_rank()

    def result(self):
        return _handles[self].inner.result()

    def synchronize(self) -> None:
        self.wait()

    def abort(self) -> None:
        _handles[self].inner.abort()


def check_untouched(own: Handle) -> None:
    if not own.sent or own.waited or not current_recorder().has_values:
        return
    if fingerprint(own.sent) != own.mark:
        raise CommunicationError(
            f"the tensor {describe(own.sent)} that rank {current_recorder().rank} sends to rank {own.peer} "
            "was changed before wait(): the receiver may get the old values, the new ones or a mixture. "
            "Call wait() before you change it, receive into another tensor, or send a clone()."
        )


def check_first(own: Handle) -> None:
    """gloo counts the messages that arrive, so a second wait() would wait for another one, for ever."""
    if own.waited and own.peer >= 0 and not own.device:
        raise CommunicationError(
            f"wait() was called before on this handle, of a message with rank {own.peer}: on gloo a "
            "second wait() never returns. Wait once for each handle, where its tensor is needed."
        )


class Together(Work):
    """The handle of operations that NCCL begins together. Waiting for one of `parts` is waiting for all.

    rows: the rows of these operations.
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
