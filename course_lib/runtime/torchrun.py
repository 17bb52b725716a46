"""The ledger in ranks that `torchrun` started, on one machine or on several.

Ranks of `launch` write their ledgers into memory that the notebook reads. Ranks on several machines share
no memory, so each rank keeps its own record here, and all of them exchange their records at the end:

    recording = Recording("gloo")          # before init_process_group
    dist.init_process_group("gloo")
    with recording:                        # on all ranks: record the operations in this block
        ring_all_reduce(tensor)
    print(recording.ledger.table())        # of all ranks, on every rank

Each call is checked as under `launch` (contiguous tensors, right devices, buffers untouched while they are
sent), but not against the calls of other ranks, and only the backend's time-out finds a deadlock.
"""

from __future__ import annotations

import os
import time
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

from course_lib.ledger import recorder, rows
from course_lib.ledger.install import install
from course_lib.ledger.ledger import Ledger
from course_lib.ledger.operation import Operation
from course_lib.ledger.read import operation
from course_lib.ledger.recorder import CommunicationError, Recorder
from course_lib.runtime.backend import BACKENDS
from course_lib.runtime.places import where

OUTSIDE = 1 << 12  # rows after which the record outside of `with` begins anew


class Recording:
    """Records this rank's operations, from now until the process ends; keeps those inside `with`.

    backend: the backend of all process groups that are made from now on, "gloo" or "nccl" (for NCCL call
        `torch.cuda.set_device` before).
    ledger: after a `with`, the `Ledger` of all ranks' operations in it; None before.

    Entering and leaving `with` are collectives, so all ranks do both, with no operation under way. Times
    count from the barrier at its beginning, so that clocks of different machines do not have to agree.

    Raises RuntimeError outside of torchrun, after init_process_group, or for a second Recording in a process;
    ValueError for another backend. CommunicationError if more is sent in a `with` than fits into a record.
    """

    def __init__(self, backend: str = "gloo"):
        if backend not in BACKENDS:
            raise ValueError(
                f"a ledger is kept for {' or '.join(BACKENDS)}, not for backend={backend!r}"
            )
        if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
            raise RuntimeError(
                "RANK and WORLD_SIZE are not set, so start this program with torchrun. In a notebook use "
                "launch(), which returns a ledger"
            )
        if recorder._recorder is not None:
            raise RuntimeError(
                "this process is already recorded, by launch() or by another Recording"
            )
        if dist.is_initialized():
            raise RuntimeError(
                "the process group already exists, but only groups made afterwards are recorded. Make the "
                "Recording before init_process_group"
            )
        rank, self.world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.backend = backend
        self.ledger: Ledger | None = None
        board = rows.anonymous_file("course-board", rows.Board.size(self.world_size))
        self._files = rows.anonymous_file("course-rows"), rows.anonymous_file("course-texts")
        log = rows.Log(*self._files)
        self._recorder = _ScopedRecorder(
            rank, self.world_size, rows.Board(board, self.world_size), log
        )
        self._began = 0.0
        install(self._recorder, nccl=backend == "nccl")

    def __enter__(self) -> Recording:
        if self._recorder.keeps:
            raise RuntimeError("this Recording is already entered, so leave it first")
        dist.barrier()
        self._recorder.forget()
        self._recorder.keeps = True
        self._began = time.monotonic()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and self.backend == "nccl":
            torch.cuda.synchronize()
            self._recorder.pending.drain()
        ended = time.monotonic() - self._began
        self._recorder.keeps = False
        if kind is None:  # after an error the others may never come
            gathered: list[Any] = [None] * self.world_size
            dist.all_gather_object(gathered, (self._operations(), ended))
            operations = [log for log, _ in gathered]
            last = max(its_end for _, its_end in gathered)
            self.ledger = Ledger(self.world_size, operations, self.backend, ended=last)

    def _operations(self) -> list[Operation]:
        """This rank's rows. It wrote them itself, so they do not need the checks of `read_log`."""
        state = self._recorder.state
        rows_file, texts_file = self._files
        texts, _ = rows.read_texts(os.pread(texts_file, self._recorder.log.texts.end, 0))
        raw = os.pread(rows_file, state.rows * rows.ROW.size, 0)
        return [
            operation(self._recorder.rank, index, rows.Row(*fields), texts, self._began, where)
            for index, fields in enumerate(rows.ROW.iter_unpack(raw))
        ]


class _ScopedRecorder(Recorder):
    """Outside of `with`, it overwrites its rows again and again, so that a long training can go on."""

    keeps = False

    def add(self, *args: Any, **kwargs: Any) -> int:
        if self.state.rows >= (self.most if self.keeps else OUTSIDE):
            if self.keeps:
                raise CommunicationError(
                    f"more than {self.most:,} operations inside one `with`, but a record holds no more. "
                    "Record fewer steps"
                )
            self.forget()
        return super().add(*args, **kwargs)

    def forget(self) -> None:
        """Begin again. Handles of operations under way keep rows far from the first."""
        self.pending.clear()
        self.log.rows.end = self.state.rows = 0
        self.turns.clear()
