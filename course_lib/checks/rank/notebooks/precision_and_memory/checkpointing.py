"""Recipe (see `harness`) that drives a `checkpoint(function, *args)`. It decides nothing.

The reply has the tensors of each run's step under "NAME." (see `checkpointed.Step`), and a `CheckpointReply`.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from course_lib.checks.rank import frozen
from course_lib.checks.rank.agreed import Expects, as_agreed
from course_lib.checks.rank.backward import type_of
from course_lib.checks.rank.counting import Saved, alive
from course_lib.checks.rank.harness import describe
from course_lib.checks.rank.memory import Patience
from course_lib.checks.rank.notebooks.precision_and_memory.checkpointed import Checkpoint, Step, draw
from course_lib.checks.rank.peak import Peak
from course_lib.checks.wire import Count, Instructions, Place


@dataclass
class CheckpointReply:
    """The reply about a run.

    misfit: the outputs as text, if they do not have the agreed form; detached: whether the loss knows no
    graph; missing: names of tensors that are not there, with zeros in their place; changed: arguments that
    need a gradient now, and did not before; kept: bytes kept for backward; forward, backward: the most alive
    in each; flops: of products, forward and backward.
    """

    error: Place | None = None
    misfit: str = ""
    detached: bool = False
    missing: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    kept: Count | None = None
    forward: Count | None = None
    backward: Count | None = None
    flops: list[Count] = field(default_factory=list)


@dataclass(frozen=True)
class CheckpointRun:
    """One run.

    name       of the run
    kind       one of `checkpointed.KINDS`, with its sizes
    seed       of its numbers
    measured   whether bytes and FLOPs are counted
    expects    {name: [dtype, shape]} of the tensors in the reply
    """

    name: str
    kind: str
    sizes: dict[str, Any]
    seed: int
    measured: bool
    expects: Expects


@dataclass(frozen=True)
class CheckpointInstructions(Instructions):
    runs: list[CheckpointRun]

    def parts(self) -> list[str]:
        return [run.name for run in self.runs]


class CheckpointedStep:
    """One step with the student's checkpoint."""

    def __init__(self, checkpoint: Checkpoint, run: CheckpointRun, patience: Patience):
        self.checkpoint, self.patience, self.name = checkpoint, patience, run.name
        self.measured, self.expects = run.measured, run.expects
        self.step = Step(run.kind, run.sizes, run.seed)
        self.reply = CheckpointReply()

    def go(self) -> None:
        step = self.step
        known = [*step.inputs.values(), *step.model.parameters()]
        peak = Peak(known, self.patience, f"{self.name}.forward") if self.measured else None
        self.forward(peak)
        step.drawn["between"] = draw()
        self.backward(peak)
        step.drawn["after"] = draw()

    def forward(self, peak: Peak | None) -> None:
        step, model = self.step, self.step.model
        if peak is None:
            with model.within():
                step.forward(self.checkpoint)
            return
        before = alive()
        with model.within(), Saved(model.parameters()) as saved, peak:
            made = step.forward(self.checkpoint)
        self.reply.kept = self.patience.measured(
            f"{self.name}.kept", lambda: saved.still_kept() + saved.beside(before, made)
        )
        self.reply.forward, self.reply.flops = peak.highest, [peak.flops]
        peak.start_again(f"{self.name}.backward")

    def backward(self, peak: Peak | None) -> None:
        if not self.step.has_form:
            self.reply.misfit = ", ".join(type_of(output) for output in self.step.outputs) or "nothing"
            return
        loss = self.step.loss()
        if not loss.requires_grad:
            self.reply.detached = True
            return
        with peak or nullcontext():
            loss.backward()
        if peak is not None:
            self.reply.backward = peak.highest
            self.reply.flops.append(peak.flops)

    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors of the reply, all of them in the form that was agreed."""
        came, misfits = self.step.tensors(), dict[str, str]()
        sent = as_agreed(came, self.expects, misfits)
        others = [name for name in misfits if isinstance(came.get(name), frozen.Tensor)]
        if others and not self.reply.misfit:
            kind, shape = self.expects[others[0]]
            self.reply.misfit = f"{misfits[others[0]]} instead of {kind}{shape}"
        self.reply.missing += misfits
        self.reply.changed = self.step.changed
        return {f"{self.name}.{name}": tensor for name, tensor in sent.items()}


def checkpoints(
    objects: list, tensors: dict[str, torch.Tensor], groups: list, instructions: CheckpointInstructions
) -> tuple[dict[str, CheckpointReply], dict[str, Any]]:
    """Every run of the instructions, one after the other."""
    values: dict[str, CheckpointReply] = {}
    outputs: dict[str, torch.Tensor] = {}
    patience = Patience(instructions.enough)
    for described in instructions.runs:
        run = CheckpointedStep(objects[0], described, patience)
        try:
            run.go()
        except Exception as error:
            if isinstance(error, NotImplementedError) and not values and not str(error):
                raise
            run.reply.error = describe(error)
        values[run.name] = run.reply
        outputs |= run.tensors()
    return values, outputs
