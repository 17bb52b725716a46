"""Notebooks 07 and 10: a stage's actions on the GPU, a pipeline over all GPUs, and one axis at a time."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import torch
import torch.distributed as dist

from course_lib.gpu.clock import half, now, seconds
from course_lib.gpu.experiment import Experiment, Row
from course_lib.gpu.training import on_device
from course_lib.models import PRESETS, GPTConfig
from course_lib.runtime.backend import device


def actions(width: int, layers: int, rows: int, seq: int, repeats: int) -> list[Row]:
    """F, I and W of some blocks. The weights' gradients are put off, and then computed separately."""
    from course_lib.pipeline import LaterWeights

    config = GPTConfig(width=width, heads=width // 64 or 1, layers=layers, context=seq)
    blocks = on_device(config).to(half()).blocks
    x = torch.randn(rows, seq, width, device=device(), dtype=half(), requires_grad=True)
    places, taken = torch.arange(seq, device=device()), []
    for _ in range(repeats + 1):
        blocks.zero_grad()
        at, y = [now()], x
        with LaterWeights() as later:
            for block in blocks:
                y = block(y, places)
        at.append(now())
        y.sum().backward()
        at.append(now())
        later.finish()
        at.append(now())
        taken.append([end - begin for begin, end in pairwise(at)])
    fastest = [min(each) for each in zip(*taken[1:], strict=True)]  # the first run warms up
    return [Row(kind, time, "s", {"kind": kind}) for kind, time in zip("FIW", fastest, strict=True)]


def pipeline(preset: str, rows: int, counts: list[int], repeats: int) -> list[Row]:
    """1F1B over all GPUs, in a step with `count` microbatches of `rows` sequences each."""
    from course_lib.pipeline import gpt_stages, one_f_one_b, run_schedule

    config, p, measured = PRESETS[preset], dist.get_world_size(), []
    torch.manual_seed(0)  # all ranks have the same batch
    tokens = torch.randint(config.vocab_size, (rows, config.context + 1), device=device())
    for count in counts:
        schedule = one_f_one_b(p, count)
        dist.barrier()  # NCCL makes its connections in a call of all ranks
        (stage,) = gpt_stages(on_device(config).to(half()), schedule, dist.get_rank())
        batch = [(tokens[:, :-1], tokens[:, 1:])] * count
        taken = seconds(
            partial(run_schedule, stage, schedule, batch), repeats, before=stage.module.zero_grad
        )
        measured.append(Row(f"{count} microbatches", taken, "s", {"p": p, "m": count}))
    return measured


def axes(preset: str, rows: int, microbatches: int, repeats: int) -> list[Row]:
    """The same batch with all GPUs on one axis: as replicas, as a pipeline, or with each layer cut."""
    from course_lib.mesh import Mesh, hybrid_step, mesh_stages
    from course_lib.mesh.step import microbatches_of
    from course_lib.pipeline import one_f_one_b

    config, n, measured = PRESETS[preset], dist.get_world_size(), []
    torch.manual_seed(0)  # all ranks have the same batch
    tokens = torch.randint(config.vocab_size, (rows * n, config.context + 1), device=device())
    for axis in ("dp", "pp", "tp"):
        if axis == "tp" and config.heads % n:  # heads cannot be cut into n equal parts
            measured.append(Row(f"tp = {n}", None, "s", {"axis": axis, "n": n}))
            continue
        mesh = Mesh({axis: n})
        dist.barrier(group=mesh.group(axis))
        # Only a pipeline cuts the batch into microbatches.
        count = microbatches if axis == "pp" else 1
        schedule = one_f_one_b(mesh.size("pp"), count)
        stages = mesh_stages(on_device(config).to(half()), mesh, schedule)
        parts = microbatches_of((tokens[:, :-1], tokens[:, 1:]), count, mesh)
        held = torch.nn.ModuleList(stage.module for stage in stages)
        taken = seconds(
            partial(hybrid_step, stages, schedule, parts, mesh), repeats, before=held.zero_grad
        )
        of = {"axis": axis, "n": n, "preset": preset, "rows": rows * n, "microbatches": count}
        measured.append(Row(f"{axis} = {n}", taken, "s", of))
    return measured


ACTIONS = Experiment(
    "actions", "The actions of a stage", 1, actions,
    {"width": 2048, "layers": 4, "rows": 4, "seq": 1024, "repeats": 10},
    {"width": 64, "layers": 1, "rows": 1, "seq": 8, "repeats": 2},
)  # fmt: skip
PIPELINE = Experiment(
    "pipeline", "1F1B over all GPUs", 2, pipeline,
    {"preset": "124M", "rows": 4, "counts": [1, 2, 4, 8, 16], "repeats": 5},
    {"preset": "0.1M", "rows": 1, "counts": [1, 2], "repeats": 1},
)  # fmt: skip
AXES = Experiment(
    "axes", "All GPUs on one axis", 2, axes,
    {"preset": "124M", "rows": 8, "microbatches": 8, "repeats": 5},
    {"preset": "0.1M", "rows": 2, "microbatches": 2, "repeats": 1},
)  # fmt: skip
