"""Programs on a mesh of one axis: stages of a GPT, and one step for all axes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from course_lib.mesh import (
    Mesh,
    clip_grad_norm,
    cut_names,
    hybrid_step,
    mesh_stages,
    my_part,
    parameters,
    tied_names,
)
from course_lib.models import GPT
from course_lib.pipeline.generators import one_f_one_b
from course_lib.tensor_parallel.cut import Parallel

from .programs import CHECKPOINTS, MAX_NORM, OVERFLOWING, STEPS, Trainer, a_batch, halves, make, sgd


class OnMesh(Trainer):
    kind, spread = GPT, 0
    axis = "dp"

    def build(self, seed: int) -> None:
        self.mesh = Mesh({self.axis: self.n})
        self.schedule = one_f_one_b(self.mesh.size("pp"), 2 if self.plan.accumulate else 1)
        model = make(self.plan, seed, GPT)
        for block in model.blocks:
            block.forward = partial(CHECKPOINTS[self.plan.checkpoint], block.forward)  # type: ignore[method-assign]
        self.stages = mesh_stages(model, self.mesh, self.schedule)
        for stage in self.stages:
            stage.loss = partial(self.scaled, stage.loss)
        self.named, self.overflows = parameters(self.stages), False
        self.optimizer = sgd([param for _, param in self.named])

    def scaled(self, loss: Any, output: Tensor, targets: Tensor) -> Tensor:
        """The stage's loss: so a scaler gets into a step that does its own backward."""
        value = loss(output, targets)
        if self.scaler is None or not torch.is_grad_enabled():
            return value
        if self.overflows and self.rank == self.n - 1:
            value = value + output.sum() * torch.inf
        return self.scaler.scale_loss(value)

    def backward(self, number: int) -> None:
        self.overflows = self.plan.scaler and number == OVERFLOWING
        inputs, targets = a_batch(self.plan, self.seed, number)
        rows, _ = my_part(self.rank, self.mesh.sizes, *inputs.shape)
        mine = slice(rows.start, rows.stop)
        microbatches = halves(inputs[mine], targets[mine], self.plan)
        loss = hybrid_step(self.stages, self.schedule, microbatches, self.mesh)
        if not self.scaler:
            self.result.losses.append(loss)

    def clip(self) -> float:
        cut, tied = cut_names(self.stages), tied_names(self.stages)
        return clip_grad_norm(self.named, MAX_NORM, self.mesh, cut, tied)

    @torch.no_grad()
    def evaluate(self) -> float:
        inputs, targets = a_batch(replace(self.plan, masked=False), self.seed, STEPS)
        batch = halves(inputs, targets, self.plan)  # all rows on each replica
        return hybrid_step(self.stages, self.schedule, batch, self.mesh)

    def weights(self) -> dict[str, Tensor]:
        bounds = {
            id(getattr(layer, name)): (cut.dim, *cut.bounds())
            for stage in self.stages
            for layer in stage.module.modules()
            if isinstance(layer, Parallel)
            for name, cut in layer.cuts.items()
        }
        self.result.parts = {name: bounds[id(p)] for name, p in self.named if id(p) in bounds}
        return {name: param.detach() for name, param in self.named}

    @torch.no_grad()
    def load(self, state: Any) -> None:
        for name, param in self.named:
            param.copy_(state[0][name])
        self.optimizer.load_state_dict(state[1])


class Pipeline(OnMesh):
    axis = "pp"


class TensorParallel(OnMesh):
    axis = "tp"


class ContextParallel(OnMesh):
    axis = "cp"
