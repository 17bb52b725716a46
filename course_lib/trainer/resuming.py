"""A run that survives: killed at any step and called again, it has the losses of a run that never stopped.

    the newest checkpoint, else the start  ->  step  ->  step  ->  commit  ->  step  ->  ...

To the last bit, on the same layout, since everything that a step reads comes back: parameters and the
optimizer's state from the checkpoint, and the rows from the number of the step. The losses are part of the
checkpoint, too: without them a run that goes on would know where it is, and not how it got there.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
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

Pieces = Mapping[str, tuple[Tensor, Box]]
Step = Callable[[Tensor, Tensor], float]
LOSSES = "losses"  # in a checkpoint: one number a finished step, float64


def train(
    make: Callable[[], tuple[Step, Callable[[], Pieces]]],
    batches: Callable[[int], tuple[Tensor, Tensor]],
    steps: int,
    folder: str | Path,
    every: int,
) -> list[float]:
    """Train until `steps` steps are finished; the losses of all of them, also of earlier calls.

    make: builds the run from its start, and returns a step and a function without arguments that gives this
        rank's tensors and their boxes: `step, lambda: held_state(step)` of a `make_step`. It is called anew
        after a death.
    batches: inputs and targets of a step, by its number from 0 on, and by nothing else.
    every: a save after that many finished steps; after the last one there is a save, too.
    folder: seen by all ranks, of this run alone. The two newest checkpoints are kept.

    All ranks of the world call it, or one process without ranks. If it is killed at any moment, the next call
    goes on from the newest checkpoint that is whole, and at most `every` steps are done again. The losses are
    bitwise those of an undisturbed run on the same layout and machine.

    Cost of a save: as `save_shards`, every element written once. Raises ValueError for `every` below 1, and
    if the checkpoint lacks what this layout wants: then it is of another run.
    """
    if every < 1:
        raise ValueError(f"every={every}: a save comes after 1 finished step or more")
    disk = Folder(folder)
    step, held = make()
    losses = _newest(disk, held)
    while len(losses) < steps:
        losses.append(step(*batches(len(losses))))
        if len(losses) % every == 0 or len(losses) == steps:
            save_shards(disk, len(losses), {**held(), LOSSES: _whole(losses)})
            if not dist.is_initialized() or dist.get_rank() == 0:
                tidy(disk)  # the others wait for rank 0 at the beginning of the next save
    return losses[:steps]


def _newest(disk: Folder, held: Callable[[], Pieces]) -> list[float]:
    """Fill the run's tensors from the newest checkpoint that is whole; its losses, or none for a start."""
    for step in _of_rank_0(saved_steps(disk)):
        losses = [0.0] * step
        number, box = _whole(losses)
        try:
            load_step(disk, step, {**held(), LOSSES: (number, box)})
            return number.tolist()
        except DamagedCheckpoint as damage:
            warnings.warn(f"{damage}. The checkpoint of step {step} is not used", stacklevel=3)
    return []


def _whole(losses: list[float]) -> tuple[Tensor, Box]:
    """Losses as a tensor, float64 (finished steps,), that every rank holds whole."""
    return torch.tensor(losses, dtype=torch.float64), [(0, len(losses))]


def _of_rank_0(numbers: list[int]) -> list[int]:
    """One list on all ranks, in case a folder of the network shows them different ones."""
    if not dist.is_initialized():
        return numbers
    lists = [numbers]
    dist.broadcast_object_list(lists, src=0)
    return lists[0]
