"""Is a list of actions a training step? If not, a sentence states the first mistake."""

from __future__ import annotations

from collections.abc import Iterable

KINDS = ("gather", "forward", "free", "backward", "reduce")


class ScheduleError(ValueError):
    """A list that is not a training step. The text says what is wrong with it."""


def violation(
    schedule: Iterable[tuple[str, int]], units: int, most_whole: int | None = None
) -> str | None:
    """The first mistake of a schedule, as a sentence, or None.

    Each unit computes once each way, forward from the first to the last and backward from the last to the
    first, while its weights are whole. A unit is gathered only when it is not whole, freed only when it is,
    and reduced once, after its backward. At the end, all units are freed.
    most_whole: how many units can be whole at the same time; None means any number.
    """
    whole: set[int] = set()
    done: dict[str, list[int]] = {kind: [] for kind in KINDS}
    order = {"forward": [*range(units)], "backward": [*reversed(range(units))]}
    for kind, unit in schedule:
        if kind not in KINDS:
            return f"there is no action {kind!r}: it is one of {', '.join(KINDS)}"
        if unit not in range(units):
            return f"there is no unit {unit}, only 0 to {units - 1}"
        if kind == "gather":
            if unit in whole:
                return f"unit {unit} is gathered while it is whole"
            whole.add(unit)
            if most_whole is not None and len(whole) > most_whole:
                return f"{len(whole)} units are whole at once, and {most_whole} are allowed"
        elif kind == "free":
            if unit not in whole:
                return f"unit {unit} is freed while it is not whole"
            whole.remove(unit)
        elif kind == "reduce":
            if unit not in done["backward"]:
                return f"unit {unit} is reduced before its backward has made gradients"
            if unit in done["reduce"]:
                return f"unit {unit} is reduced twice"
        else:
            place = len(done[kind])
            if unit in done[kind]:
                return f"unit {unit} does its {kind} twice"
            if order[kind][place] != unit:
                return f"the {kind} of unit {unit} comes before that of unit {order[kind][place]}"
            if kind == "backward" and len(done["forward"]) < units:
                return f"backward begins before unit {len(done['forward'])} has done its forward"
            if unit not in whole:
                return f"unit {unit} computes its {kind} without weights: it is not whole then"
        done[kind].append(unit)
    for kind in ("forward", "backward", "reduce"):
        missing = sorted(set(range(units)) - set(done[kind]))
        if missing:
            never = "is never reduced" if kind == "reduce" else f"never does its {kind}"
            return f"unit {missing[0]} {never}"
    if whole:
        return (
            f"unit {min(whole)} is still whole at the end: nothing freed it after its last gather"
        )
    return None


def validate(
    schedule: Iterable[tuple[str, int]], units: int, most_whole: int | None = None
) -> None:
    """Raises ScheduleError with the first violation."""
    wrong = violation(schedule, units, most_whole)
    if wrong:
        raise ScheduleError(wrong)
