"""Looks at a sharded step: is it one, how long does it take, which units are whole, and the usual causes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import accumulate

from course_lib.checks import kit, words
from course_lib.fsdp.schedule import Schedule
from course_lib.fsdp.schedule import fsdp_schedule as reference
from course_lib.fsdp.simulate import Times, simulate
from course_lib.fsdp.validate import violation

CLOSE = 1e-9
MISSED = 1 / 4  # of the time that prefetching saves: a list that loses more misses the point


@dataclass(frozen=True)
class Asked:
    """The arguments of one call."""

    units: int
    forward: int = 1
    backward: int = 1
    reshard: bool = True
    keep_last: bool = True

    def __str__(self) -> str:
        return f"fsdp_schedule{astuple(self)}"

    @property
    def best(self) -> Schedule:
        return reference(*astuple(self))

    @property
    def last_freed(self) -> Schedule:
        """The best list that frees the last unit after its forward."""
        return reference(*astuple(replace(self, keep_last=False)))

    @property
    def unprefetched(self) -> Schedule:
        return reference(*astuple(replace(self, forward=0, backward=0)))

    def allowed(self, schedule: Schedule) -> Iterator[tuple[int, int]]:
        """After each action: the units that are whole, and how many may be."""
        turn = schedule.index(("forward", self.units - 1))
        counts = accumulate({"gather": 1, "free": -1}.get(kind, 0) for kind, _ in schedule)
        for place, whole in enumerate(counts):
            ahead = self.forward if place <= turn else self.backward
            yield whole, 1 + ahead if self.reshard else self.units


def mended(schedule: Schedule, units: int) -> Schedule:
    """The list without gathers of whole units, and with the frees and reductions that it lacks at its end."""
    whole: set[int] = set()
    kept: Schedule = []
    for kind, unit in schedule:
        if kind == "gather" and unit in whole:
            continue
        if kind in ("gather", "free"):
            (whole.add if kind == "gather" else whole.discard)(unit)
        kept.append((kind, unit))
    reduced = {unit for kind, unit in schedule if kind == "reduce"}
    return (
        kept
        + [("free", k) for k in sorted(whole)]
        + [("reduce", k) for k in range(units) if k not in reduced]
    )


Look = Callable[[Asked, Schedule], kit.Finding]


# ---- usual causes


def beyond_the_ends(asked: Asked, schedule: Schedule) -> str:
    if any(kind == "gather" and unit not in range(asked.units) for kind, unit in schedule):
        return (
            "Near the ends fewer units are ahead than `prefetch`. Gather only those that there are, and skip "
            "numbers below 0 and above the last unit."
        )
    return ""


def wrong_way(asked: Asked, schedule: Schedule) -> str:
    """The backwards are not those of all units, from the last to the first."""
    units = [unit for kind, unit in schedule if kind == "backward"]
    if not units or units == [*reversed(range(asked.units))]:
        return ""
    if units == [asked.units - 1]:
        return "The list has only one backward. Is a `return` inside the loop?"
    if units == [*range(asked.units)]:
        return "Backward runs from the last unit to the first, so loop over reversed(range(units))."
    return "Backward runs from the last unit down to unit 0, so loop over reversed(range(units))."


def gathered_while_whole(asked: Asked, schedule: Schedule) -> str:
    whole = set[int]()
    for kind, unit in schedule:
        if kind == "gather" and unit in whole:
            return "Skip units that are already whole, as the `gather` of the stub does."
        if kind in ("gather", "free"):
            (whole.add if kind == "gather" else whole.discard)(unit)
    return ""


def others_gathered(asked: Asked, schedule: Schedule) -> str:
    """In backward a unit is gathered that is not below the one that computes next."""
    begun = False
    for place, (kind, unit) in enumerate(schedule):
        rest = [other for what, other in schedule[place:] if what == "backward"]
        begun |= kind == "backward"
        if kind == "gather" and begun and rest and unit not in rest:
            return kit.Sentence(
                (
                    f"Backward comes from above, so unit {rest[0]} is needed next, but unit {unit} was "
                    "gathered."
                ),
                "Backward comes from above, so gather the units below the unit that computes.",
            )
    return ""


def never_again(asked: Asked, schedule: Schedule) -> str:
    gathered = [unit for kind, unit in schedule if kind == "gather"]
    if asked.reshard and len(gathered) == len(set(gathered)) == asked.units > 1:
        return (
            "A unit that was freed after its forward must be gathered again for its backward. If you do so, "
            "free it with the `free` of the stub, because its `gather` skips all other units."
        )
    return ""


def without_weights(asked: Asked, schedule: Schedule) -> str:
    """A unit is freed before it computes, or is not gathered when it is its turn."""
    last: dict[int, str] = {}  # the last gather or free of each unit
    for kind, unit in schedule:
        if kind in ("gather", "free"):
            last[unit] = kind
        elif kind in ("forward", "backward") and last.get(unit) != "gather":
            if kind == "forward" and unit in last:
                return "Free a unit only after it has computed."
            return (
                "Before a unit computes, gather the unit itself as well, including the first and the last "
                "unit. (A range does not contain its end.)"
            )
    return ""


def reduce_forgotten(asked: Asked, schedule: Schedule) -> str:
    reduced = {unit for kind, unit in schedule if kind == "reduce"}
    if reduced and len(reduced) < asked.units:
        return "Every unit's gradients are reduced once, also after the last backward."
    return ""


DISORDER = (
    beyond_the_ends, wrong_way, gathered_while_whole, others_gathered, never_again, without_weights,
    reduce_forgotten,
)  # fmt: skip


def behind_the_reduce(asked: Asked, schedule: Schedule) -> str:
    for unit in reversed(range(asked.units - 1)):
        gathers = [place for place, action in enumerate(schedule) if action == ("gather", unit)]
        if len(gathers) == 2 and gathers[1] > schedule.index(("reduce", unit + 1)):
            return kit.Sentence(
                f"The gather of unit {unit} waits behind the reduce of unit {unit + 1}, and the "
                f"backward of unit {unit} waits for it. Nothing waits for the reduce, so gather first.",
                "The gather of a unit waits behind the reduce of the unit above, although nothing "
                "waits for that reduce. Gather first.",
            )
    return ""


def reduced_late(asked: Asked, schedule: Schedule) -> str:
    for unit in range(asked.units - 1, 0, -1):
        if schedule.index(("reduce", unit)) > schedule.index(("backward", unit - 1)):
            return kit.Sentence(
                f"The wire idles while unit {unit - 1} does its backward. Reduce unit {unit} before "
                "that, because its gradients are ready.",
                "The wire idles in backward. Reduce a unit's gradients as soon as they are ready.",
            )
    return ""


def wire_idles(way: str, step: int) -> Callable[[Asked, Schedule], str]:
    """A unit whose successor is gathered behind its computation, though it could be before it."""

    def hint(asked: Asked, schedule: Schedule) -> str:
        if not (asked.forward if way == "forward" else asked.backward):
            return ""
        for unit in range(asked.units):
            following = unit + step
            if following in range(asked.units):
                between = schedule[schedule.index((way, unit)) : schedule.index((way, following))]
                if ("gather", following) in between:
                    return kit.Sentence(
                        f"The wire idles while unit {unit} does its {way}: gather unit {following} "
                        "before that, not after it.",
                        (
                            "The wire idles while a unit computes. Gather the next unit before that, not "
                            "after it."
                        ),
                    )
        return ""

    return hint


def behind_a_later_one(asked: Asked, schedule: Schedule) -> str:
    """A unit whose gather waits for that of a unit which computes after it."""
    begun: list[int] = []  # since the last computation
    for kind, unit in schedule:
        if kind == "gather":
            begun.append(unit)
        elif kind in ("forward", "backward"):
            if unit in begun[1:]:
                return kit.Sentence(
                    f"The gather of unit {unit} waits for that of unit {begun[0]}, though unit {unit} does "
                    f"its {kind} first. Gather the nearest unit first.",
                    f"A gather waits for that of a unit which does its {kind} later. Gather the nearest unit "
                    "first.",
                )
            begun = []
    return ""


LATE = (
    behind_a_later_one, wire_idles("forward", 1), behind_the_reduce, wire_idles("backward", -1), reduced_late,
)  # fmt: skip


EXCHANGED = (
    "The two prefetches are exchanged. forward_prefetch counts the units ahead in forward, and "
    "backward_prefetch the units ahead in backward."
)


def exchanged(asked: Asked, schedule: Schedule) -> bool:
    """Whether the list is the one for the two prefetches in each other's place."""
    other = replace(asked, forward=asked.backward, backward=asked.forward)
    return asked.forward != asked.backward and schedule == other.best


