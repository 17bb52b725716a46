"""Replies that a rank's code can send without any work: they earn nothing, and no judge fails on them.

Each exercise's cases are drawn once, and no rank is started.
"""

from __future__ import annotations

import functools
import os
import random
from dataclasses import replace

import pytest
import torch

from course_lib.checks.judge import judge
from course_lib.checks.judge.case import RIGHT, Case, Draw, Exercise, Finding, Line, Observed
from course_lib.checks.judge.conclude import is_value
from course_lib.ledger.ledger import Ledger
from course_lib.runtime.run import Outcome
from tests.checks.made_up import (
    EXERCISES,
    default,
    observed,
    odd,
    odd_operations,
    odd_tensor,
    zeros,
)

WHOLE = bool(os.environ.get("COURSE_ALL_TESTS"))
ROUNDS = 20 if WHOLE else 2  # of odd replies to each case


@functools.cache
def drawn(name: str) -> list[Case]:
    """The cases, with WHOLE the hidden ones too."""
    return list(EXERCISES[name].cases(Draw(20261, hidden=WHOLE)))


def value_weight(exercise: Exercise, case: Case, seen: Observed) -> float:
    """The weight of the value lines that are right, though nothing was done."""
    session = judge.Session(exercise, [], hidden=True)
    judged = judge.judge_lines(session, case, seen, [])
    return sum(
        row.line.weight
        for row in judged
        if is_value(row) and row.finding.ok and not row.line.trivial
    )


@pytest.mark.parametrize("name", EXERCISES)
def test_a_reply_of_defaults_and_zeros_earns_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("course_lib.checks.judge.case.hints_may_fail", False)
    exercise, believed = EXERCISES[name], {}
    for case in drawn(name):
        seen = observed(exercise, case, default, zeros)
        if isinstance(seen, Observed) and (weight := value_weight(exercise, case, seen)):
            believed[case.title] = weight
    assert not believed


@pytest.mark.parametrize("name", EXERCISES)
def test_no_judge_fails_whatever_comes_back(
    name: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("course_lib.checks.judge.case.hints_may_fail", False)
    draw, exercise = random.Random(seed), EXERCISES[name]
    torch.manual_seed(seed)
    for case in drawn(name):
        for _ in range(ROUNDS):
            seen = observed(
                exercise,
                case,
                lambda kind: odd(kind, draw) if draw.random() < 0.8 else default(kind),
                lambda spec: odd_tensor(spec, draw),
                lambda one, rank: odd_operations(one, rank, draw),
                lambda: draw.choice([0, 1 << 16, 1 << 24, 1 << 50]),
            )
            assert isinstance(seen, Observed | Finding)
            if isinstance(seen, Observed):
                for line in case.lines:
                    assert isinstance(line.judge(seen), Finding)


def test_a_judge_that_fails_costs_its_own_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """5e-324 for a number once made a judge divide by zero, and the submission had no grade."""
    monkeypatch.setattr("course_lib.checks.judge.case.hints_may_fail", True)
    name = "first_ranks/message_prediction"
    exercise, case = EXERCISES[name], drawn(name)[0]

    def fails(_: Observed) -> Finding:
        raise ZeroDivisionError("of a line")

    lines = [Line("fails", fails), Line("right", lambda _: RIGHT)]
    case = replace(case, lines=lines)
    session = judge.Session(exercise, [], hidden=True)
    seen = observed(exercise, case, default, zeros)
    assert isinstance(seen, Observed)
    judged = judge.judge_lines(session, case, seen, [])
    assert [row.finding.ok for row in judged] == [False, True]
    assert judged[0].finding.sentences and "ZeroDivisionError: of a line" in session.failures[0]


@pytest.mark.parametrize(
    ("values", "note"),
    [
        ([False, False], "(counts once the values are right)"),
        ([True, False], "(counts once the lines above are right)"),
        ([True, True], ""),
    ],
)
def test_a_line_on_bytes_says_what_it_waits_for(values: list[bool], note: str) -> None:
    name = "first_ranks/message_prediction"
    exercise, case = EXERCISES[name], drawn(name)[0]
    lines = [Line(f"value {k}", lambda _, ok=ok: Finding(ok)) for k, ok in enumerate(values)]
    lines.append(Line("bytes", lambda _: RIGHT, aspect="communication"))
    case = replace(case, lines=lines)
    seen = observed(exercise, case, default, zeros)
    assert isinstance(seen, Observed)
    session = judge.Session(exercise, [], hidden=True)
    assert judge.judge_lines(session, case, seen, [])[-1].note == note


def test_a_case_that_cannot_be_read_costs_its_own_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("course_lib.checks.judge.case.hints_may_fail", True)
    name = "first_ranks/message_prediction"
    exercise, case = EXERCISES[name], drawn(name)[0]
    session = judge.Session(exercise, [], hidden=True)
    outcome = Outcome([], None, Ledger(1, [[]]), 0.0, "gloo", [])  # a reply is missing
    monkeypatch.setattr(judge, "agreed", lambda *_: outcome)
    judged = judge.judge_case(session, case, first=False)
    assert len(judged) == len(case.lines) and not any(row.finding.ok for row in judged)
    assert len(session.failures) == 1
