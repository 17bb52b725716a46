"""fsdp_schedule: a step as a list, which must be a step, be short, and hold few units."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from itertools import accumulate

from course_lib.checks.kit import (
    EVALUATE,
    RIGHT,
    Case,
    Draw,
    Finding,
    Line,
    Observed,
    RankSide,
    Sentence,
    at,
    error_kind,
    exercise,
    usual,
    words,
    wrong,
)
from course_lib.fsdp.schedule import Schedule
from course_lib.fsdp.schedule import fsdp_schedule as reference
from course_lib.fsdp.simulate import Times, simulate
from course_lib.fsdp.validate import violation

REFERENCES = ("course_lib.fsdp.module", "course_lib.fsdp.schedule")
POINT = "weights that arrive while others compute"
CLOSE = 1e-9
LONGEST_KIND = 20  # characters


@dataclass(frozen=True)
class Asked:
    """The arguments of one call."""

    units: int
    forward: int = 1
    backward: int = 1
    reshard: bool = True
    keep_last: bool = True

    def __str__(self) -> str:
        return f"fsdp_schedule({', '.join(map(repr, astuple(self)))})"

    @property
    def best(self) -> Schedule:
        return reference(*astuple(self))

    def allowed(self, schedule: Schedule) -> Iterator[tuple[int, int]]:
        """After each action: the units that are whole, and how many may be."""
        turn = schedule.index(("forward", self.units - 1))
        counts = accumulate({"gather": 1, "free": -1}.get(kind, 0) for kind, _ in schedule)
        for place, whole in enumerate(counts):
            ahead = self.forward if place <= turn else self.backward
            yield whole, 1 + ahead if self.reshard else self.units


Look = Callable[[Asked, Schedule], Finding]


# ---- usual causes


def others_gathered(asked: Asked, schedule: Schedule) -> str:
    """In backward a unit is gathered that is not below the one that computes next."""
    begun = False
    for place, (kind, unit) in enumerate(schedule):
        rest = [other for what, other in schedule[place:] if what == "backward"]
        begun |= kind == "backward"
        if kind == "gather" and begun and rest and unit not in rest:
            return Sentence(
                f"Backward comes from above: unit {rest[0]} is wanted next, and unit {unit} was gathered.",
                "Backward comes from above: gather the units below the one that computes.",
            )
    return ""


def never_again(asked: Asked, schedule: Schedule) -> str:
    gathered = [unit for kind, unit in schedule if kind == "gather"]
    if asked.reshard and len(gathered) == len(set(gathered)) == asked.units > 1:
        return "A unit that was freed after its forward must be gathered again for its backward."
    return ""


def reduce_forgotten(asked: Asked, schedule: Schedule) -> str:
    reduced = {unit for kind, unit in schedule if kind == "reduce"}
    if reduced and len(reduced) < asked.units:
        return "Every unit's gradients are reduced once, those of the last backward as well."
    return ""


DISORDER = (others_gathered, never_again, reduce_forgotten)


def behind_the_reduce(asked: Asked, schedule: Schedule) -> str:
    for unit in reversed(range(asked.units - 1)):
        gathers = [place for place, action in enumerate(schedule) if action == ("gather", unit)]
        if len(gathers) == 2 and gathers[1] > schedule.index(("reduce", unit + 1)):
            return Sentence(
                f"The gather of unit {unit} waits behind the reduce of unit {unit + 1}, and the backward of "
                f"unit {unit} waits for it. Nothing waits for the reduce: gather first.",
                "The gather of a unit waits behind the reduce of the one above, for which nothing waits: "
                "gather first.",
            )
    return ""


def twice_in_a_row(asked: Asked, schedule: Schedule) -> str:
    last = asked.units - 1
    if asked.keep_last and schedule.count(("gather", last)) > 1:
        return Sentence(
            f"Unit {last} is gathered twice in a row: backward begins with it. Do not free it after its "
            "forward.",
            "The last unit is gathered twice in a row: backward begins with it. Do not free it after its "
            "forward.",
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
                    return Sentence(
                        f"The wire idles while unit {unit} does its {way}: gather unit {following} before "
                        "that, not behind it.",
                        "The wire idles while a unit computes: gather the next one before that, not behind.",
                    )
        return ""

    return hint


LATE = (twice_in_a_row, wire_idles("forward", 1), behind_the_reduce, wire_idles("backward", -1))


def replica(asked: Asked, whole: int, most: int) -> str:
    if whole == asked.units and asked.units > 2:
        return (
            "All units are whole at once: that is a replica, and nothing is saved. Gather `prefetch` units "
            "ahead of the one that computes, not all of them."
        )
    if whole == most + 1:
        return "That is one too many: the unit that computes, and `prefetch` more. Free before you gather."
    return "The unit that computes is whole, and `prefetch` more."


def first_hint(
    hints: Sequence[Callable[[Asked, Schedule], str]],
) -> Callable[[Asked, Schedule], str]:
    return lambda asked, schedule: next((s for hint in hints if (s := hint(asked, schedule))), "")


# ---- looks at a list


def possible(asked: Asked, schedule: Schedule) -> Finding:
    said = violation(schedule, asked.units)
    if said is None:
        return RIGHT
    sentence = Sentence(
        f"{asked}: {said}.", "fsdp_schedule writes a list that is not a step: `violation` says why."
    )
    return wrong(sentence, usual(first_hint(DISORDER), asked, schedule), cause="not a step")


def takes(*lasting: Times, point: bool = False) -> Look:
    """No list may take longer than the best one."""

    def look(asked: Asked, schedule: Schedule) -> Finding:
        for times in lasting:
            seconds = simulate(schedule, times).total
            best = simulate(asked.best, times).total
            if seconds > best * (1 + CLOSE):
                durations = words.listing(
                    [
                        f"{kind} {getattr(times, kind):g}"
                        for kind in ("forward", "backward", "gather", "reduce")
                    ]
                )
                sentence = Sentence(
                    f"{asked} takes {words.number(seconds)} instead of {words.number(best)} ({durations}).",
                    f"fsdp_schedule writes a list that takes {words.number(seconds / best)} times as long as "
                    "it could.",
                )
                return wrong(
                    sentence,
                    usual(first_hint(LATE), asked, schedule),
                    cause="slow",
                    misses_point=point,
                )
        return RIGHT

    return look


def holds(asked: Asked, schedule: Schedule) -> Finding:
    whole, most = max(asked.allowed(schedule), key=lambda pair: pair[0] - pair[1])
    if whole <= most:
        return RIGHT
    sentence = Sentence(
        f"{asked}: {whole} units are whole at once, {most} may be.",
        "fsdp_schedule makes more units whole at once than 1 + prefetch.",
    )
    return wrong(sentence, replica(asked, whole, most), cause="heavy")


# ---- calls and lines


def read(asked: Asked, observed: Observed, place: int) -> Schedule | Finding:
    """The list that was given for these arguments, or why it is none."""
    answer = observed.answer(place)
    if answer.error is not None:
        error, text, where = answer.error
        if error == "NotImplementedError":
            return wrong("fsdp_schedule is not written yet.", at(where), cause="not written")
        said = Sentence(
            f"{asked} raised {error}: {text}", f"fsdp_schedule raised {error_kind(error)}."
        )
        return wrong(said, at(where), cause=f"raised {error} {where}")
    if not isinstance(answer.value, list):
        what = "None" if answer.value is None else "something else"
        sentence = (
            f"fsdp_schedule gives {what}; a list of actions is expected, such as ('gather', 0)."
        )
        return wrong(sentence, "Is there a `return` at its end?" if answer.value is None else "")
    schedule: Schedule = []
    for index, entry in enumerate(answer.value):
        kind, unit = entry if isinstance(entry, list) and len(entry) == 2 else (None, None)
        if not isinstance(kind, str) or type(unit) is not int or len(kind) > LONGEST_KIND:
            said = "Write (kind, unit), such as ('gather', 0)."
            what = f"{asked}: action {index} is {str(entry)[:40]}."
            return wrong(
                Sentence(
                    f"{what} {said}", f"fsdp_schedule has an entry that is not an action. {said}"
                )
            )
        schedule.append((kind, unit))
    return schedule


class Calls:
    """The calls of one case, each made once."""

    def __init__(self) -> None:
        self.places: dict[Asked, int] = {}

    def line(
        self, title: str, wanted: Sequence[Asked], looks: Sequence[Look], weight: float = 1.0,
        aspect: str = "value",
    ) -> Line:  # fmt: skip
        """A line that holds if each of the lists is a step, and pleases each of the looks."""
        for asked in wanted:
            self.places.setdefault(asked, len(self.places))

        def judge(observed: Observed) -> Finding:
            for asked in wanted:
                schedule = read(asked, observed, self.places[asked])
                if isinstance(schedule, Finding):
                    return schedule
                for look in (possible, *looks):
                    if not (finding := look(asked, schedule)).ok:
                        return finding
            return RIGHT

        return Line(title, judge, weight, aspect)

    def case(self, title: str, lines: Sequence[Line], hidden: bool = False) -> Case:
        calls = [[0, list(astuple(asked))] for asked in self.places]
        side = RankSide({}, {"calls": calls}, {})
        return Case(title, [side], list(lines), recipe=EVALUATE, alone=True, hidden=hidden)


def hiding(draw: Draw) -> Times:
    """Every message is shorter than the computation that it hides behind."""
    gather = draw.integer(3, 9)
    return Times(gather + draw.integer(1, 5), 3 * gather + draw.integer(1, 9), gather, gather)


def bound_by_the_wire(draw: Draw) -> Times:
    gather = draw.integer(20, 60)
    return Times(draw.integer(5, 15), draw.integer(15, 30), gather, gather + draw.integer(0, 20))


@exercise(points=10, objects=("fsdp_schedule",), references=REFERENCES, point=POINT)
def fsdp_schedule(draw: Draw) -> Iterator[Case]:
    calls, few = Calls(), draw.integer(3, 7)
    usual_ones = [Asked(8), Asked(few), Asked(8, 2, 2)]
    edges = [Asked(1), Asked(2), Asked(8, 0, 0), Asked(few, 1, 0), Asked(few, 0, 1), Asked(2, 3, 3)]
    options = [Asked(8, reshard=False), Asked(few, keep_last=False), Asked(few, 2, 1, False, False)]
    hidden_times, wire_times = hiding(draw), bound_by_the_wire(draw)
    yield calls.case(
        "schedules",
        [
            calls.line("a step: each unit computed, reduced and freed", usual_ones, [], 2),
            calls.line(
                "every message hidden but the first and the last", usual_ones,
                [takes(hidden_times, point=True)], 3,
            ),
            calls.line("as short as the wire allows", usual_ones, [takes(wire_times)], 2),
            calls.line("1 + prefetch units whole at once", usual_ones, [holds], 2, "memory"),
            calls.line(
                "one unit, no prefetch, more than there are", edges, [takes(hidden_times, wire_times), holds]
            ),
            calls.line(
                "reshard=False, keep_last=False", options, [takes(hidden_times, wire_times), holds], 2
            ),
        ],
    )  # fmt: skip
    if draw.hidden:
        more = Calls()
        larger = [Asked(draw.integer(9, 16), *ahead) for ahead in ((1, 1), (3, 3), (2, 1), (1, 3))]
        lines = [
            more.line(
                "more units", larger, [takes(hiding(draw), bound_by_the_wire(draw)), holds], 2
            )
        ]
        yield more.case("larger", lines, hidden=True)