def too_far(asked: Asked, schedule: Schedule) -> str:
    """The pass in which a unit is gathered ahead that is more than `prefetch` units away."""
    following: tuple[str, int] = ("", 0)
    for kind, unit in reversed(schedule):
        if kind in ("forward", "backward"):
            following = (kind, unit)
        elif kind == "gather" and following[0]:
            way, computes = following
            distance = unit - computes if way == "forward" else computes - unit
            if distance > (asked.forward if way == "forward" else asked.backward):
                return way
    return ""


def still_whole(asked: Asked, schedule: Schedule) -> str:
    """A unit that is not freed between its own computation and the next one, though it should be."""
    last, done, whole = asked.units - 1, ("", -1), set[int]()
    for kind, unit in schedule:
        if kind == "gather":
            whole.add(unit)
        elif kind == "free":
            whole.discard(unit)
        elif kind in ("forward", "backward"):
            way, before = done
            stays = before == last and unit == last  # at the turn
            if before in whole and not stays and (asked.reshard or way == "backward"):
                return kit.Sentence(
                    f"Unit {before} is still whole while unit {unit} does its {kind}. Free it after its own "
                    f"{way}.",
                    f"A unit is still whole while the next one does its {kind}. Free each unit after its "
                    f"own {way}.",
                )
            done = (kind, unit)
    return ""


