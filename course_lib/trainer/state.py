"""A rank's part of a run by name: parameters and the optimizer's state, in the form a checkpoint takes.

Without ZeRO they are boxes of the whole model's tensors (`course_lib.mesh.held_boxes`), so any other layout,
or one process, can load them. With ZeRO a rank holds flat shards, which can end anywhere in a matrix:

    name/flat                  elements start to stop of the flat parameter, ZeRO-3 only
    name/flat/momentum_buffer  the same elements of a tensor of the optimizer's state

So the state has to be loaded on the layout that saved it. One process can still load its parameters, unless
ZeRO-3 has cut a tensor that tp had already cut.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from course_lib.mesh import Mesh, held_boxes, parameters
from course_lib.mesh.boxes import step_that_changes_nothing
from course_lib.operation import Box, Folder, load_step, read_manifest, steps
from course_lib.pipeline import Stage
from course_lib.planning import Layout
from course_lib.zero import Zero3Module
from course_lib.zero.bucket import Bucket
from course_lib.zero.sharded_optimizer import ShardedOptimizer
from course_lib.zero.shards import Span

Pieces = dict[str, tuple[Tensor, Box]]


class Built(Protocol):
    """A step that knows its parts: the step `make_step` returns, or a function with these attributes."""

    layout: Layout
    mesh: Mesh
    stages: list[Stage]
    optimizer: torch.optim.Optimizer


def held_state(step: Built) -> Pieces:
    """This rank's tensors by name, each with its box, to save or to fill from a checkpoint.

    They are the tensors the step changes. If an optimizer has not stepped yet, it gets the state of its
    start, so that there is something to load into. Its next step is still the step it would have made anyway.
    Nothing is sent.

    Raises TypeError if `step.optimizer` is not an optimizer, or holds whole parameters although the layout
    asks for ZeRO. A checkpoint would leave out their states without a word.
    """
    if isinstance(step.optimizer, tuple):
        raise TypeError(
            "`step.optimizer` is a pair (class, options), and not an optimizer. In make_step, call the "
            "optimizer that you make `optimizer`."
        )
    inner = [
        replace(stage, module=stage.module.module)
        if isinstance(stage.module, Zero3Module)
        else stage
        for stage in step.stages
    ]
    if step.layout.zero == 0:
        return held_boxes(inner, step.optimizer)
    has_units = any(isinstance(stage.module, Zero3Module) for stage in step.stages)
    if not (has_units or isinstance(step.optimizer, ShardedOptimizer)):
        raise TypeError(
            f"the layout asks for ZeRO-{step.layout.zero}, but `step.optimizer` "
            f"({type(step.optimizer).__name__}) holds whole parameters. Let make_step cut the states, or "
            "take a layout with zero=0."
        )
    sharded = step.optimizer
    optimizer = sharded.optimizer if isinstance(sharded, ShardedOptimizer) else sharded
    if not optimizer.state:
        step_that_changes_nothing(optimizer)
    names = {id(param): name for name, param in parameters(inner)}
    held: Pieces = {} if step.layout.zero == 3 else held_boxes(inner)
    for param, span, shard in _shards(step):
        if not shard.numel():  # its state counts no steps, unlike the state other ranks hold
            continue
        name, box = f"{names[id(param)]}/flat{_part(step)}", [(span.start, span.stop)]
        if step.layout.zero == 3:
            held[name] = shard.detach(), box
        for kind, value in optimizer.state[shard].items():
            if isinstance(value, Tensor):
                held[f"{name}/{kind}"] = value, box if value.dim() else []
    return held


def load_model(folder: str | Path, model: nn.Module) -> int:
    """Fill a whole `model` from the newest checkpoint in `folder`; returns its step. It needs no ranks.

    One process calls it. Raises FileNotFoundError if there is no checkpoint, DamagedCheckpoint if a file of
    the newest checkpoint is not as it was saved, and ValueError if it contains no such model.
    """
    disk = Folder(folder)
    checkpoints = steps(disk)
    if not checkpoints:
        raise FileNotFoundError(f"{folder} has no checkpoint")
    saved = {json.loads(key)[0] for key in read_manifest(disk, checkpoints[0])}
    wanted: Pieces = {}
    for name, param in model.named_parameters():  # a tied head once, as the embedding
        value = param.detach()
        if f"{name}/flat" in saved:
            name, value = f"{name}/flat", value.view(-1)
        wanted[name] = value, [(0, size) for size in value.shape]
    load_step(disk, checkpoints[0], wanted)
    return checkpoints[0]


def _shards(step: Built) -> Iterator[tuple[nn.Parameter, Span, nn.Parameter]]:
    """Each parameter of the rank's stages, the span of it this rank owns, and the shard."""
    rows: list[Bucket] = []
    if isinstance(step.optimizer, ShardedOptimizer):
        rows += step.optimizer.buckets
    for stage in step.stages:
        rows += stage.module.units if isinstance(stage.module, Zero3Module) else []
    for row in rows:
        yield from zip(row.params, row.spans, row.shards, strict=True)


def _part(step: Built) -> str:
    """The part of the tensor to which a flat shard belongs, because tp's ranks hold different parts."""
    tp = step.layout.tp
    return f" of part {step.mesh.coordinate['tp']} of {tp}" if tp > 1 else ""
