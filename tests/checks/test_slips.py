"""A mistake is told the same at every seed: no drawn number makes it look like another one, or right."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

import pytest

from course_lib.checks.judge import formulas
from course_lib.checks.judge.case import Draw
from course_lib.checks.judge.find import find
from course_lib.checks.judge.formulas import Prediction, applied, equal
from tests.checks.right_solutions import right_solutions

SEEDS = 40

Told = tuple[str, str]  # a line's title, and the sentence that it says


def questions(exercise: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> list[Prediction]:
    """The questions of an exercise at this seed; an exercise without formulas has none."""
    asked: list[Prediction] = []
    judge = formulas.judge_prediction
    with monkeypatch.context() as patch:
        patch.setattr(
            formulas, "judge_prediction", lambda q, *where: asked.append(q) or judge(q, *where)
        )
        for _ in find(exercise).cases(Draw(seed)):
            pass
    return asked


def told(question: Prediction) -> Iterator[tuple[str, Told]]:
    """Each mistake that gives a wrong number here, with the line's title and the first sentence that fits."""
    right = [question.right(args) for args in question.arguments]
    values = {
        sentence: [computed(slip, args) for args in question.arguments]
        for sentence, slip in question.slips.items()
    }
    for mistake, answers in values.items():
        off = [
            k for k, answer in enumerate(answers) if not equal(answer, right[k], question.tolerance)
        ]
        if off:
            sentence = next(
                s for s, slips in values.items() if all(equal(answers[k], slips[k]) for k in off)
            )
            yield mistake, (question.title or question.name, sentence)


def computed(slip: formulas.Formula, args: tuple) -> float:
    try:
        return applied(slip, args)
    except (
        ArithmeticError
    ):  # the check would tell a student of the error: any number that no other slip has
        return math.inf


@pytest.mark.parametrize("exercise", sorted(right_solutions()))
def test_the_draw_hides_no_mistake(
    exercise: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_seeds: list[dict[str, set[Told]]] = []
    for k in range(SEEDS):
        asked = questions(exercise, seed + k, monkeypatch)
        if not asked:
            return  # the exercise has no formulas
        at_seeds.append(defaultdict(set))
        for question in asked:
            for mistake, line in told(question):
                at_seeds[k][mistake].add(line)
    by_luck = {
        mistake
        for mistake in set().union(*at_seeds)
        if not set.intersection(*(lines[mistake] for lines in at_seeds))
    }
    assert not by_luck, (
        f"in {SEEDS} seeds from {seed} on, no line tells always the same about: {by_luck}"
    )
