"""Recipe (see `harness`): a student's `make_step` as one rank of a large mesh, in a dry run.

The process becomes that rank, and nothing else can run in it afterwards: a case has one rank alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from course_lib.checks.wire import Count, Instructions
from course_lib.dry.plan import Plan
from course_lib.dry.rehearsal import rehearse, whole_batch
from course_lib.dry.traffic import by_axis
from course_lib.ledger.operation import Operation
from course_lib.ledger.recorder import current_recorder
from course_lib.mesh.mesh import Mesh
from course_lib.models import GPTConfig
from course_lib.planning import Layout

_rehearse, _whole_batch, _by_axis, _recorder = rehearse, whole_batch, by_axis, current_recorder
SMALL = 64  # bytes: losses, counts and norms, which take no bandwidth
RATE = 0.1
LARGEST = 1e18  # bytes; none are as many, and infinity is not


@dataclass(frozen=True)
class DryInstructions(Instructions):
    """sizes: of the mesh; config: of the GPT; most: messages along pp after which the step is ended."""

    sizes: dict[str, int]
    rank: int
    config: dict[str, Any]
    microbatches: int
    most: int


@dataclass
class DryReply:
    """A rank's record. calls, setup_calls: [axes, operation, how many]; bytes: by axes; both without small
    tensors. kinds: see `DryRun.by_kind`. stopped: whether the step was ended as it sent too much.
    """

    bytes: dict[str, float] = field(default_factory=dict)
    calls: list[tuple[str, str, Count]] = field(default_factory=list)
    setup_calls: list[tuple[str, str, Count]] = field(default_factory=list)
    kinds: dict[str, Count] = field(default_factory=dict)
    stopped: bool = False

    def complete(self, _: Instructions) -> bool:
        """Whether all bytes are numbers that a rank could send."""
        return all(0 <= nbytes < LARGEST for nbytes in self.bytes.values())


class TooManyMessages(Exception):
    """The step has sent more messages than any schedule of its microbatches."""


def as_one_rank(
    objects: list, tensors: dict[str, torch.Tensor], groups: list, instructions: DryInstructions
) -> tuple[DryReply, dict[str, Any]]:
    """`make_step(config, layout, mesh, batch_size, lr)`, and one call of the step that it returns."""
    sizes, count = instructions.sizes, instructions.microbatches
    config = GPTConfig(**instructions.config)
    plan = Plan(sizes, instructions.rank, config, count, 1, torch.float32)

    def setup(config: GPTConfig, mesh: Mesh, microbatches: int) -> Any:
        layout = Layout(sizes, microbatch=1, recompute="none")
        return objects[0](config, layout, mesh, layout.dp * microbatches, RATE)

    def step(made: Any, mesh: Mesh, microbatches: list) -> None:
        end_after(instructions.most)
        made(*_whole_batch(microbatches, mesh))

    try:
        run = _rehearse(plan, setup, step)
    except TooManyMessages:
        return DryReply(stopped=True), {}
    sent, calls = _by_axis(large(run.ledger.operations(instructions.rank)), sizes)
    return DryReply(sent, listed(calls), listed(run.setup_calls), dict(run.by_kind)), {}


def end_after(most: int) -> None:
    """End the step when it begins another message: a whole batch on one rank would take a minute."""
    recorder, sent = _recorder(), 0
    add = recorder.add

    def add_and_count(op: str, *args: Any, **kwargs: Any) -> int:
        nonlocal sent
        sent += op == "send"
        if sent > most:
            raise TooManyMessages
        return add(op, *args, **kwargs)

    recorder.add = add_and_count


def large(operations: Sequence[Operation]) -> list[Operation]:
    """Operations on more than a few numbers, and those without a tensor, which make a group or wait."""
    return [o for o in operations if o.nbytes > SMALL or o.op in ("new_group", "barrier")]


def listed(calls: Any) -> list[tuple[str, str, Count]]:
    return [(axes, op, count) for (axes, op), count in calls.items()]
