"""A device of the tests: NCCL's order, and what follows from it, imitated on the CPU over gloo.

The ranks of a launch on "nccl-like" do what `course_lib.ledger.order` says of NCCL:

* Each group has one lane, as a communicator has: a thread that does one thing after the other.
* A batch is one thing: all its messages are begun, then all are waited for.
* A received message, and a collective's result, appear when they are waited for, not before.
* A synchronous collective gives back no handle (ProcessGroupNCCL since PyTorch 2.8: a call whose options have
  asyncOp=False returns none).
* There are no tags, and no receive from any source.

A message of gloo ends when both ends have begun it, and a collective when the data that it needs has come, so
a lane need not see to that. `wait()` holds up the rank and not a stream of it, which comes to the same: all
that the rank begins later would wait as well.

Not imitated: a host that runs ahead of its GPU, memory that is used again too early, transports, and what
NCCL alone can do or refuses (AVG, some dtypes).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import queue
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from course_lib.ledger import install, recorder
from course_lib.ledger.group import FAMILIES, RecordingGroup, put_behind, real
from course_lib.ledger.recorder import current_recorder
from course_lib.ledger.tensors import flatten

NAME = "nccl-like"
COLLECTIVES = {
    "allreduce",
    "allreduce_coalesced",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "barrier",
}
COLLECTIVES |= {name for names in FAMILIES.values() for name in names.split()}


# --- in a rank -----------------------------------------------------------------------------------


class Operation(dist.Work):
    """The handle of an operation. Its result is copied to its target when it is waited for."""

    def __init__(self, begin: Callable[[Any], dist.Work], writes: Any):
        super().__init__()
        self.begin_with: Callable[[Any], dist.Work] | None = begin
        self.writes = writes
        self.written: Any = None
        self.over, self.error = threading.Event(), None
        self.lock, self.after = threading.Lock(), list[Callable[[], None]]()

    def begin(self) -> dist.Work:
        assert self.begin_with is not None
        self.written = copied(self.writes)
        return self.begin_with(self.written)

    def end(self, error: Exception | None) -> None:
        self.error, self.begin_with = error, None
        with self.lock:
            self.over.set()
        for call in self.after:
            call()

    def wait(self, timeout: timedelta | None = None) -> bool:
        self.over.wait()
        if self.error is not None:
            raise self.error
        for target, source in zip(flatten(self.writes), flatten(self.written), strict=True):
            if target is not source and target.numel():  # as gloo does, unseen by autograd
                ctypes.memmove(target.data_ptr(), source.data_ptr(), target.nbytes)
        self.writes = self.written = []
        return True

    def is_completed(self) -> bool:
        return self.over.is_set()

    def get_future(self) -> torch.futures.Future:
        future, result = torch.futures.Future(), flatten(self.writes)

        def tell() -> None:
            try:
                self.wait()
                future.set_result(result)
            except Exception as error:
                future.set_exception(error)

        with self.lock:
            over = self.over.is_set()
            if not over:
                self.after.append(tell)
        if over:
            tell()
        return future


class Together(dist.Work):
    """The handle of a batch."""

    def __init__(self, step: list[Operation]):
        super().__init__()
        self.step = step

    def wait(self, timeout: timedelta | None = None) -> bool:
        return all([operation.wait() for operation in self.step])

    def is_completed(self) -> bool:
        return all(operation.is_completed() for operation in self.step)


def copied(tensors: Any) -> Any:
    """Copies of the tensors; those without contiguous memory (sparse ones) stay as they are."""
    if isinstance(tensors, torch.Tensor):
        return tensors.detach().clone() if tensors.layout == torch.strided else tensors
    return [copied(one) for one in tensors]


class Lane:
    """Does one step after the other: begins the operations of the step, and waits for all of them."""

    def __init__(self) -> None:
        self.steps = queue.SimpleQueue[list[Operation]]()
        threading.Thread(target=self.work, name="nccl-like", daemon=True).start()

    def work(self) -> None:
        torch.set_grad_enabled(False)  # in this thread
        while True:
            self.do(self.steps.get())

    def do(self, step: list[Operation]) -> None:
        error = None
        try:
            for work in [operation.begin() for operation in step]:
                work.wait()
        except Exception as raised:
            error = raised
        for operation in step:
            operation.end(error)


class NcclLike:
    """Stands in the place of the process group that `RecordingGroup` has inside."""

    def __init__(self, gloo: dist.ProcessGroup):
        self.gloo, self.lane = gloo, Lane()
        self.batch: list[Operation] | None = None

    def put(self, begin: Callable[[Any], dist.Work], writes: Any) -> Operation:
        operation = Operation(begin, writes)
        if self.batch is None:
            self.lane.steps.put([operation])
        else:
            self.batch.append(operation)
        return operation

    def send(self, tensors: list, dst: int, tag: int) -> Operation:
        return self.put(lambda _: self.gloo.send(tensors, dst, 0), [])

    def recv(self, tensors: list, src: int, tag: int) -> Operation:
        return self.put(lambda written: self.gloo.recv(written, src, 0), tensors)

    def recv_anysource(self, tensors: list, tag: int) -> Operation:
        raise NotImplementedError("NCCL has no receive from any source")

    def collective(self, name: str, *args: Any, **kwargs: Any) -> Operation | None:
        """The first argument is its target: all collectives of a process group have it so."""
        call = functools.partial(getattr(self.gloo, name), **kwargs)
        if name == "barrier":
            operation = self.put(lambda _: call(*args), [])
        else:
            operation = self.put(lambda written: call(written, *args[1:]), args[0])
        if all(getattr(one, "asyncOp", True) for one in (*args, *kwargs.values())):
            return operation
        rec = current_recorder()
        row = rec.state.rows - 1  # its own, written down just now
        since = rec.begin_wait(row)
        try:
            operation.wait()
        finally:
            rec.end_wait(row, since)
        return None

    def _start_coalescing(self, device: torch.device) -> None:
        self.batch = []

    def _end_coalescing(self, device: torch.device) -> Together | None:
        step, self.batch = self.batch, None
        if not step:
            return None
        self.lane.steps.put(step)
        return Together(step)

    def __getattr__(self, name: str) -> Any:
        if name in COLLECTIVES:
            return functools.partial(self.collective, name)
        return getattr(self.gloo, name)


def imitate() -> None:
    """From now on every process group of this rank has a lane."""
    make, channel = RecordingGroup.__init__, RecordingGroup.channel

    def init(self: RecordingGroup, *args: Any) -> None:
        make(self, *args)
        put_behind(self, NcclLike(real(self)))

    def without_tag(self: RecordingGroup, op: str, rank: int, peer: int, tag: int) -> tuple:
        return channel(self, op, rank, peer, 0)

    begin = c10d.batch_isend_irecv

    def batch(operations: list) -> list:
        group: Any = operations[0].group or dist.group.WORLD
        group._start_coalescing(operations[0].tensor.device)
        try:
            return begin(operations)
        finally:
            group._end_coalescing(operations[0].tensor.device)

    recorder.LIBRARIES += (__file__,)  # messages name the lines of the test
    RecordingGroup.__init__, RecordingGroup.channel = init, without_tag
    install.replace("batch_isend_irecv", batch)
    world: Any = dist.group.WORLD
    put_behind(world, NcclLike(real(world)))


def enter(header: dict, buffers: list, rank: int) -> tuple[dict, list]:
    """Imitate, then go on with the task's own entry."""
    imitate()
    module, _, name = header["entry"].partition(":")
    return getattr(importlib.import_module(module), name)(header["header"], buffers, rank)


