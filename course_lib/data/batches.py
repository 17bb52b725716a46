"""Batches that depend only on the seed and the step, however many ranks share them.

Every rank draws where all rows of the batch begin, and cuts out its own rows. So the batches of N ranks, put
together in the order of the ranks, are the batch of one rank. Nothing is sent and nothing is remembered, so
a run can stop and go on at any step with the same batches as without a stop.

The beginnings of rows are drawn with replacement, so there are no epochs, as in pretraining on more text than
the model ever sees. (For a data set that has an end, use `course_lib.data_parallel.shard_indices`.)

This file imports only torch.
"""

from __future__ import annotations

import random

import torch
from torch import Tensor


def batch(
    text: Tensor,
    step: int,
    *,
    batch_size: int,
    length: int,
    seed: int = 0,
    rank: int = 0,
    world_size: int = 1,
) -> tuple[Tensor, Tensor]:
    """The inputs and targets of `rank` in `step`, two int64 tensors (batch_size / world_size, length).

    targets[i, j] is the token after inputs[i, j].
    text: tokens, one after another, on the CPU. batch_size: rows of all ranks together.
    seed: the same on all ranks; another seed gives other batches in every step.

    Raises ValueError if the rows cannot be shared equally, if the text is not longer than `length`, or if
    the rank is outside 0 .. world_size - 1.
    """
    _check(len(text), batch_size, length, rank, world_size)
    # torch's generator keeps only 32 bits of a seed, whereas Python's mixes in all of a string.
    draw = random.Random(f"{seed} {step}")
    starts = [draw.randrange(len(text) - length) for _ in range(batch_size)]
    each = batch_size // world_size
    own = torch.tensor(starts[rank * each : (rank + 1) * each])
    rows = text[own[:, None] + torch.arange(length + 1)].long()
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def _check(tokens: int, batch_size: int, length: int, rank: int, world_size: int) -> None:
    if world_size < 1 or not 0 <= rank < world_size:
        raise ValueError(
            f"rank {rank} of {world_size}: ranks count from 0 to world_size - 1, and there is at least one"
        )
    if batch_size < 1 or batch_size % world_size:
        raise ValueError(
            f"batch_size={batch_size} rows cannot be shared equally by {world_size} ranks: "
            "it is that of all ranks together, a multiple of world_size"
        )
    if not 1 <= length < tokens:
        raise ValueError(
            f"length={length}: a row and the token after it must fit into the text's {tokens} tokens"
        )
