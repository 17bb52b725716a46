"""A step of a small GPT on a mesh, for notebooks that count what it sends or sleep as long as it takes.

    one_step   run a step on the mesh, between two barriers
    step_of    the operations between these barriers

Names that exercises hide are imported when the step runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from course_lib.models import GPT, GPTConfig

TRIAL = GPTConfig(vocab_size=256, context=128, layers=4, heads=4, width=64)
MICROBATCHES, ROWS, SEQ = 4, 8, 64  # microbatches per replica, rows per step, tokens per row


def one_step(sizes: Mapping[str, int]) -> None:
    """Run a step of the small GPT in float32 on this rank of the mesh, with the reference's functions."""
    from course_lib.mesh import Mesh, hybrid_step, mesh_stages, my_part
    from course_lib.pipeline.generators import one_f_one_b

    torch.manual_seed(0)
    mesh, schedule = Mesh(sizes), one_f_one_b(sizes.get("pp", 1), MICROBATCHES)
    stages = mesh_stages(GPT(TRIAL), mesh, schedule)
    generator = torch.Generator().manual_seed(1)
    inputs, targets = torch.randint(TRIAL.vocab_size, (2, ROWS, SEQ), generator=generator)
    rows, _ = my_part(mesh.rank, dict(sizes), ROWS, SEQ)
    mine = slice(rows.start, rows.stop)
    parts = inputs[mine].chunk(MICROBATCHES), targets[mine].chunk(MICROBATCHES)
    dist.barrier()
    hybrid_step(stages, schedule, list(zip(*parts, strict=True)), mesh)
    dist.barrier()


def step_of(operations: Sequence[Any]) -> Sequence[Any]:
    """Return the operations of a rank between the last two barriers."""
    places = [k for k, operation in enumerate(operations) if operation.op == "barrier"]
    return operations[places[-2] + 1 : places[-1]]