# --- in the process that launches ----------------------------------------------------------------


@contextlib.contextmanager
def offered(checks: bool = False) -> Iterator[None]:
    """Within it, `launch` knows the backend "nccl-like". checks: `check` runs on it."""
    import pytest

    from course_lib.checks.judge import judge
    from course_lib.runtime import backend, run, waiting

    launching = importlib.import_module("course_lib.runtime.launch")

    def choose(world_size: int, asked: str | None = None) -> str:
        return NAME if asked == NAME else backend.choose(world_size, asked)

    def run_ranks(entry: str, header: Any, buffers: Any, **options: Any) -> run.Outcome:
        if options["backend"] == NAME:
            headers = header if isinstance(header, list) else [header] * options["world_size"]
            header = [{"entry": entry, "header": one} for one in headers]
            entry = "tests.nccl_like:enter"
        return run.run_ranks(entry, header, buffers, **options)

    with pytest.MonkeyPatch.context() as patch:
        for module in (launching, run):
            patch.setattr(module, "choose", choose)
        for module in (launching, judge):
            patch.setattr(module, "run_ranks", run_ranks)
        patch.setattr(waiting, "IN_ORDER", {*waiting.IN_ORDER, NAME})
        if checks:
            patch.setattr(judge, "backend", lambda world_size: NAME)
        yield