def replica(asked: Asked, schedule: Schedule, whole: int, most: int) -> str:
    if kept := still_whole(asked, schedule):
        return kept
    if whole == asked.units and asked.units > 2:
        return (
            "All units are whole at the same time, as on a replica, so nothing is saved. Gather only "
            "`prefetch` units ahead of the unit that computes."
        )
    if exchanged(asked, schedule):
        return EXCHANGED
    if way := too_far(asked, schedule):
        last = "i + forward_prefetch" if way == "forward" else "i - backward_prefetch"
        return (
            f"Gathers run too far ahead. Before unit i computes in {way}, the last unit gathered is {last}."
        )
    if whole == most + 1:
        return (
            "One unit too many is whole. Allowed are the unit that computes and `prefetch` more, "
            "so free before you gather."
        )
    return "The unit that computes is whole, and `prefetch` more."


def first_hint(hints: Sequence[Callable[[Asked, Schedule], str]]) -> Callable[[Asked, Schedule], str]:
    return lambda asked, schedule: next((s for hint in hints if (s := hint(asked, schedule))), "")


# ---- looks at a list


def possible(asked: Asked, schedule: Schedule) -> kit.Finding:
    said = violation(schedule, asked.units)
    if said is None:
        return kit.RIGHT
    sentence = kit.Sentence(
        f"{asked}: {said}.", ("fsdp_schedule writes a list that is not a step, and `violation` says why.")
    )
    return kit.wrong(sentence, kit.usual(first_hint(DISORDER), asked, schedule), cause="not a step")


