"""The other ranks of a dry run do not exist, and every call that needs them is over immediately.

A process becomes rank 517 of 1,024 in three steps:

    RecorderOfOne    writes each operation down as a rank does, but compares it with no other rank
    AnsweringGroup   a `RecordingGroup` with nothing behind it: each call returns a handle that is done
    StoreOfOne       the store in which ranks meet to make a group: every wait is over immediately

The program calls `torch.distributed` as always. A call on a process group written in Python never passes
PyTorch's dispatcher, so tensors without values (see `floats.py`) go through, and the ledger books shapes,
bytes and lines. Whole numbers do have values. Since a program may use them as sizes, the other ranks answer
with this rank's own values.

Functional collectives (`torch.distributed._functional_collectives`) do go through the dispatcher, and are not
seen here.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import FakeProcessGroup
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed import ProcessGroup, Work

from course_lib.ledger import rows
from course_lib.ledger.exchange import Exchange
from course_lib.ledger.group import FAMILIES, RecordingGroup, put_behind
from course_lib.ledger.install import install
from course_lib.ledger.recorder import Members, Recorder
from course_lib.ledger.tensors import flatten
from course_lib.runtime.rank import DEPRECATED

GATHERING, EXCHANGING = FAMILIES["gathering"].split(), FAMILIES["exchanging"].split()


def become(rank: int, world_size: int) -> Recorder:
    """Make this process rank `rank` of `world_size`, for good. Returns its recorder."""
    # Pages of the board to which no rank writes take no memory.
    board = rows.Board(file_of_one("dry-board", rows.Board.size(world_size)), world_size)
    log = rows.Log(file_of_one("dry-rows"), file_of_one("dry-texts"))
    for pattern in DEPRECATED:
        warnings.filterwarnings("ignore", pattern, FutureWarning)
    recorder = RecorderOfOne(rank, world_size, board, log)
    install(recorder, nccl=False, kind=AnsweringGroup)
    dist.init_process_group("gloo", store=StoreOfOne(), rank=rank, world_size=world_size)
    recorder.begin_task(1)
    return recorder


def file_of_one(name: str, size: int = 0) -> int:
    """The descriptor of a file for only this process. A check's rank cannot make memory without a name."""
    try:
        return rows.anonymous_file(name, size)
    except PermissionError:
        with tempfile.TemporaryFile() as file:
            file.truncate(size)
            return os.dup(file.fileno())


class RecorderOfOne(Recorder):
    """Writes down what this rank does, without another rank to compare it with."""

    has_values = False

    def compare_message(
        self, op: str, peer: int, key: int, nbytes: int, signature: str, tensor: Tensor | None
    ) -> None:
        pass

    def compare_collective(self, op: str, group: Members, key: int, turn: int, mine: str) -> None:
        pass

    def compare_parts(self, exchange: Exchange, group: Members, channel: tuple, turn: int) -> None:
        pass


class AnsweringGroup(RecordingGroup):
    """The group of a rank whose peers do not exist."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta, nccl: bool):
        # RecordingGroup's own constructor would connect the ranks.
        ProcessGroup.__init__(self, rank, size)  # pyright: ignore[reportCallIssue]
        # C++ asks a group for the backend of a device, but no operation gets there.
        silent = backend_of_nobody(rank, size)
        self._register_backend(torch.device("cpu"), ProcessGroup.BackendType.CUSTOM, silent)
        self.nccl, self.my_rank, self.my_size = nccl, rank, size
        self.first_together = None
        put_behind(self, Answers())


def backend_of_nobody(rank: int, size: int) -> Any:
    """PyTorch's own fake group, whose constructor has changed over the releases."""
    create = getattr(FakeProcessGroup, "_create_internal", None)
    if create is None:
        fake: Any = FakeProcessGroup
        return fake(rank, size)
    options: Any = getattr(FakeProcessGroup, "Options", None)
    return create(rank, size, options()) if options else create(rank, size)


class Answers:
    """Stands in for the real process group. Any method of it fills in whole numbers, and is done."""

    def __getattr__(self, name: str) -> Any:
        def answer(*args: Any, **kwargs: Any) -> Done:
            if name in (*GATHERING, *EXCHANGING):
                repeat_own(*args[:2])
            return Done(args[0] if args else [])

        return answer


def repeat_own(out: Any, own: Any) -> None:
    """Fill in whole numbers as if every other rank had sent this rank's own."""
    source = flatten(own)
    for position, target in enumerate(flatten(out)):
        sent = source[position % len(source)]
        if isinstance(target, FakeTensor) or isinstance(sent, FakeTensor):
            continue
        if sent.numel() and target.numel() % sent.numel() == 0:
            target.view(-1, sent.numel()).copy_(sent.reshape(1, -1))


class Done(Work):
    """The handle of an operation that is over."""

    def __init__(self, tensors: Any):
        super().__init__()
        self.tensors = flatten(tensors)

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def exception(self) -> None:
        return None

    def result(self) -> list[Tensor]:
        return self.tensors

    def get_future(self) -> torch.futures.Future:
        future = torch.futures.Future()
        future.set_result(self.tensors)
        return future

    def _source_rank(self) -> int:
        raise RuntimeError(
            "a dry run has one rank, so a receive from any source has no sender: name the rank with src="
        )

    source_rank = _source_rank


class StoreOfOne(dist.Store):
    """Keys and values of this rank; a wait for another rank's key is over immediately."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: str | bytes) -> None:
        self.values[key] = value.encode() if isinstance(value, str) else bytes(value)

    def get(self, key: str) -> bytes:
        if key not in self.values:
            raise RuntimeError(f"no rank has set {key!r} in the store: a dry run has one rank")
        return self.values[key]

    def add(self, key: str, amount: int) -> int:
        total = int(self.values.get(key, b"0")) + amount
        self.values[key] = str(total).encode()
        return total

    def check(self, keys: list[str]) -> bool:
        return True

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        pass

    def set_timeout(self, timeout: timedelta) -> None:
        pass
