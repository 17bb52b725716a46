"""Plain answers: numbers and texts that a student fills in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from course_lib.checks import words
from course_lib.checks.judge.build import evaluating
from course_lib.checks.judge.case import EVALUATE, RIGHT, Case, Finding, Line, Observed, wrong
from course_lib.checks.judge.formulas import equal, kind, numeric
from course_lib.checks.sentence import Sentence

UNANSWERED = ({"other": "ellipsis"}, None, "")


@dataclass(frozen=True)
class Answer:
    """An answer to a question.

    right: the number, or the accepted texts, of `options`; slips: {wrong answer: the sentence that names its
    mistake}, since a mistake may lead to several answers; otherwise: said when no slip fits; tolerance:
    relative.
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
    lines = [
        Line(question.name, judge_answer(question, i), question.weight)
        for i, question in enumerate(questions)
    ]
    sides = [evaluating(calls)]
    return Case("answers", sides, lines, recipe=EVALUATE, alone=True)


def judge_answer(question: Answer, index: int) -> Callable[[Observed], Finding]:
    def judge(observed: Observed) -> Finding:
        answer = observed.answer(index).value
        if answer in UNANSWERED:
            return wrong(f"{question.name} is not answered yet.")
        right = question.right
        return (
            judge_number(question, right, answer)
            if isinstance(right, int | float)
            else text(question, answer)
        )

    return judge


def judge_number(question: Answer, right: float, answer: Any) -> Finding:
    value = numeric(answer)
    if value is None:
        unit = f" of {question.unit}" if question.unit else ""
        share = question.unit.startswith("a share")
        wanted = f"{question.name} must be {question.unit if share else f'a number{unit}'}"
        wanted += ", written as a number" if share else ""
        return wrong(Sentence(f"{wanted}, not {kind(answer)}.", f"{wanted}."))
    if equal(value, right, question.tolerance):
        return RIGHT
    slip = next((said for v, said in question.slips.items() if equal(value, v, question.tolerance)), "")
    return wrong(f"{question.name} = {words.number(value)} is not right.", slip or question.otherwise)


def text(question: Answer, answer: Any) -> Finding:
    said = answer.strip().lower() if isinstance(answer, str) else ""
    if not isinstance(question.right, int | float) and said in question.right:
        return RIGHT
    if said not in question.options:
        options = words.listing([repr(option) for option in question.options], "or")
        wanted = f"{question.name} must be {options}"
        return wrong(Sentence(f"{wanted}, not {kind(answer)}.", f"{wanted}."))
    return wrong(f"{question.name} = {said!r} is not right.", question.slips.get(said) or question.otherwise)
