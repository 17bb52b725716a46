"""The dry run of GPT-3: one rank of 1,024, with all of its layers and microbatches, on this machine.

The time is of the whole call, with the process that is forked for it. It is counted only if every byte of
every axis, the weights, the activations and the FLOPs are those of the closed forms.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from benchmarks.table import Row
from course_lib import dry_run
from course_lib.dry import DryRun
from course_lib.mesh import Mesh, hybrid_step, mesh_stages
from course_lib.models import GPT, GPTConfig
from course_lib.pipeline import one_f_one_b

GPT_3 = GPTConfig(vocab_size=51200, context=2048, layers=96, heads=96, width=12288)
SMALL = GPTConfig(vocab_size=1024, context=64, layers=16, heads=16, width=256)
SIZES = {"pp": 8, "dp": 16, "tp": 8}
RANK, COUNT = 517, 16


def setup(config: GPTConfig, mesh: Mesh, count: int) -> Any:
    return mesh_stages(GPT(config), mesh, one_f_one_b(mesh.size("pp"), count))


def step(stages: Any, mesh: Mesh, batch: list[tuple[Tensor, Tensor]]) -> None:
    hybrid_step(stages, one_f_one_b(mesh.size("pp"), len(batch)), batch, mesh)


def rehearsed(config: GPTConfig) -> tuple[float, DryRun]:
    began = time.perf_counter()
    run = dry_run(setup, step, sizes=SIZES, rank=RANK, model=config, microbatches=COUNT)
    seconds = time.perf_counter() - began
    wrong = [row.what for row in run.table().rows if row.mark]
    if wrong:
        raise RuntimeError(f"these differ from their closed forms: {', '.join(wrong)}")
    return seconds, run


def rows() -> Iterator[Row]:
    rehearsed(SMALL)  # the process that dry runs are forked from imports what they need
    seconds, run = rehearsed(GPT_3)
    where = "pp 8, dp 16, tp 8"
    yield Row(
        f"dry run of GPT-3 175B, rank {RANK} of 1,024 ({where}), {COUNT} microbatches", "",
        seconds, 45.0, "s", f"{run.memory / 1e9:.1f} GB of memory, of {run.setup_peak / 1e9:.0f} GB",
    )  # fmt: skip
    seconds, _ = rehearsed(SMALL)
    yield Row(
        f"dry run of a GPT of 16 layers, the same rank and mesh, {COUNT} microbatches", "",
        seconds, 8.0, "s",
    )  # fmt: skip
