"""From a layout to a step of training, with all axes of the mesh, and ZeRO over the replicas.

The order is that of the cuts, from the inside outwards, because each needs the result of the one before it:

    schedule    from pp, chunks and microbatches: it says which stages a rank holds
    stages      the model, cut over tp, cp and pp (`mesh_stages`)
    ZeRO        the stages' parameters, sharded over the replicas, dp x cp
    optimizer   for the parameters that are left on this rank

A loss is the mean over all targets of the batch, so every rank divides its terms by the same number, and the
terms are summed over dp x cp (`course_lib.mesh.step`). ZeRO does that sum by its own reduce-scatter, but then
it takes the *mean* over the n ranks of dp x cp. So with ZeRO each rank divides by a number n times smaller.
This makes its terms n times as large, so their mean is the sum.

    zero 0   gradient = sum over dp x cp    d (losses of the rank / targets)
    zero > 0 gradient = mean over dp x cp   d (losses of the rank / (targets / n))

Multiplying the parameters' `.grad` by n before the optimizer's step would be enough for stages 1 and 3. But
in stage 2, `.grad` is None by then, because the gradients have left for the shards during backward.

Source: the order of torchtitan's `parallelize_*` functions (Liang et al., 2024) and of Megatron-LM (Narayanan
et al., SC 2021, section 3); ZeRO over the replicas of a stage: Rajbhandari et al., SC 2020.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.mesh import Mesh, mesh_stages
from course_lib.mesh.step import microbatches_of, sum_over_replicas, targets_of_all
from course_lib.models import GPT, GPTConfig
from course_lib.pipeline import Stage, run_schedule
from course_lib.pipeline.actions import Schedule
from course_lib.pipeline.generators import interleaved_one_f_one_b, one_f_one_b
from course_lib.planning import Layout
from course_lib.zero import Zero1Optimizer, Zero2Optimizer, Zero3Module

Optimizer = tuple[type[torch.optim.Optimizer], Mapping[str, Any]]
SGD: Optimizer = (torch.optim.SGD, {"momentum": 0.9})


def make_step(
    config: GPTConfig,
    layout: Layout,
    mesh: Mesh,
    batch_size: int,
    lr: float,
    optimizer: Optimizer = SGD,
) -> Step:
    """A function of (inputs, targets) that makes one step of training, and returns the batch's loss.

    layout: its sizes, microbatch, chunks, zero and sequence are used. Nothing is recomputed, whatever
        `recompute` says, and gradients have the parameters' dtype.
    mesh: has the layout's sizes. All of its ranks call this, and then the step, in the same way.
    batch_size: rows of a batch, of all replicas together.
    optimizer: a class of torch.optim and its options except the learning rate; elementwise if zero > 0.

    The model is `GPT(config)` after `torch.manual_seed(0)`, in the default dtype, on the mesh's device. The
    step takes int64 tensors (batch_size, seq) of the whole batch, the same on all ranks. It returns, on all
    ranks, the loss in nats before the step, which is the mean over all targets of the batch that are not
    -100. It clears the gradients.

    Cost: `layout_costs`. Raises ValueError, before any step, for a layout that cannot be composed
    (`obstacle`, and the errors of the parts themselves). The step raises it for a batch with another number
    of rows, or without a target.
    """
    if reason := obstacle(config, layout, mesh, batch_size):
        raise ValueError(reason)
    m = layout.microbatches(batch_size)
    schedule = one_f_one_b(layout.pp, m)
    if layout.chunks > 1:
        schedule = interleaved_one_f_one_b(layout.pp, m, layout.chunks)
    torch.manual_seed(0)
    sequence = "keep" if layout.sequence else None
    stages = mesh_stages(GPT(config).to(mesh.device), mesh, schedule, sequence=sequence)

    replicas = mesh.group(("dp", "cp"))
    if layout.zero == 3:
        for stage in stages:
            stage.module = Zero3Module(stage.module, group=replicas)
    params = list(dict.fromkeys(p for stage in stages for p in stage.module.parameters()))
    kind, options = optimizer[0], {"lr": lr, **optimizer[1]}
    if layout.zero in (1, 2):
        sharded = {1: Zero1Optimizer, 2: Zero2Optimizer}[layout.zero]
        steps = sharded(params, kind, group=replicas, **options)
    else:
        steps = kind(params, **options)  # for whole parameters, or ZeRO-3's shards
    return Step(layout, mesh, batch_size, schedule, stages, params, steps)


@dataclass
class Step:
    """One step of training: call it with the inputs and targets of the whole batch, (batch_size, seq).

    stages: the stages of this rank. params: those of this rank's optimizer, which is as torch.optim makes it.
    `held_state(step)` is all a checkpoint needs.
    """

    layout: Layout
    mesh: Mesh
    batch_size: int
    schedule: Schedule
    stages: list[Stage]
    params: list[nn.Parameter]
    optimizer: torch.optim.Optimizer

    def __call__(self, inputs: Tensor, targets: Tensor) -> float:
        if inputs.shape != targets.shape or len(inputs) != self.batch_size:
            raise ValueError(
                f"inputs {tuple(inputs.shape)} and targets {tuple(targets.shape)}: the step was made for "
                f"{self.batch_size} rows of each, with a target for every input"
            )
        mesh, n = self.mesh, self.layout.replicas if self.layout.zero else 1
        batch = inputs.to(mesh.device), targets.to(mesh.device)
        mine = microbatches_of(batch, self.layout.microbatches(self.batch_size), mesh)
        # ZeRO takes the mean over n ranks. It equals the sum if the terms are n times as large.
        count = targets_of_all(self.stages[0], mine, mesh) / n
        losses = run_schedule(self.stages, self.schedule, mine, mesh.group("pp"), count)
        if self.layout.zero == 0:
            sum_over_replicas(self.params, mesh, ("dp", "cp"))
        self.optimizer.step()
        self.optimizer.zero_grad()
        total = sum(losses.values(), torch.zeros((), dtype=torch.float64)).to(mesh.device)
        dist.all_reduce(total, group=mesh.group(("pp", "dp", "cp")))  # each of tp's ranks has it
        return float(total) / n


def obstacle(config: GPTConfig, layout: Layout, mesh: Mesh, batch_size: int) -> str:
    """Why there is no step of this layout, in a sentence; "" if there is one.

    It reports only what the parts themselves would not notice, or not before a step. If heads, layers, tokens
    or orders of a schedule do not fit, the part that cuts them refuses.
    """
    axes = {*layout.sizes, *mesh.sizes}
    other = [axis for axis in axes if layout.sizes.get(axis, 1) != mesh.size(axis)]
    if other or [a for a in layout.sizes if mesh.size(a) > 1] != [
        a for a in mesh.sizes if mesh.size(a) > 1
    ]:
        return (
            f"the layout has the sizes {dict(layout.sizes)} and the mesh {mesh.sizes}: make the mesh of "
            "layout.sizes"
        )
    rows = layout.dp * layout.microbatch
    if batch_size < 1 or batch_size % rows:
        return (
            f"batch_size={batch_size}: {layout.dp} replicas with microbatches of {layout.microbatch} rows "
            f"need a multiple of {rows} rows"
        )
    if layout.sequence and layout.tp == 1:
        return "sequence=True cuts the tokens over tp, and tp has one rank: leave it out"
    if layout.chunks > 1 and layout.pp == 1:
        return f"chunks={layout.chunks} cuts a rank's layers into stages of a pipeline, and pp has one rank"
    if config.dropout:
        return (
            f"dropout={config.dropout}: ranks draw other masks than one process, so that each layout would "
            "have a loss of its own. Configure dropout=0"
        )
    if config.tied and layout.pp > 1 and layout.zero >= 2:
        return (
            "the head is tied to the embedding, the two lie on different stages, and "
            f"ZeRO-{layout.zero} cuts their gradients before they are added. Configure tied=False"
        )
    return ""
