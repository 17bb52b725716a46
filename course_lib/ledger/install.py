"""Put the recorder under `torch.distributed`, in a rank."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from course_lib.ledger import recorder
from course_lib.ledger.group import RecordingGroup
from course_lib.ledger.recorder import Recorder, current_recorder
from course_lib.ledger.work import Together

NAME = "recorded"


def install(
    of_this_rank: Recorder, nccl: bool, kind: type[RecordingGroup] = RecordingGroup
) -> None:
    """From now on every process group of this process is a `RecordingGroup`.

    This holds also for a group that a student makes with `new_group(backend="gloo")` or
    `init_process_group("gloo")`, because both end in the same private function of PyTorch. It is the only
    place that no group bypasses.

    kind: the class of the groups.
    """
    recorder._recorder = of_this_rank

    def create(store: dist.Store, rank: int, size: int, timeout: timedelta) -> RecordingGroup:
        return kind(store, rank, size, timeout, nccl)

    if not hasattr(dist.Backend, NAME.upper()):
        dist.Backend.register_backend(NAME, create, devices=["cpu", "cuda"])
    real_name = "nccl" if nccl else "gloo"
    make = c10d._new_process_group_helper

    @functools.wraps(make)
    def make_recorded(size, rank, ranks, backend, store, *args: Any, **kwargs: Any):
        # NCCL options and device ids configure the real group, which RecordingGroup makes itself
        kwargs.pop("backend_options", None)
        kwargs.pop("pg_options", None)
        kwargs.pop("device_id", None)
        group, store = make(size, rank, ranks, dist.Backend(NAME), store, *args, **kwargs)
        if isinstance(group, RecordingGroup):
            c10d._world.pg_map[group] = (
                real_name,
                store,
            )  # so that get_backend() returns the real one
        return group, store

    c10d._new_process_group_helper = make_recorded
    replace("new_group", recorded_new_group(c10d.new_group))
    replace("batch_isend_irecv", together(c10d.batch_isend_irecv))


def replace(name: str, function: Callable) -> None:
    setattr(c10d, name, function)
    setattr(dist, name, function)


def recorded_new_group(new_group: Callable) -> Callable:
    """Making a group is a collective of all ranks, so a rank that skips it makes the others wait."""

    @functools.wraps(new_group)
    def wrapper(ranks=None, *args: Any, **kwargs: Any):
        world = dist.group.WORLD
        if kwargs.get("use_local_synchronization") or not isinstance(world, RecordingGroup):
            return new_group(ranks, *args, **kwargs)
        rec = current_recorder()
        named = "all ranks" if ranks is None else str(sorted(ranks))
        row = rec.add("new_group", [], 0, world, agree=named)
        since = rec.begin_wait(row)
        try:
            return new_group(ranks, *args, **kwargs)
        finally:
            rec.end_wait(row, since)

    return wrapper


def together(batch_isend_irecv: Callable) -> Callable:
    """PyTorch joins a batch into one NCCL launch only for its own `ProcessGroup` type.

    Launched one by one, sends and receives of a ring wait for each other on the GPU's stream. On either
    backend the ledger marks the operations of one batch.
    """

    @functools.wraps(batch_isend_irecv)
    def wrapper(p2p_op_list: list) -> list:
        with current_recorder().batch():
            return begin(p2p_op_list)

    def begin(p2p_op_list: list) -> list:
        group = (p2p_op_list[0].group or dist.group.WORLD) if p2p_op_list else None
        on_gpu = bool(p2p_op_list) and p2p_op_list[0].tensor.device.type == "cuda"
        if not (on_gpu and isinstance(group, RecordingGroup) and group.nccl):
            return batch_isend_irecv(p2p_op_list)
        device = p2p_op_list[0].tensor.device
        group._start_coalescing(device)
        for op in p2p_op_list:
            op.op(op.tensor, op.peer, group=op.group, tag=op.tag)
        work = group._end_coalescing(device)
        return work.parts if isinstance(work, Together) else []

    return wrapper
