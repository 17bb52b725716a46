"""Two fractions of one bubble, each judged by itself: one may be computed from the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from course_lib.checks import kit
from course_lib.checks.rank.notebooks.pipeline.standing_in import ApartInstructions, Instead, Round

RECIPE = "course_lib.checks.rank.notebooks.pipeline.standing_in:evaluate_apart"
NAMES, DEFAULTS = ("schedule", "stages", "microbatches", "chunks"), (1,)
Judge = Callable[[kit.Observed], kit.Finding]


@dataclass(frozen=True)
class Fraction:
    """A function that may call the other one.

    questions: lines of the table, of this function. other: the name of the function that it may call;
    convert: from that one's result to this one's.
    """

    questions: Sequence[kit.Prediction]
    other: str
    convert: Callable[[float], float]

    @property
    def arguments(self) -> list[tuple]:
        return [args for question in self.questions for args in question.arguments]

    @property
    def calls(self) -> list[list]:
        return [[question.index, list(args)] for question in self.questions for args in question.arguments]


def fractions(first: Fraction, second: Fraction, draw: kit.Draw) -> kit.Case:
    """The case of both. A wrong one does not cost the other any points if that is computed from it rightly.

    If a student computes each from the other, neither is known: then the second is judged as it is.
    """
    rounds = [Round(first.calls), Round(second.calls)]
    apart = []
    for fraction in (first, second):
        values = {full(args): drawn(draw) for args in fraction.arguments}
        start = sum(len(each.calls) for each in rounds)
        rounds.append(Round(fraction.calls, instead(fraction.other, values)))
        apart.append(judges(converted(fraction, values), start))
    lines, both = [], all_of(apart[0])
    for fraction, own, other in (
        (first, judges(first.questions, 0), apart[0]),
        (second, judges(second.questions, len(first.calls)), apart[1]),
    ):
        for question, judge, standing in zip(fraction.questions, own, other, strict=True):
            unless = both if fraction is second else None
            line = kit.Line(question.title, either(question, judge, standing, fraction.other, unless))
            lines.append(line)
    side = kit.RankSide({}, ApartInstructions(rounds), {})
    return kit.Case("fractions", [side], lines, recipe=RECIPE, alone=True)


def drawn(draw: kit.Draw) -> float:
    """Of any fraction: more than 0 and less than 1. No constant fits several."""
    return draw.integer(1, 500) / draw.integer(501, 1000)


def full(args: tuple) -> tuple:
    """The arguments with the defaults that were left out."""
    return (*args, *DEFAULTS)[: len(NAMES)]


def instead(name: str, values: dict[tuple, float]) -> Instead:
    """A function's stand-in, which returns these values."""
    returns = [[list(args), value] for args, value in values.items()]
    return Instead(name, list(NAMES), list(DEFAULTS), returns)


def converted(fraction: Fraction, values: dict[tuple, float]) -> list[kit.Prediction]:
    """The questions, answered from what the other function is told to return."""

    def formula(*args: object) -> float:
        return fraction.convert(values[full(args)])

    return [replace(question, formula=formula) for question in fraction.questions]


def judges(questions: Sequence[kit.Prediction], start: int) -> list[Judge]:
    """Of the answers from number `start` on."""
    all_judges = []
    for question in questions:
        all_judges.append(kit.judge_prediction(question, start))
        start += len(question.arguments)
    return all_judges


def all_of(several: Sequence[Judge]) -> Callable[[kit.Observed], bool]:
    return lambda observed: all(judge(observed).ok for judge in several)


def either(
    question: kit.Prediction,
    own: Judge,
    standing: Judge,
    other: str,
    unless: Callable[[kit.Observed], bool] | None,
) -> Judge:
    """Right as it is, or right where the other one is."""

    def judge(observed: kit.Observed) -> kit.Finding:
        finding = own(observed)
        if finding.ok or not standing(observed).ok or (unless and unless(observed)):
            return finding
        return kit.Finding(True, title=f"{question.title} (where {other} is right)")

    return judge
