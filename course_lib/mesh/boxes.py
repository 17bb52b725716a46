"""Boxes: the part of each tensor held by a rank of a mesh, as a checkpoint has to know it.

Cuts over tp and over ep are boxes of one tensor, pp decides which names a rank has at all, and replicas
(dp, cp) have equal boxes. So a checkpoint of boxes does not depend on the mesh, and can be loaded on another
one:

    held = held_boxes(stages, optimizer)
    save_shards(disk, step, held)         # course_lib.operation
    load_shards(disk, held)

A tensor in an optimizer's state that has its parameter's shape also has the parameter's box, and a name such
as "blocks.0.mlp.up.weight/exp_avg".
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.pipeline.stage import Stage
from course_lib.tensor_parallel.cut import Parallel

from .stages import parameters

Box = list[tuple[int, int]]


def held_boxes(
    stages: Sequence[Stage], optimizer: torch.optim.Optimizer | None = None
) -> dict[str, tuple[Tensor, Box]]:
    """This rank's tensors by their names in the whole model, each with its box, (start, stop) per dimension.

    optimizer: of the parameters; tensors of its state are also listed. An optimizer that has not stepped yet
    is given the state it starts with, so that there is something to load into. Raises ValueError for a state
    that has neither the parameter's shape nor one element, because such an optimizer has to save itself.
    """
    cuts = _cuts(stages)
    held: dict[str, tuple[Tensor, Box]] = {}
    for name, param in parameters(stages):
        box = [(0, size) for size in param.shape]
        for dim, bounds in cuts.get(id(param), {}).items():
            box[dim] = bounds
        held[name] = (param.detach(), box)
        for kind, value in _state(optimizer, param).items():
            if value.shape != param.shape and value.dim():
                raise ValueError(
                    f"{kind} of {name} has the shape {tuple(value.shape)}, and its parameter "
                    f"{tuple(param.shape)}: only states of one shape or of one number can be cut"
                )
            held[f"{name}/{kind}"] = (value, box if value.dim() else [])
    return held


def _cuts(stages: Sequence[Stage]) -> dict[int, dict[int, tuple[int, int]]]:
    """By a parameter's id, the bounds in each dimension cut by tp or by ep."""
    bounds: dict[int, dict[int, tuple[int, int]]] = {}
    for layer in (layer for stage in stages for layer in stage.module.modules()):
        for name, cut in layer.cuts.items() if isinstance(layer, Parallel) else ():
            bounds[id(getattr(layer, name))] = {cut.dim: cut.bounds()}
        group = getattr(layer, "group", None)
        for name in getattr(layer, "apart", ()) if group is not None else ():
            param, rank = getattr(layer, name), dist.get_rank(group)
            bounds[id(param)] = {0: (len(param) * rank, len(param) * (rank + 1))}
    return bounds


def _state(optimizer: torch.optim.Optimizer | None, param: Tensor) -> dict[str, Tensor]:
    """The tensors of a parameter's state."""
    if optimizer is None:
        return {}
    if not optimizer.state:
        step_that_changes_nothing(optimizer)
    return {
        kind: value for kind, value in optimizer.state[param].items() if isinstance(value, Tensor)
    }


def step_that_changes_nothing(optimizer: torch.optim.Optimizer) -> None:
    """Make the state of an optimizer that has not stepped yet, as it is before the first step.

    It steps with gradients of 0, a learning rate of 0 and no weight decay, and then does not count this step.
    So a run that asks for its state at the start goes on as if it had not asked. This holds for Adam, AdamW,
    RMSprop and SGD without dampening, but not for NAdam, whose state keeps more of a step than its number.
    Call it before the backward, because it clears gradients.
    """
    off = ("lr", "weight_decay")
    options = [{key: group[key] for key in off if key in group} for group in optimizer.param_groups]
    for group, own in zip(optimizer.param_groups, options, strict=True):
        group.update(dict.fromkeys(own, 0.0))
        for param in group["params"]:
            param.grad = torch.zeros_like(param)
    optimizer.step()
    optimizer.zero_grad()
    for group, own in zip(optimizer.param_groups, options, strict=True):
        group.update(own)
    for state in optimizer.state.values():
        if "step" in state:  # a tensor; older optimizers have a number
            state["step"] = state["step"] * 0