def takes(*lasting: Times, point: bool = False) -> Look:
    """No list may take longer than the best one; another line judges whether the last unit is kept.

    point: a list that loses much of the time that prefetching saves misses the exercise's point.
    """

    def look(asked: Asked, schedule: Schedule) -> kit.Finding:
        twice = schedule.count(("gather", asked.units - 1)) > 1
        for times in lasting:
            seconds = simulate(schedule, times).total
            best = simulate(asked.last_freed if twice else asked.best, times).total
            if seconds <= best * (1 + CLOSE):
                continue
            sentence = kit.Sentence(
                f"{asked} takes {words.number(seconds)} instead of {words.number(best)} ({lasts(times)}).",
                f"fsdp_schedule writes a list that takes {words.number(seconds / best)} times as long as it "
                "could.",
            )
            saved = simulate(asked.unprefetched, times).total - best
            missed = point and seconds - best > MISSED * saved
            hint = kit.usual(first_hint(LATE), asked, schedule)
            return kit.wrong(sentence, hint, cause="slow", misses_point=missed)
        return kit.RIGHT

    return look


def lasts(times: Times) -> str:
    kinds = ("forward", "backward", "gather", "reduce")
    return words.listing([f"{kind} {getattr(times, kind):g}" for kind in kinds])


def reaches(asked: Asked, schedule: Schedule) -> kit.Finding:
    """Before a unit computes, the next `prefetch` units are gathered as well."""
    whole: set[int] = set()
    for kind, unit in schedule:
        if kind == "gather":
            whole.add(unit)
        elif kind == "free":
            whole.discard(unit)
        elif kind != "reduce":
            step, ahead = (1, asked.forward) if kind == "forward" else (-1, asked.backward)
            wanted = {unit + step * k for k in range(1, ahead + 1)} & {*range(asked.units)}
            if wanted - whole:
                missing = min(wanted - whole, key=lambda other: abs(other - unit))
                return kit.wrong(
                    kit.Sentence(
                        f"{asked}: unit {unit} does its {kind}, but unit {missing} has not been "
                        f"gathered, although {kind}_prefetch is {ahead}.",
                        f"fsdp_schedule gathers fewer units ahead than {kind}_prefetch says.",
                    ),
                    EXCHANGED if exchanged(asked, schedule) else "",
                    cause="short",
                )
    return kit.RIGHT


def keeps_last(asked: Asked, schedule: Schedule) -> kit.Finding:
    """The last unit is freed between its forward and its backward unless `keep_last`."""
    last = asked.units - 1
    turn = schedule[schedule.index(("forward", last)) : schedule.index(("backward", last))]
    freed = ("free", last) in turn
    if freed and asked.keep_last:
        says = "is gathered twice in a row. Backward begins with it, so do not free it after its forward."
    elif not freed and not asked.keep_last:
        says = "is not freed after its forward, though keep_last is False."
    else:
        return kit.RIGHT
    return kit.wrong(kit.Sentence(f"{asked}: unit {last} {says}", f"The last unit {says}"), cause="last")


def gathers_once(asked: Asked, schedule: Schedule) -> kit.Finding:
    """Without reshard every unit is gathered once, and freed when its backward is over."""
    for unit in range(asked.units):
        if schedule.count(("gather", unit)) > 1:
            says = (
                "is gathered twice, although reshard is False. It must stay whole from its forward to "
                "its backward."
            )
        elif unit and schedule.index(("free", unit)) > schedule.index(("backward", unit - 1)):
            says = (
                f"is still whole while unit {unit - 1} does its backward. Free each unit after its backward, "
                "also without reshard."
            )
        else:
            continue
        general = "fsdp_schedule gathers a unit twice, or frees it late, though reshard is False."
        return kit.wrong(kit.Sentence(f"{asked}: unit {unit} {says}", general), cause="resharded")
    return kit.RIGHT


def holds(asked: Asked, schedule: Schedule) -> kit.Finding:
    whole, most = max(asked.allowed(schedule), key=lambda pair: pair[0] - pair[1])
    if whole <= most:
        return kit.RIGHT
    sentence = kit.Sentence(
        f"{asked}: {whole} units are whole at the same time, but only {most} should be.",
        "fsdp_schedule makes more units whole at the same time than 1 + prefetch.",
    )
    all_at_once = whole == asked.units >= 2 * most
    return kit.wrong(sentence, replica(asked, schedule, whole, most), cause="heavy", misses_point=all_at_once)
