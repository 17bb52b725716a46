"""Checks of notebook 07 that run something: run_schedule, PipeDreamStage, and the formulas beside them."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_lib import facts, launch
from course_lib.pipeline import Schedule, Stage, stage_ranks
from course_lib.pipeline.actions import flat
from course_lib.pipeline.generators import gpipe, interleaved_one_f_one_b, one_f_one_b
from course_lib.pipeline.run import run_schedule

ROWS, WIDTH = 3, 5


@pytest.mark.parametrize(
    ("schedule", "chunks"),
    [
        (gpipe(1, 3), 1),
        (one_f_one_b(3, 4), 1),
        (interleaved_one_f_one_b(2, 4, 2), 2),
        (interleaved_one_f_one_b(3, 3, 3), 3),
    ],
    ids=["alone", "1F1B", "two chunks", "three chunks"],
)
def test_bytes_sent_are_those_of_the_closed_form(
    schedule: Schedule, chunks: int, seed: int
) -> None:
    """A plain stack of layers, which share nothing."""
    ranks = stage_ranks(schedule)
    count = 1 + max(one.microbatch for one in flat(schedule[0]))

    def body() -> None:
        torch.manual_seed(seed)
        batch = [(torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)) for _ in range(count)]
        stages = [
            Stage(
                index, len(ranks), nn.Linear(WIDTH, WIDTH), lambda x: x.shape,
                lambda y, t: (y - t).square().sum(), lambda t: torch.tensor(t.numel()),
            )
            for index in sorted(ranks) if ranks[index] == dist.get_rank()
        ]  # fmt: skip
        run_schedule(stages, schedule, batch)

    world_size = len(schedule)
    run = launch(body, world_size=world_size, backend="gloo")
    nbytes = ROWS * WIDTH * 4
    assert [run.ledger.bytes_sent(rank) for rank in range(world_size)] == [
        facts.pipeline_bytes_sent(world_size, count, rank, nbytes, chunks) for rank in range(world_size)
    ]  # fmt: skip
