"""Plain answers: numbers and texts that a student fills in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from course_lib.checks import words
from course_lib.checks.judge.case import (
    EVALUATE,
    RIGHT,
    Case,
    Finding,
    Line,
    Observed,
    RankSide,
    wrong,
)
from course_lib.checks.judge.formulas import equal, kind, numeric
from course_lib.checks.sentence import Sentence

UNANSWERED = ({"other": "ellipsis"}, None, "")


@dataclass(frozen=True)
class Answer:
    """An answer to a question.

    right: the number, or the accepted texts, of `options`; slips: wrong answers, each with the sentence
    that names its mistake; otherwise: said when no slip fits; tolerance: relative.
    """

    name: str
    right: float | Sequence[str]
    slips: Mapping[Any, str] = field(default_factory=dict)
    unit: str = ""
    options: Sequence[str] = ()
    tolerance: float = 0.01
    weight: float = 1.0
    otherwise: str = ""


def answers(questions: Sequence[Answer]) -> Case:
    """One case for all answers, in the order of the exercise's objects."""
    calls = [[index, None] for index in range(len(questions))]
    lines = [Line(one.name, judge_answer(one, i), one.weight) for i, one in enumerate(questions)]
    sides = [RankSide({}, {"calls": calls}, {})]
    return Case("answers", sides, lines, recipe=EVALUATE, alone=True)


def judge_answer(one: Answer, index: int) -> Callable[[Observed], Finding]:
    def judge(seen: Observed) -> Finding:
        given = seen.answer(index).value
        if given in UNANSWERED:
            return wrong(f"{one.name} is not answered yet.")
        right = one.right
        return (
            judge_number(one, right, given) if isinstance(right, int | float) else text(one, given)
        )

    return judge


def judge_number(one: Answer, right: float, given: Any) -> Finding:
    value = numeric(given)
    if value is None:
        unit = f" of {one.unit}" if one.unit else ""
        wanted = f"{one.name} must be a number{unit}"
        return wrong(Sentence(f"{wanted}, not {kind(given)}.", f"{wanted}."))
    if equal(value, right, one.tolerance):
        return RIGHT
    slip = next((said for v, said in one.slips.items() if equal(value, v, one.tolerance)), "")
    return wrong(f"{one.name} = {words.number(value)} is not right.", slip or one.otherwise)


def text(one: Answer, given: Any) -> Finding:
    said = given.strip().lower() if isinstance(given, str) else ""
    if not isinstance(one.right, int | float) and said in one.right:
        return RIGHT
    if said not in one.options:
        options = words.listing([repr(option) for option in one.options], "or")
        wanted = f"{one.name} must be {options}"
        return wrong(Sentence(f"{wanted}, not {kind(given)}.", f"{wanted}."))
    return wrong(f"{one.name} = {said!r} is not right.", one.slips.get(said) or one.otherwise)
