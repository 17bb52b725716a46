"""`run_schedule` as a program uses it, with the errors it raises. `run.py` does the schedule."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from . import run
from .actions import Schedule, stage_ranks
from .run import Microbatch
from .shared import Group
from .stage import Stage
from .validate import validate


def run_schedule(
    stage: Stage | Sequence[Stage],
    actions: Schedule,
    microbatches: Sequence[Microbatch],
    group: Group = None,
    count: float | Tensor | None = None,
) -> dict[int, Tensor]:
    """One step of training without the optimizer: forward and backward of all microbatches.

    Under `torch.no_grad()` it evaluates, so it does only the forwards, in their order, and returns the
    losses.

    stage: the stage of this rank, or the list of its stages; see `gpt_stages`.
    actions: the schedule, the same on all ranks, with a list of actions for each rank of `group`. To
        evaluate, a schedule that has only forwards is enough.
    microbatches: pairs of inputs and targets, the same on all ranks, on the stages' device; of any sizes.
        (A rank without the first stage needs only the inputs' shapes; a rank without the last stage needs
        only to know which targets count.)
    count: the number of targets by which the sum of the losses is divided; None: the targets of all
        microbatches, or 1 if none of them counts. Pipelines that share a batch take the number of targets of
        all pipelines.

    Adds to the parameters' `grad` the gradient of the mean loss over the targets of all microbatches. It is
    the same as in one process that runs the model on all of them, and equal on all ranks that share a
    parameter.
    Returns each microbatch's part of this loss, on the rank of its last stage, so their sum over all ranks is
    the loss. Microbatches without a target that counts add zeros. A stage without trained parameters takes
    part, and has nothing to do in its backwards unless a stage before it trains.

    Sends the output of each F to the rank of the next stage, and a gradient of the same size back for each B
    or I, but nothing between stages of one rank. For a shared parameter, it sends the gradient once to every
    other holder. Under NCCL, all ranks must have been in a collective call before.

    Raises ScheduleError, with the first mistake, if the schedule cannot be done, and ValueError if stages,
    ranks or microbatches do not fit the schedule, or if count is not above 0. Both are raised before anything
    is sent.
    """
    stages = [stage] if isinstance(stage, Stage) else list(stage)
    check(stages, actions, microbatches, dist.get_rank(group), dist.get_world_size(group))
    if count is not None and not count > 0:
        raise ValueError(f"count={count!r}: a mean is over one target or more")
    return run.run_schedule(stages, actions, microbatches, group, count)


def check(
    stages: Sequence[Stage],
    schedule: Schedule,
    microbatches: Sequence[Microbatch],
    rank: int,
    world_size: int,
) -> None:
    """Raise the errors of `run_schedule`."""
    if not stages:
        raise ValueError(f"rank {rank} was given no stage: every rank of the pipeline holds one")
    if not microbatches:
        raise ValueError("there are no microbatches: give at least one, as (inputs, targets)")
    length, copies = stages[0].length, stages[0].copies
    forward_only = not torch.is_grad_enabled()
    validate(schedule, copies * length, len(microbatches), copies, forward_only)
    if len(schedule) != world_size:
        raise ValueError(
            f"the schedule is for {len(schedule)} ranks and the group has {world_size}: make the schedule "
            "for as many ranks as there are"
        )
    held = sorted(stage.index for stage in stages)
    meant = sorted(stage for stage, holder in stage_ranks(schedule).items() if holder == rank)
    if held != meant:
        raise ValueError(
            f"rank {rank} was given stages {held}, but in this schedule it holds {meant}: cut the model by "
            "the schedule that is run"
        )
    for stage in stages:
        check_shared(stage)
        for inputs, _ in microbatches:
            stage.shape(inputs)  # it raises for sequences that the stage cannot take


def check_shared(stage: Stage) -> None:
    """Raise ValueError if a parameter shared by the stage is no longer a parameter of its module."""
    own = {id(param) for param in stage.module.parameters()}
    gone = [name for name, (param, _) in stage.shared.items() if id(param) not in own]
    if gone:
        raise ValueError(
            f"stage {stage.index} shares {gone[0]} with other stages, and its module does not hold it: it "
            "was cut into shards. The stages cut it in different places: their gradients cannot be added. "
            "Give the model a head of its own (tied=False) before you shard its stages"
        )
