"""A step on a mesh: all axes, in the order in which they are applied.

    axis       moment                content                                    receiver
    dp, ep, cp before the step       its rows, its positions (`my_part`)        no rank
    tp         inside each layer     sums of partial products                   its group, 4 a layer
    ep         inside each mixture   rows to their experts and back             its group, 5 a layer
    cp         inside attention      keys and values go around                  its group, 3 n - 2 a layer
    pp         between the layers    activations forth, gradients back          the next stage, the one before
    pp         after all backwards   the two terms of a tied weight             the other end
    cp, ep, dp after that            one sum of all gradients, over dp x ep x cp    the flattened group, once
    tp, ep, pp after that            the norm of the whole gradient             their group, one number
    none       at the end            the optimizer                              no rank (dp, if it is ZeRO)

The axes meet in one question: is a gradient a term of a sum, or a sample of a mean? The loss of a batch is
the mean over all its targets. In other words, it is a sum over tokens, each divided by one number, the number
of targets in the whole batch. If every rank divides by this number, the ranks of every axis hold terms:

    gradient = sum over dp  sum over cp   d (sum of the rank's losses / targets of the batch)

The sum over tp is made in the layers, and the sum over pp by `run_schedule`. The other two are left for this
file, and since a sum of sums is one sum, one all-reduce over the flattened group of dp x cp makes both. It
runs when no microbatch is left, because the gradient of a mean over microbatches is complete only then.

Ranks of ep are replicas with other rows, except for their experts. An expert has seen the rows of all ranks
of ep, so its gradient is summed only over dp x cp, but all other gradients over dp x ep x cp. Nothing is
divided by either number of ranks.

A replica that divides by its own targets has a sample of a mean. But the mean of the replicas' means is
another loss as soon as replicas differ in their number of targets, because of padding, masked prompts or a
short last batch. A replica with 2 targets would then weigh as much as one with 16, and a replica without
targets would make the loss nan.

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
from .stages import cut_names, expert_names, expert_parameters, parameters, tied_names

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
        rows, and cuts them into its microbatches. If a number does not divide the rows, the first parts are
        one longer. optimizer: of the rank's parameters.

    Raises ValueError if a microbatch would have no row, before anything is sent.
    """
    loss = hybrid_step(stages, schedule, microbatches_of(batch, count, mesh), mesh)
    named = parameters(stages)
    names = cut_names(stages), tied_names(stages), expert_names(stages)
    norm = clip_grad_norm(named, max_norm, mesh, *names)
    optimizer.step()
    optimizer.zero_grad()
    return loss, norm


def microbatches_of(batch: Microbatch, count: int, mesh: Mesh) -> list[Microbatch]:
    """The rows of the whole `batch` that this replica reads, in `count` microbatches."""
    inputs, targets = batch
    replicas = mesh.size(("dp", "ep"))
    if len(inputs) // replicas < count:
        raise ValueError(
            f"{len(inputs)} rows are too few for {replicas} replicas (dp x ep) with {count} microbatches "
            f"each: give at least {replicas * count} rows, or make fewer microbatches"
        )
    batch_size, seq = inputs.shape
    rows, _ = my_part(mesh.rank, mesh.sizes, batch_size, seq)  # dp; the stages take cp's places
    parts = (whole[rows.start : rows.stop].tensor_split(count) for whole in (inputs, targets))
    return list(zip(*parts, strict=True))


def hybrid_step(
    stages: Sequence[Stage], schedule: Schedule, microbatches: Sequence[Microbatch], mesh: Mesh
) -> float:
    """Forward and backward of all microbatches on all axes; then any optimizer can step.

    Under `torch.no_grad()` it evaluates, so it does only the forwards, and returns the loss.

    stages, schedule: of this rank, from `mesh_stages`, and the schedule by which they were cut.
    microbatches: (inputs, targets) of the rows read by this replica, whole along the sequence; the same on
        all ranks of pp, cp and tp.

    Adds to each parameter's `grad` the gradient of the loss, as one process would compute it. It is equal on
    all ranks of dp and cp and, for parameters that are not cut, also on the ranks of ep and tp. The loss is
    the mean over the targets of all replicas, which can have unequally many, or none. It is returned on all
    ranks.

    In addition to the messages of tp, cp and pp, it sends 2 (n-1)/n of the gradient's bytes over the
    flattened group of n = dp ep cp ranks, in one all-reduce, and two numbers, the count of the targets and
    the loss. Experts' gradients go over dp cp ranks, in an all-reduce of their own.

    Raises ValueError if no target of any replica counts.
    """
    params = trained(stages) if torch.is_grad_enabled() else []
    count = targets_of_all(stages[0], microbatches, mesh)
    earlier = take_gradients(params)  # of a call before, which are sums already
    losses = run_schedule(stages, schedule, microbatches, mesh.group("pp"), count)  # inside: cp, tp
    experts = {id(param) for param in expert_parameters(stages)}
    sum_over_replicas([p for p in params if id(p) not in experts], mesh, ("dp", "ep", "cp"))
    sum_over_replicas([p for p in params if id(p) in experts], mesh, ("dp", "cp"))
    add_gradients(params, earlier)
    total = sum(losses.values(), torch.zeros((), dtype=torch.float64)).to(mesh.device)
    dist.all_reduce(total, group=mesh.group(("pp", "dp", "ep", "cp")))  # of tp's ranks each has it
    return float(total)


def trained(stages: Sequence[Stage]) -> list[nn.Parameter]:
    """The parameters that get a gradient, each once."""
    params = (param for stage in stages for param in stage.module.parameters())
    return list(dict.fromkeys(param for param in params if param.requires_grad))


def targets_of_all(stage: Stage, microbatches: Sequence[Microbatch], mesh: Mesh) -> float:
    """The number of targets that count in the whole batch. Ranks of cp are given the same whole rows."""
    own = float(sum(stage.count(targets) for _, targets in microbatches))
    count = torch.tensor(own, dtype=torch.float64, device=mesh.device)
    dist.all_reduce(count, group=mesh.group(("dp", "ep")))
    if count == 0:
        raise ValueError("no target of the batch counts: there is nothing to take the mean over")
    return count.item()


@torch.no_grad()
def sum_over_replicas(params: Sequence[nn.Parameter], mesh: Mesh, axes: tuple[str, ...]) -> None:
    """Sum the gradients over all ranks of the axes, in place, by one all-reduce."""
    if mesh.size(axes) == 1 or not params:
        return
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in params]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat, group=mesh.group(axes))
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
