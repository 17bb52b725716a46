"""The calls of a student's function, and its results, read as far as they are schedules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from course_lib.checks import kit, words
from course_lib.checks.notebooks.pipeline.references import SCHEDULES
from course_lib.checks.rank.notebooks.pipeline.schedules import Answer, WritingInstructions
from course_lib.pipeline import Action, Pair

RECIPE = "course_lib.checks.rank.notebooks.pipeline.schedules:write_schedules"
Rows = list[list[Action | Pair]]
LONGEST_KIND = 20  # characters
NESTED = (
    "Several actions are in a list or tuple within the rank's list. Add them one by one, with += or extend "
    "instead of append."
)


@dataclass(frozen=True)
class Sizes:
    """Arguments of one call. chunks: None where the function has no such argument, or it is left out."""

    stages: int
    microbatches: int
    chunks: int | None = None
    default: int = 1

    @property
    def v(self) -> int:
        """Chunks a rank."""
        return self.default if self.chunks is None else self.chunks

    @property
    def named(self) -> dict[str, int]:
        return {} if self.chunks is None else {"chunks": self.chunks}

    @property
    def arguments(self) -> list:
        """Positional and named ones, as the recipe takes them."""
        return [[self.stages, self.microbatches], self.named]

    def call(self, name: str) -> str:
        more = "".join(f", {key}={value}" for key, value in self.named.items())
        return f"{name}({self.stages}, {self.microbatches}{more})"


def schedules_case(
    title: str, wanted: Sequence[Sizes], lines: Sequence[kit.Line], hidden: bool = False
) -> kit.Case:
    """The run of all calls, each made once: a process without ranks makes them."""
    calls = [sizes.arguments for sizes in dict.fromkeys(wanted)]
    side = kit.RankSide({}, WritingInstructions(calls), {})
    return kit.Case(title, [side], list(lines), recipe=RECIPE, alone=True, hidden=hidden)


def answer(observed: kit.Observed, sizes: Sizes) -> Answer:
    """The result of the call with these sizes."""
    return observed.answer(observed.case.sides[0].instructions.calls.index(sizes.arguments))


def refusal_case(name: str, wanted: Sizes, where: str, here: str, otherwise: str) -> kit.Case:
    """A ValueError for these sizes. where, here: why, for all of the kind and for these; otherwise: the harm
    of a schedule all the same."""

    def judge(observed: kit.Observed) -> kit.Finding:
        error, call = answer(observed, wanted).error, wanted.call(name)
        if error is not None:
            return kit.RIGHT if error[0] == "ValueError" else raised(name, call, *error)
        said = kit.Sentence(
            f"{call} does not raise a ValueError: {here}.", f"{name} does not raise a ValueError if {where}."
        )
        return kit.wrong(said, f"Say so with `raise ValueError(...)`: {otherwise}")

    return schedules_case("refused", [wanted], [kit.Line(f"ValueError if {where}", judge, 0.5, trivial=True)])


def rows_of(name: str, observed: kit.Observed, sizes: Sizes) -> Rows | kit.Finding:
    """The schedule that the function `name` gave for these sizes, or why it is none."""
    result, call = answer(observed, sizes), sizes.call(name)
    if result.error is not None:
        return raised(name, call, *result.error)
    if finding := no_rows(name, call, sizes.stages, result):
        return finding
    read: Rows = []
    for rank, row in enumerate(result.rows or ()):
        read.append([])
        for index, entry in enumerate(row):
            parsed = action(entry)
            if parsed is None:
                return no_action(name, call, rank, index, entry)
            read[-1].append(parsed)
    return read


def no_rows(name: str, call: str, stages: int, answer: Answer) -> kit.Finding | None:
    """The finding if the answer is not a list for each rank."""
    rows = answer.rows
    if rows is None:
        return kit.wrong(
            kit.Sentence(
                f"{call} gives {kind({'other': answer.other})}; a list is expected, with a list of actions "
                "for each rank.",
                f"{name} does not give a list with a list of actions for each rank.",
            ),
            "Is there a `return` at its end?" if answer.other == "NoneType" else "",
        )
    for rank, row in enumerate(rows):
        if not isinstance(row, list):
            return kit.wrong(
                kit.Sentence(
                    f"{call}: the entry of rank {rank} is {kind(row)}, not a list of actions.",
                    f"{name} does not give a list of actions for every rank.",
                )
            )
    if any(rows) and len(rows) != stages:
        wanted = f"{words.counted(stages, 'list')} {words.verb([0] * stages, 'is', 'are')} expected"
        return kit.wrong(
            kit.Sentence(
                f"{call} gives {words.counted(len(rows), 'list')}; {wanted}, one for each rank.",
                f"{name} does not give one list for each rank.",
            )
        )
    return None


def action(entry: Any) -> Action | Pair | None:
    """The action or the pair of actions that was told, or None."""
    if isinstance(entry, dict) and isinstance(entry.get("pair"), list):
        both = [action(part) for part in entry["pair"]]
        if len(both) == 2 and isinstance(both[0], Action) and isinstance(both[1], Action):
            return Pair(both[0], both[1])
    if not isinstance(entry, list) or len(entry) != 3:
        return None
    stage, kind, microbatch = entry
    whole = type(stage) is int and type(microbatch) is int
    named = isinstance(kind, str) and len(kind) <= LONGEST_KIND
    return Action(stage, kind, microbatch) if whole and named else None


def no_action(name: str, call: str, rank: int, index: int, entry: Any) -> kit.Finding:
    what = entry.get("other") if isinstance(entry, dict) else None
    if what is None and isinstance(entry, list):
        what = f"Action({', '.join(str(kind(part)) for part in entry)})"
    return kit.wrong(
        kit.Sentence(
            f"{call}: action {index} of rank {rank} is {what}. Write Action(stage, kind, microbatch), with "
            "whole numbers for the stage and the microbatch.",
            f"{name} gives something that is not an Action(stage, kind, microbatch).",
        ),
        NESTED if isinstance(what, str) and what.startswith(("[Action(", "(Action(")) else "",
    )


def kind(value: Any) -> str:
    """Words for an answer that is not a list, or for a part of an action."""
    if not isinstance(value, dict):
        return repr(value)[:40]
    what = str(value.get("other", next(iter(value), "a dict")))
    return "None" if what == "NoneType" else f"a value of type {what}"


def raised(name: str, call: str, error: str = "", text: str = "", place: str = "") -> kit.Finding:
    if error == "NotImplementedError":
        return kit.unwritten(name, place, "for all sizes")
    if text in SCHEDULES.values():
        return kit.wrong(text, kit.at(place), cause="refused")
    said = kit.error_sentence(name, error, text, call=call)
    return kit.wrong(said, kit.at(place), cause=f"raised {error} {place}")
