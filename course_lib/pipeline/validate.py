"""The first mistake of a schedule, as a sentence.

Every stage is on one rank. Every microbatch goes through every stage forward once and backward once, whole
(B) or in halves (I, then W). A forward needs the forward of the stage before, and a backward needs the
backward of the stage after. A rank does its actions in order, so ranks must not wait for each other in a
cycle, because none of them would ever go on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from .actions import KINDS, Action, Pair, Schedule, parts, source

Where = tuple[int, int]  # a rank, and the place in its list, from 0


class ScheduleError(ValueError):
    """A schedule that cannot be done, or that would not be a step of training."""


def validate(
    schedule: Schedule,
    stages: int | None = None,
    microbatches: int | None = None,
    copies: int = 1,
    forward_only: bool = False,
) -> None:
    """Raise ScheduleError with the first violation, if there is one; arguments as for `violation`."""
    sentence = violation(schedule, stages, microbatches, copies, forward_only)
    if sentence is not None:
        raise ScheduleError(sentence)


def violation(
    schedule: Schedule | None,
    stages: int | None = None,
    microbatches: int | None = None,
    copies: int = 1,
    forward_only: bool = False,
) -> str | None:
    """The first violation, or None if the schedule is good.

    stages, microbatches: how many there must be of each; None: as many as the schedule names.
    copies: the number of copies of the model. With two, as in DualPipe, the first half of the stages is one
    copy and does the first half of the microbatches, and the second half does the rest. forward_only: for
    evaluation, in which backwards can be missing.
    To find the first, it goes through the lists, rank by rank, then looks for missing actions, and then for
    ranks that wait for each other. A function that forgot its `return` gives None, which is also a violation.
    """
    if schedule is None:
        return "the schedule is None: is there a `return`?"
    if not schedule or not any(schedule):
        return "the schedule is empty: no rank does anything"
    for check in (_malformed, _misplaced, _disorder):
        if sentence := check(schedule):
            return sentence
    places = _places(schedule)
    stages = stages or 1 + max(action.stage for action in places)
    microbatches = microbatches or 1 + max(action.microbatch for action in places)
    if copies < 1 or stages % copies or microbatches % copies:
        return f"{stages} stages and {microbatches} microbatches are not shared evenly by {copies} copies"
    length, share = stages // copies, microbatches // copies
    return (
        _foreign(places, length, share, stages, microbatches)
        or _missing(places, length, share, stages, microbatches, forward_only)
        or _deadlock(schedule, places, length)
    )


def _malformed(schedule: Schedule) -> str | None:
    """Entries that are not actions."""
    for rank, row in enumerate(schedule):
        if not isinstance(row, list | tuple) or isinstance(row, Action | Pair):
            return f"rank {rank}: {row!r} is not a list of actions"
        if not row:
            return f"rank {rank} does nothing: its list is empty, and it holds no stage"
        for index, entry in enumerate(row):
            where = f"rank {rank}, action {index}"
            if not isinstance(entry, Action | Pair):
                return f"{where}: {entry!r} is neither an Action nor a Pair"
            for action in parts(entry):
                if not isinstance(action, Action) or action.kind not in list(KINDS):
                    return f"{where}: {action!r} is not an action: its kind must be one of {', '.join(KINDS)}"
                for name, number in (("stage", action.stage), ("microbatch", action.microbatch)):
                    if not isinstance(number, int) or number < 0:
                        return f"{where}: {name} {number!r} of {action!r} must be a whole number from 0 on"
            if isinstance(entry, Pair) and (entry[0].kind, entry[1].kind) != ("F", "B"):
                return f"{where}: {entry} must pair a forward F with a whole backward B"
            if isinstance(entry, Pair) and entry[0][::2] == entry[1][::2]:
                return f"{where}: {entry} would do a forward and its own backward at once"
    return None


def _misplaced(schedule: Schedule) -> str | None:
    """A stage on two ranks."""
    first: dict[int, tuple[int, Action]] = {}
    for rank, index, action in _walk(schedule):
        holder, earlier = first.setdefault(action.stage, (rank, action))
        if holder != rank:
            return (
                f"rank {rank}, action {index} ({action}): stage {action.stage} lives on rank {holder}, "
                f"which does {earlier}. All of a stage's actions belong to the rank that holds its weights"
            )
    return None


def _disorder(schedule: Schedule) -> str | None:
    """An action that is done twice, or before another that its rank has to do first."""
    done: dict[Action, int] = {}
    later = _places(schedule)
    for rank, index, action in _walk(schedule):
        where = f"rank {rank}, action {index} ({action})"
        if action in done:
            return (
                f"{where}: rank {rank} did {action} before, as its action {done[action]}. A microbatch goes "
                "through a stage forward once and backward once"
            )
        other = action._replace(kind="B" if action.kind in "IW" else "I")
        if action.kind != "F" and other in done:
            return f"{where}: {other} was done before. A backward is either whole (B) or in halves (I, W)"
        needed = {"B": "F", "I": "F", "W": "I"}.get(action.kind)
        if needed and (first := action._replace(kind=needed)) not in done:
            place = later.get(first)
            when = f"does only later, as its action {place[1]}" if place else "never does"
            return f"{where}: it needs {first}, which rank {rank} {when}"
        done[action] = index
    return None


def _foreign(
    places: dict[Action, Where], length: int, share: int, stages: int, microbatches: int
) -> str | None:
    """Stages and microbatches out of range, or a microbatch in the wrong copy of the model."""
    for action, (rank, index) in places.items():
        where = f"rank {rank}, action {index} ({action})"
        if action.stage >= stages:
            return f"{where}: there is no stage {action.stage}, only 0 to {stages - 1}"
        if action.microbatch >= microbatches:
            return (
                f"{where}: there is no microbatch {action.microbatch}, only 0 to {microbatches - 1}"
            )
        copy = action.stage // length
        if action.microbatch // share != copy:
            return (
                f"{where}: stage {action.stage} is of copy {copy} of the model, which does microbatches "
                f"{copy * share} to {(copy + 1) * share - 1}"
            )
    return None


def _missing(
    places: dict[Action, Where],
    length: int,
    share: int,
    stages: int,
    microbatches: int,
    forward_only: bool,
) -> str | None:
    """Passes that no rank does, and the rank that waits for them."""
    ranks = {action.stage: rank for action, (rank, _) in places.items()}
    for microbatch, place in product(range(microbatches), range(length)):
        stage = microbatch // share * length + place
        if stage not in ranks:
            return (
                f"no rank does stage {stage}: there are {stages} stages, and each lives on one rank"
            )
        gone = _gone(stage, microbatch, places, forward_only)
        if gone is None:
            continue
        sentence = f"rank {ranks[stage]} holds stage {stage} and never does {gone}"
        for action, (rank, index) in places.items():
            if source(action, length) == gone:
                return f"{sentence}, which rank {rank} needs for its action {index} ({action})"
        return f"{sentence}, the {KINDS[gone.kind]} of microbatch {microbatch}"
    return None


def _gone(
    stage: int, microbatch: int, places: dict[Action, Where], forward_only: bool
) -> Action | None:
    """The first pass of a microbatch through a stage that is not in the schedule."""
    if Action(stage, "F", microbatch) not in places:
        return Action(stage, "F", microbatch)
    if forward_only or Action(stage, "B", microbatch) in places:
        return None
    if Action(stage, "I", microbatch) not in places:
        return Action(stage, "B", microbatch)
    half = Action(stage, "W", microbatch)
    return None if half in places else half


def _deadlock(schedule: Schedule, places: dict[Action, Where], length: int) -> str | None:
    """Do every action once its input is ready; ranks that are left over wait in a cycle."""
    done: set[Action] = set()
    heads = [0] * len(schedule)
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(schedule):
            while heads[rank] < len(row) and not _wants(row[heads[rank]], length, done):
                done |= {
                    action._replace(kind="B") if action.kind == "I" else action
                    for action in parts(row[heads[rank]])
                }
                heads[rank] += 1
                moved = True
    stuck = [rank for rank, row in enumerate(schedule) if heads[rank] < len(row)]
    return _cycle(schedule, places, length, heads, done, stuck[0]) if stuck else None


def _cycle(
    schedule: Schedule, places: dict[Action, Where], length: int, heads: Sequence[int],
    done: set[Action], rank: int,
) -> str:  # fmt: skip
    """Go from `rank` to the rank it waits for, and so on, until a rank is reached again."""
    waits: dict[int, str] = {}
    while rank not in waits:
        entry = schedule[rank][heads[rank]]
        needed = _wants(entry, length, done)
        assert needed is not None, "a rank that waits for nothing is not stuck"
        whole = places.get(needed)
        holder, index = whole or places[needed._replace(kind="I")]
        stands = heads[holder]
        place = (
            f"where rank {holder} waits itself"
            if index == stands
            else f"which comes after {schedule[holder][stands]}"
        )
        waits[rank] = (
            f"rank {rank} waits in its action {heads[rank]} ({entry}) for {schedule[holder][index]}, "
            f"action {index} of rank {holder}, {place}"
        )
        rank, start = holder, holder
    cycle = list(waits)[list(waits).index(start) :]
    return "deadlock: " + "; ".join(waits[action] for action in cycle)


def _wants(entry: Action | Pair, length: int, done: set[Action]) -> Action | None:
    """The output an action still waits for, or None."""
    for action in parts(entry):
        needed = source(action, length)
        if needed is not None and needed not in done:
            return needed
    return None


def _walk(schedule: Schedule) -> Iterator[tuple[int, int, Action]]:
    """Every action with its rank and its index in the rank's list."""
    for rank, row in enumerate(schedule):
        for index, entry in enumerate(row):
            for action in parts(entry):
                yield rank, index, action


def _places(schedule: Schedule) -> dict[Action, Where]:
    return {action: (rank, index) for rank, index, action in _walk(schedule)}
