"""Three steps with one mistake each, which shows only on layouts where certain axes are larger than 1.

On all other layouts they have the losses of one process, as `make_step` has. Each is `make_step` with a
change somebody made for a good reason. Find the axes with `smallest_failing` before you read the code. The
arguments are the same as for `make_step`, with `zero` 0 or 1 in the layout.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from course_lib.mesh import Mesh
from course_lib.models import GPTConfig
from course_lib.planning import Layout
from course_lib.tensor_parallel import SequenceParallelNorm
from course_lib.zero import Zero1Optimizer

if TYPE_CHECKING:  # an exercise hides the module
    from .step import Step


def step_a(config: GPTConfig, layout: Layout, mesh: Mesh, batch_size: int, lr: float) -> Step:
    """`make_step`, with PyTorch's own norms, each of which is one kernel in forward and one in backward."""
    from .step import make_step

    step = make_step(config, layout, mesh, batch_size, lr)
    for stage in step.stages:
        for layer in list(stage.module.modules()):
            for name, norm in layer.named_children():
                if isinstance(norm, SequenceParallelNorm):
                    setattr(layer, name, fused(norm))
    return step


def fused(norm: SequenceParallelNorm) -> nn.Module:
    """PyTorch's norm with the same parameters."""
    kind: Any = nn.RMSNorm if norm.of_root_mean_square else nn.LayerNorm
    made = kind(norm.shape, eps=norm.eps)
    made.weight, made.bias = norm.weight, norm.bias
    return made


def step_b(config: GPTConfig, layout: Layout, mesh: Mesh, batch_size: int, lr: float) -> Step:
    """`make_step`, whose later stages receive no positions, because tokens get theirs in the embedding."""
    from .step import make_step

    step = make_step(config, layout, mesh, batch_size, lr)
    for stage in step.stages:
        module: Any = stage.module
        if not stage.first:
            module.positions = None
    return step


def step_c(config: GPTConfig, layout: Layout, mesh: Mesh, batch_size: int, lr: float) -> Step:
    """`make_step` with ZeRO-1 among neighbouring ranks, because their links are the fastest."""
    from .step import make_step

    step = make_step(config, replace(layout, zero=0), mesh, batch_size, lr)
    neighbours: Any
    neighbours, _ = dist.new_subgroups(layout.replicas)
    optimizer = Zero1Optimizer(step.params, torch.optim.SGD, group=neighbours, lr=lr, momentum=0.9)
    return replace(step, layout=replace(layout, zero=1), optimizer=optimizer)
