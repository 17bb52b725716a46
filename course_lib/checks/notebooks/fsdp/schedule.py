"""fsdp_schedule: a step as a list, which must be a step, be short, and hold few units."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple

from course_lib.checks import kit
from course_lib.checks.notebooks.fsdp.schedule_looks import (
    Asked,
    Look,
    gathers_once,
    holds,
    keeps_last,
    mended,
    possible,
    reaches,
    takes,
)
from course_lib.fsdp.schedule import Schedule
from course_lib.fsdp.simulate import Times

REFERENCES = ("course_lib.fsdp.module", "course_lib.fsdp.schedule")
POINT = "weights that arrive while others compute, and not all of them at once"
LONGEST_KIND = 20  # characters


# ---- calls and lines


def read(asked: Asked, observed: kit.Observed, place: int) -> Schedule | kit.Finding:
    """The list that was given for these arguments, or why it is none."""
    answer = observed.answer(place)
    if answer.error is not None:
        error, text, where = answer.error
        if error == "NotImplementedError":
            return kit.unwritten("fsdp_schedule", where)
        said = kit.error_sentence("fsdp_schedule", error, text, call=str(asked))
        return kit.wrong(said, kit.at(where), cause=f"raised {error} {where}")
    if not isinstance(answer.value, list):
        what, why = kit.came(answer.value), ""
        if answer.value is None:
            what, why = "None", "Is there a `return` at its end?"
        elif answer.value == {"other": "generator"}:
            why = "Make a list of what it yields: list(...)."
        sentence = f"fsdp_schedule gives {what}; a list of actions is expected, such as ('gather', 0)."
        general = "fsdp_schedule gives no list; a list of actions is expected, such as ('gather', 0)."
        return kit.wrong(kit.Sentence(sentence, general), why, cause=why or "gives no list")
    schedule: Schedule = []
    for index, entry in enumerate(answer.value):
        kind, unit = entry if isinstance(entry, list) and len(entry) == 2 else (None, None)
        if not isinstance(kind, str) or type(unit) is not int or len(kind) > LONGEST_KIND:
            said = "Write (kind, unit), such as ('gather', 0)."
            what = f"{asked}: action {index} is {str(entry)[:40]}."
            return kit.wrong(
                kit.Sentence(f"{what} {said}", f"fsdp_schedule has an entry that is not an action. {said}")
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
    ) -> kit.Line:  # fmt: skip
        """A line that holds if each of the lists is a step, and pleases each of the looks.

        With looks, what can be mended in a list is mended first: the line without looks judges it.
        """
        for asked in wanted:
            self.places.setdefault(asked, len(self.places))

        def judge(observed: kit.Observed) -> kit.Finding:
            for asked in wanted:
                schedule = read(asked, observed, self.places[asked])
                if isinstance(schedule, kit.Finding):
                    return schedule
                if looks and gathers_once not in looks:
                    schedule = mended(schedule, asked.units)
                for look in (possible, *looks):
                    if not (finding := look(asked, schedule)).ok:
                        return finding
            return kit.RIGHT

        return kit.Line(title, judge, weight, aspect)

    def case(self, title: str, lines: Sequence[kit.Line], hidden: bool = False) -> kit.Case:
        calls = [[0, list(astuple(asked))] for asked in self.places]
        side = kit.evaluating(calls)
        return kit.Case(title, [side], list(lines), recipe=kit.EVALUATE, alone=True, hidden=hidden)


def hiding(draw: kit.Draw) -> Times:
    """Every message is shorter than the computation that it hides behind."""
    gather = draw.integer(3, 9)
    return Times(gather + draw.integer(1, 5), 3 * gather + draw.integer(1, 9), gather, gather)


def bound_by_the_wire(draw: kit.Draw) -> Times:
    gather = draw.integer(20, 60)
    return Times(draw.integer(5, 15), draw.integer(15, 30), gather, gather + draw.integer(0, 20))


@kit.exercise(points=10, objects=("fsdp_schedule",), references=REFERENCES, point=POINT)
def fsdp_schedule(draw: kit.Draw) -> Iterator[kit.Case]:
    calls, few = Calls(), draw.integer(3, 7)
    usual_ones = [Asked(8), Asked(few), Asked(8, 2, 2)]
    edges = [Asked(1), Asked(2), Asked(8, 0, 0), Asked(few, 1, 0), Asked(few, 0, 1), Asked(2, 3, 3)]
    edges.append(Asked(few, 2, 2, True, False))  # the last unit comes again, and before those ahead of it
    far = [Asked(8, 2, 2), Asked(8, 3, 1), Asked(8, 1, 3), Asked(few, reshard=False)]
    kept = [Asked(8), Asked(few), Asked(1), Asked(few, keep_last=False), Asked(few, 2, 1, True, False)]
    whole = [Asked(8, reshard=False), Asked(few, 2, 1, False, False), Asked(1, 1, 1, False)]
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
            calls.line("as many units ahead as `prefetch` says", far, [reaches], 1.5),
            calls.line("keep_last: the last unit stays, or is freed", kept, [keeps_last]),
            calls.line("reshard=False: gathered once, freed after backward", whole, [gathers_once], 2),
            calls.line("1 + prefetch units whole at once", usual_ones + far, [holds], 2, "memory"),
            calls.line(
                "one unit, no prefetch, more than there are", edges, [takes(hidden_times, wire_times), holds]
            ),
        ],
    )  # fmt: skip
    if draw.hidden:
        more = Calls()
        larger = [Asked(draw.integer(9, 16), *ahead) for ahead in ((1, 1), (3, 3), (2, 1), (1, 3))]
        lines = [
            more.line(
                "more units",
                larger,
                [takes(hiding(draw), bound_by_the_wire(draw)), reaches, keeps_last, holds],
                2,
            )
        ]
        yield more.case("larger", lines, hidden=True)
