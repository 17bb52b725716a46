"""A rank's plan: its actions, with its sends and receives between them.

A schedule says in which order a rank computes. But messages can still block each other. With gloo, a send is
not done before its receive is posted, and NCCL runs the messages between two ranks one after the other, so
two ranks that both send first wait forever. A common order for all ranks prevents this. Run the schedule
against a clock, and list all actions, each followed by its message, by the time when the action starts. Each
rank takes its own actions, sends and receives from this list and does them in this order. Then the first
entry that is not yet done has nothing before it on either of its ranks, so it can always go on, whatever
blocks the others, and so can the rest after it.

The list is ordered by the start of the action instead of its end. So a rank has posted its receive before it
begins its next action, and the message travels while the rank computes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from .actions import Action, Schedule, chain_length, parts, stage_ranks
from .timing import Clock, Durations, events


class Step(NamedTuple):
    """One step of a rank: "compute" `action`, or "send" its output to `peer`, or "receive" it from `peer`."""

    what: str
    action: Action
    peer: int = -1


def plan(schedule: Schedule, rank: int, copies: int = 1) -> list[list[Step]]:
    """The steps of `rank` in order, with each action by itself and successive messages in one list.

    schedule: a valid schedule. Messages in one list are posted together, since none needs the result of
        another.
    Cost: the same as for a simulation.
    """
    steps = _steps(schedule, rank, copies)
    groups = groupby(enumerate(steps), key=_batch)
    return [[step for _, step in group] for _, group in groups]


def receiver(action: Action, length: int) -> int | None:
    """The stage that needs the output of `action`, or None; `length`: stages of one copy of the model."""
    if action.kind == "F" and (action.stage + 1) % length:
        return action.stage + 1
    if action.kind in ("B", "I") and action.stage % length:
        return action.stage - 1
    return None


def made(action: Action) -> Action:
    """The name of an action's output; a gradient belongs to B, even if the backward is in halves."""
    return action._replace(kind="B") if action.kind == "I" else action


def _steps(schedule: Schedule, rank: int, copies: int) -> Iterator[Step]:
    ranks = stage_ranks(schedule)
    length = chain_length(len(ranks), copies)
    clock = Clock(schedule, [Durations()] * len(ranks), length)
    clock.run()
    for event in events(schedule, clock.starts, clock.ends):
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
    """A key for groupby, -1 for messages, which are grouped, and a different number for every action."""
    number, step = numbered
    return number if step.what == "compute" else -1
