"""A schedule, done by the ranks of a pipeline.

Each rank goes through its `plan`. It computes the next action, and posts the messages before and after it
without waiting for them. It waits only for the message an action needs.

    F   wait for the input; the module's forward; the output goes to the next stage; the graph is kept
    B   wait for the gradient; backward through the graph, which is freed; the input's gradient goes back
    I   the same, with the weights' half put aside (`halves.py`)
    W   the weights' half
    a pair: the forward's output travels while the backward computes

The loss is a mean over all targets of the batch, in all microbatches. So the last stage divides the sum of
each microbatch by the number of targets of the whole batch, because the mean of the microbatches' means is
another number as soon as they differ in size. If several pipelines share the batch (data parallelism), all of
them divide by the number of targets of all pipelines, `count`, so each computes a term of one sum.

Without gradients (`torch.no_grad()`), the same schedule evaluates. Only the forwards of its actions are left,
and nothing is kept.

Between the F and the B of a microbatch, the rank keeps the tensors saved by autograd, and the way into its
graph. It does not keep the output after sending it.

Read on in `plan.py` (the order of messages, in which no rank waits forever) and `messages.py` (how they are
posted). The package exports `run_schedule` from `checked.py`, which first refuses what cannot be done.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from .actions import Action, Schedule, flat, forwards, source
from .halves import LaterWeights
from .messages import Messages
from .plan import Step, made, plan
from .shared import Group, add_gradients, take_gradients
from .stage import Stage

Microbatch = tuple[Tensor, Tensor]


def run_schedule(
    stages: Sequence[Stage],
    actions: Schedule,
    microbatches: Sequence[Microbatch],
    group: Group = None,
    count: float | Tensor | None = None,
) -> dict[int, Tensor]:
    """Forward and backward of all microbatches; `checked.py` explains the arguments, and refuses wrong ones.

    Returns each microbatch's part of the loss, on the rank of its last stage.
    """
    rank = dist.get_rank(group)
    trains = torch.is_grad_enabled()
    actions = actions if trains else forwards(actions)
    shared = [stage.shared for stage in stages] if trains else []
    earlier = take_gradients(shared)
    run = RankState(stages, actions[rank], microbatches, group, count)
    run.follow(plan(actions, rank, stages[0].copies))
    add_gradients(shared, earlier, rank, group)
    return run.losses


class _Kept(NamedTuple):
    """A microbatch between its F and its B: its input, the way into its graph, the weights' half.

    edge: None if the stage has done nothing that is trained, so that there is no graph.
    """

    x: Tensor
    edge: GradientEdge | None
    later: LaterWeights | None


class RankState:
    """The state of a rank: the kept tensors of each microbatch in each of its stages."""

    def __init__(
        self,
        stages: Sequence[Stage],
        row: Sequence,
        microbatches: Sequence[Microbatch],
        group: Group,
        count: float | Tensor | None = None,
    ):
        self.stages = {stage.index: stage for stage in stages}
        self.microbatches = microbatches
        self.messages = Messages(group, self._empty)
        self.losses: dict[int, Tensor] = {}
        self.kept: dict[tuple[int, int], _Kept] = {}
        self.later: dict[tuple[int, int], LaterWeights] = {}
        self.halved = {
            (action.stage, action.microbatch) for action in flat(row) if action.kind == "I"
        }
        self.count = targets_of(stages[0], microbatches) if count is None else count

    def follow(self, steps: Sequence[Sequence[Step]]) -> None:
        """Do all steps of a plan, and wait until the last message has gone."""
        for together in steps:
            if together[0].what == "compute":
                self.compute(together[0].action)
            else:
                self.messages.post(together)
        self.messages.settle(left=0)

    def compute(self, action: Action) -> None:
        """Do one action: F, B, I or W."""
        do = {"F": self._forward, "B": self._backward, "I": self._backward, "W": self._weights}
        do[action.kind](action)

    def _forward(self, action: Action) -> None:
        stage, place = self.stages[action.stage], (action.stage, action.microbatch)
        inputs, targets = self.microbatches[action.microbatch]
        needed = source(action, stage.length)
        x = inputs if needed is None else self.messages.take(needed)
        if needed is not None and torch.is_grad_enabled():
            x.requires_grad_()
        later = LaterWeights() if place in self.halved else None
        with later or nullcontext():
            output = stage.module(x)
            if stage.last:
                output = stage.loss(output, targets) / self.count
        if torch.is_grad_enabled():
            # of a view, since in PyTorch 2.6 a custom Function's output edge does not keep its node alive
            trained = output.requires_grad
            edge = get_gradient_edge(output.view_as(output)) if trained else None
            self.kept[place] = _Kept(x, edge, later)
        if stage.last:
            self.losses[action.microbatch] = output.detach()
        else:
            self.messages.put(action, output.detach().contiguous())
        self.messages.settle()

    def _backward(self, action: Action) -> None:
        stage, place = self.stages[action.stage], (action.stage, action.microbatch)
        needed = source(action, stage.length)
        gradient = None if needed is None else self.messages.take(needed)
        x, edge, later = self.kept.pop(place)
        if edge is not None:
            torch.autograd.backward((edge,), (gradient,))
        if later is not None:
            self.later[place] = later
        if not stage.first:
            back = torch.zeros_like(x) if x.grad is None else x.grad
            self.messages.put(made(action), back.contiguous())
        self.messages.settle()

    def _weights(self, action: Action) -> None:
        self.later.pop((action.stage, action.microbatch)).finish()

    def _empty(self, action: Action) -> Tensor:
        """A tensor for the output of another rank's `action`, as all stages pass on tensors of one shape."""
        stage = next(iter(self.stages.values()))
        inputs = self.microbatches[action.microbatch][0]
        return torch.empty(tuple(stage.shape(inputs)), dtype=stage.dtype, device=inputs.device)


def targets_of(stage: Stage, microbatches: Sequence[Microbatch]) -> Tensor:
    """The number of targets that count, or 1 if none does; the sum of no losses is 0, and so is its mean."""
    return torch.as_tensor(sum(stage.count(targets) for _, targets in microbatches)).clamp(min=1)
