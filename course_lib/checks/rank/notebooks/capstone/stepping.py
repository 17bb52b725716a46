"""Recipe (see `harness`): a layout goes in, and the step that comes out is called on several batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from course_lib.checks.rank import frozen
from course_lib.checks.rank.harness import plain
from course_lib.checks.rank.meshes import MeshInstructions, mesh_of
from course_lib.checks.rank.watching import begun_and_waited
from course_lib.checks.wire import Count
from course_lib.models import GPTConfig
from course_lib.planning import Layout

_plain, _begun, _mesh_of = plain, begun_and_waited, mesh_of
_GPTConfig, _Layout = GPTConfig, Layout
_default_dtype, _set_default_dtype = torch.get_default_dtype, torch.set_default_dtype
BEFORE = 4321  # the seed of all ranks when the function is called: a model drawn from it was not seeded


@dataclass(frozen=True)
class LayoutInstructions(MeshInstructions):
    """A model, a layout without its sizes, which are the mesh's, and the steps of its training.

    config, layout   fields of the GPTConfig and of the Layout
    rows, rate       `batch_size` and `lr`
    count            steps: the tensors of step 0 are "x.0" and "t.0", whole on every rank
    """

    config: dict[str, Any]
    layout: dict[str, Any]
    rows: int
    rate: float
    count: int


@dataclass
class StepsReply:
    """begun: operations begun before the first step, and after each; returned: the steps' losses.

    misfit: the type of the result of `make_step`, if it cannot be called.
    """

    begun: list[Count] = field(default_factory=list)
    returned: list[Any] = field(default_factory=list)
    misfit: str = ""


def steps(
    objects: list, tensors: dict[str, torch.Tensor], groups: list, instructions: LayoutInstructions
) -> tuple[StepsReply, dict[str, Any]]:
    """`make_step(config, layout, mesh, batch_size, lr)` in float64, and its step on each batch."""
    mesh, before = _mesh_of(instructions, groups), _default_dtype()
    layout = _Layout(instructions.sizes, **instructions.layout)
    frozen.manual_seed(BEFORE)
    _set_default_dtype(torch.float64)
    try:
        step = objects[0](
            _GPTConfig(**instructions.config), layout, mesh, instructions.rows, instructions.rate
        )
        if not callable(step):
            return StepsReply(misfit=type(step).__name__), {}
        reply = StepsReply([_begun()[0]])
        for k in range(instructions.count):
            reply.returned.append(_plain(step(tensors[f"x.{k}"], tensors[f"t.{k}"])))
            reply.begun.append(_begun()[0])
    finally:
        _set_default_dtype(before)
    return reply, {}
