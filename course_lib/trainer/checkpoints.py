"""A run on a disk: its tensors and its losses, so that a process that starts again knows the whole run.

The losses are part of a checkpoint. Without them, a resumed run would know where it is but not how it got
there. Their number is also the number of the step. `train` (resuming.py) is built from these two functions.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.operation import (
    Box,
    DamagedCheckpoint,
    Folder,
    load_step,
    save_shards,
    tidy,
)
from course_lib.operation import steps as saved_steps
from course_lib.operation.protocol import Files

Pieces = Mapping[str, tuple[Tensor, Box]]
Where = Files | str | Path
LOSSES = "losses"  # in a checkpoint: one number per finished step, float64


def save_run(disk: Where, losses: Sequence[float], pieces: Pieces) -> None:
    """Save `pieces` and `losses` as the checkpoint of step `len(losses)`; return when it is written.

    disk: a `Folder`, another disk with its methods, or a path. All ranks see it, and only this run uses it.
    losses: of all finished steps, the same on all ranks.
    pieces: by name in the whole model, this rank's tensor and its box there, such as `held_state(step)`.

    All ranks of the world call it, or one process without ranks. If they are killed during the save, the
    previous checkpoint is still whole. The two newest checkpoints are kept. The cost is that of
    `save_shards`, which writes every element once, plus a look at all files of two checkpoints.
    """
    files = _files(disk)
    save_shards(files, len(losses), {**pieces, LOSSES: _whole(losses)})
    if not dist.is_initialized() or dist.get_rank() == 0:
        tidy(files)  # the others wait for rank 0 when the next save or load begins


def load_run(disk: Where, pieces: Pieces) -> list[float]:
    """Fill the tensors of `pieces` in place from the newest whole checkpoint; returns its losses.

    Returns [] if there is no checkpoint, and leaves the tensors as they are. All ranks of the world call it
    before the first step, each with the pieces it holds. A damaged checkpoint is skipped, with a warning that
    names the file. Raises ValueError if the checkpoint lacks something a rank wants, because it belongs to
    another run or to another layout.
    """
    files = _files(disk)
    for step in _of_rank_0(saved_steps(files)):
        number, box = _whole([0.0] * step)
        try:
            load_step(files, step, {**pieces, LOSSES: (number, box)})
            return number.tolist()
        except DamagedCheckpoint as damage:
            warnings.warn(f"{damage}. The checkpoint of step {step} is not used", stacklevel=2)
    return []


def _files(disk: Where) -> Files:
    return Folder(disk) if isinstance(disk, str | Path) else disk


def _whole(losses: Sequence[float]) -> tuple[Tensor, Box]:
    """Losses as a float64 tensor, (finished steps,), of which every rank holds all."""
    return torch.tensor(losses, dtype=torch.float64), [(0, len(losses))]


def _of_rank_0(numbers: list[int]) -> list[int]:
    """One list on all ranks, in case a network folder shows them different lists."""
    if not dist.is_initialized():
        return numbers
    lists = [numbers]
    dist.broadcast_object_list(lists, src=0)
    return lists[0]
