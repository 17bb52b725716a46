"""A step on a mesh: all axes, in the order in which they are applied.

    axis       moment                content                                    receiver
    dp, cp     before the step       its rows, its places (`my_part`)           no rank
    tp         inside each layer     sums of partial products                   its group, 4 a layer
    cp         inside attention      keys and values go round                   its group, 3 n - 2 a layer
    pp         between the layers    activations forth, gradients back          the next stage, the one before
    pp         after all backwards   the two terms of a tied weight             the other end
    cp, dp     after that            one sum of all gradients, over dp x cp     the flattened group, once
    tp, pp     after that            the norm of the whole gradient             their group, one number
    none       at the end            the optimizer                              no rank (dp, if it is ZeRO)

The axes meet in one question: is a gradient a term of a sum, or a sample of a mean? Ranks of cp, of tp and of
pp compute terms of one loss, that of the rows of their replica: terms are summed. Replicas compute a loss
each, of rows of their own: the batch's loss is the mean of theirs. tp's sum is made in the layers and pp's by
`run_schedule`. The other two are left for this file:

    gradient = 1/dp  sum over dp  sum over cp   d (sum of the rank's losses / targets of the replica's rows)

Both are sums, and a sum of sums can be made at once: one all-reduce over the flattened group of dp x cp. It
comes when no microbatch is left, as the gradient of a mean over microbatches is complete only then.

Source: the composition of Megatron-LM (Narayanan et al., SC 2021, section 3); torchtitan's `train_step`
(Liang et al., 2024).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.pipeline import run_schedule
from course_lib.pipeline.actions import Schedule
from course_lib.pipeline.stage import Stage

from .mesh import Mesh
from .norm import clip_grad_norm
from .parts import my_part
from .stages import cut_names, parameters, tied_names

Microbatch = tuple[Tensor, Tensor]


def train_step(
    stages: Sequence[Stage],
    schedule: Schedule,
    batch: Microbatch,
    count: int,
    mesh: Mesh,
    optimizer: torch.optim.Optimizer,
    max_norm: float,
) -> tuple[float, float]:
    """One step of training on the whole `batch`; (loss, norm of the gradient before it was clipped).

    stages: from `mesh_stages`. schedule: for the ranks of pp and `count` microbatches.
    batch: inputs and targets (rows, seq) of the whole step, the same on all ranks; each replica takes its
        rows. optimizer: of the rank's parameters.
    """
    inputs, targets = batch
    rows, _ = my_part(mesh.rank, mesh.sizes, *inputs.shape)  # dp; the stages take cp's places
    mine = slice(rows.start, rows.stop)
    microbatches = list(zip(inputs[mine].chunk(count), targets[mine].chunk(count), strict=True))
    loss = hybrid_step(stages, schedule, microbatches, mesh)
    named = parameters(stages)
    norm = clip_grad_norm(named, max_norm, mesh, cut_names(stages), tied_names(stages))
    optimizer.step()
    optimizer.zero_grad()
    return loss, norm


def hybrid_step(
    stages: Sequence[Stage], schedule: Schedule, microbatches: Sequence[Microbatch], mesh: Mesh
) -> float:
    """Forward and backward of all microbatches on all axes; then any optimizer may step.

    stages, schedule: of this rank, from `mesh_stages`, and the schedule by which they were cut.
    microbatches: (inputs, targets) of the rows that this replica reads, whole along the sequence; the same
        on all ranks of pp, cp and tp.

    Adds to each parameter's `grad` the gradient of the loss, as one process has it: equal on all ranks of dp
    and cp, and, for parameters that are not cut, on those of tp. The loss is the mean over the replicas of
    the mean over each one's targets. Returned on all ranks alike.

    Sends, besides tp's, cp's and pp's own messages: 2 (n-1)/n of the gradient's bytes over the flattened
    group of n = dp cp ranks, in one all-reduce, and one number for the loss.
    """
    named = [param for stage in stages for param in stage.module.parameters()]
    params = list(dict.fromkeys(param for param in named if param.requires_grad))
    earlier = take_gradients(params)  # of a call before: they are sums already
    losses = run_schedule(stages, schedule, microbatches, mesh.group("pp"))  # pp; inside: cp, tp
    reduce_over_replicas(params, mesh)  # cp, dp
    add_gradients(params, earlier)
    total = sum(losses.values(), torch.zeros((), dtype=torch.float64)).to(mesh.device)
    dist.all_reduce(total, group=mesh.group(("pp", "dp", "cp")))  # of tp's ranks each has it
    return float(total) / mesh.size("dp")


@torch.no_grad()
def reduce_over_replicas(params: Sequence[nn.Parameter], mesh: Mesh) -> None:
    """Sum the gradients over cp and average them over dp, in place: one all-reduce for both."""
    if mesh.size(("dp", "cp")) == 1 or not params:
        return
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in params]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat, group=mesh.group(("dp", "cp")))
    flat /= mesh.size("dp")
    for param, total in zip(params, flat.split([p.numel() for p in params]), strict=True):
        param.grad = total.view_as(param)


def take_gradients(params: Sequence[nn.Parameter]) -> list[Tensor | None]:
    earlier: list[Tensor | None] = [param.grad for param in params]
    for param in params:
        param.grad = None
    return earlier


@torch.no_grad()
def add_gradients(params: Sequence[nn.Parameter], earlier: Sequence[Tensor | None]) -> None:
    for param, before in zip(params, earlier, strict=True):
        if before is not None:
            param.grad = before if param.grad is None else param.grad + before
