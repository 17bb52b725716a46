"""A schedule is data. It lists the actions of each rank, in the order in which the rank does them.

An action is one pass of one microbatch through one stage. Stages are counted along the model, from 0,
whichever rank holds them. For example, of four stages on two ranks, rank 0 can hold stages 0 and 2 (a loop)
or 0 and 3 (a V). A schedule does not contain times, because an action runs as soon as its rank is done with
the action before and its input has arrived.

The vocabulary is the same as in `torch.distributed.pipelining`, but Qi et al. (Zero Bubble Pipeline
Parallelism, ICLR 2024) write B for the action called I here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

KINDS = {
    "F": "forward",
    "B": "backward",
    "I": "input-gradient half of the backward",
    "W": "weight-gradient half of the backward",
}


class Action(NamedTuple):
    """One pass of one microbatch through one stage; `Action(2, "F", 0)` is written 2F0.

    kind: "F" forward, "B" the whole backward, or its halves: "I" the gradient of the stage's input,
    for which the stage before waits, and "W" the gradient of its weights, for which no stage waits.
    """

    stage: int
    kind: str
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"


class Pair(NamedTuple):
    """A forward and the backward of another microbatch, computed as one block.

    The communication of each hides behind the computation of the other (DeepSeek-V3 Technical Report,
    section 3.2.1).
    """

    forward: Action
    backward: Action

    def __str__(self) -> str:
        return f"({self.forward};{self.backward})OVERLAP_F_B"


Schedule: TypeAlias = Sequence[Sequence[Action | Pair]]


def parts(action: Action | Pair) -> tuple[Action, ...]:
    """A tuple of the single action, or of the two actions of a pair."""
    return tuple(action) if isinstance(action, Pair) else (action,)


def flat(row: Sequence[Action | Pair]) -> Iterator[Action]:
    """A rank's actions one by one; a pair's forward comes before its backward."""
    for action in row:
        yield from parts(action)


def forwards(schedule: Schedule) -> list[list[Action]]:
    """The forwards of a schedule, in its order, which are the part of a step that evaluates."""
    return [[action for action in flat(row) if action.kind == "F"] for row in schedule]


def stage_ranks(schedule: Schedule) -> dict[int, int]:
    """The rank that holds each stage and does its actions; the schedule must be valid."""
    return {action.stage: rank for rank, row in enumerate(schedule) for action in flat(row)}


def chain_length(stages: int, copies: int) -> int:
    """The number of stages of one copy of the model, if `copies` copies are numbered one after the other."""
    if copies < 1 or stages % copies:
        raise ValueError(
            f"{stages} stages cannot be {copies} copies of one model: the number of copies must be at least "
            "1 and divide the number of stages"
        )
    return stages // copies


def source(action: Action, length: int) -> Action | None:
    """The action of another stage, a forward "F" or a backward "B", whose output `action` needs.

    length: stages of one copy of the model, whose first stage needs no other stage's activations, and whose
    last needs no other stage's gradients. Either "B" or "I" provides the output of a backward.
    """
    if action.kind == "F" and action.stage % length:
        return Action(action.stage - 1, "F", action.microbatch)
    if action.kind in ("B", "I") and (action.stage + 1) % length:
        return Action(action.stage + 1, "B", action.microbatch)
    return None
