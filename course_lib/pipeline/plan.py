"""What a rank does, its messages included: where among its actions it sends and receives.

A schedule says in which order a rank computes. Messages can still block each other: with gloo a send is not
done before its receive is there, and NCCL does what is posted between ranks one after the other, so that two
ranks that both send first wait for ever. What helps is one order for all of them. Run the schedule against a
clock, and list everything that happens, each action followed by its message, by the time when the action
starts. Each rank takes from this list what it is part of, its own actions, its sends and its receives, and
does it in this order. Of all that is not yet done, the first in the list then has nothing before it on either
of its ranks: it can always go on, whoever blocks whom, and so can the rest after it.

By the start of the action, and not by its end: so a rank has posted its receive before it begins what it
computes meanwhile, and the message travels behind that.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from .actions import Action, Schedule, chain_length, parts, stage_ranks
from .simulate import simulate


class Step(NamedTuple):
    """One thing that a rank does: compute `action`, or "send" its output to, or "receive" it from `peer`."""

    what: str
    action: Action
    peer: int = -1


def plan(schedule: Schedule, rank: int, copies: int = 1) -> list[list[Step]]:
    """The steps of `rank` in order, an action alone, and messages that follow each other together.

    schedule: a valid one. Messages that stand together are posted as one: none needs the other's result.
    Cost: that of a simulation.
    """
    steps = _steps(schedule, rank, copies)
    groups = groupby(enumerate(steps), key=_batch)
    return [[step for _, step in group] for _, group in groups]


def receiver(action: Action, length: int) -> int | None:
    """The stage that needs the output of `action`, if any does; `length`: stages of one copy of the model."""
    if action.kind == "F" and (action.stage + 1) % length:
        return action.stage + 1
    if action.kind in ("B", "I") and action.stage % length:
        return action.stage - 1
    return None


def made(action: Action) -> Action:
    """By what an action's output is called: a gradient is a backward's, whether whole or in halves."""
    return action._replace(kind="B") if action.kind == "I" else action


def _steps(schedule: Schedule, rank: int, copies: int) -> Iterator[Step]:
    ranks = stage_ranks(schedule)
    length = chain_length(len(ranks), copies)
    for event in simulate(schedule, copies=copies, checked=True).events:
        for action in parts(event.action):
            if event.rank == rank:
                yield Step("compute", action)
            stage = receiver(action, length)
            if stage is None or ranks[stage] == event.rank:
                continue
            if event.rank == rank:
                yield Step("send", made(action), ranks[stage])
            elif ranks[stage] == rank:
                yield Step("receive", made(action), event.rank)


def _batch(numbered: tuple[int, Step]) -> int:
    """Equal for messages that follow each other: -1; for every action another number."""
    number, step = numbered
    return number if step.what == "compute" else -1
