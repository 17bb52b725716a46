"""Functions of numbers: how far off an answer is, and the mistake that explains all of the report."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from course_lib import checks
from course_lib.checks import check
from course_lib.checks.judge.case import Observed, wrong
from course_lib.checks.judge.find import find
from course_lib.checks.judge.formulas import Prediction, compared, entry, evaluated, place
from course_lib.checks.rank.harness import Answer, Answers
from course_lib.ledger.ledger import Ledger

SLIPS = {
    "one is left out.": lambda n: n,
    "it is squared.": lambda n: n * n,
}


@pytest.mark.parametrize(
    ("value", "right", "apart"),
    [
        (4.0, 2.0, "2 times the right value"),
        (5.0, 4.0, "1.25 times the right value"),
        (2.0, 3.0, "the right value is 1.5 times as large"),
        (1.0, 1.001, "0.1 % too small"),
        (1.053, 1.0, "5.3 % too large"),
        (-1.05, -1.0, "5 % too large"),
        (1.0001, 1.0, "too large by less than 0.1 %"),
        (5e-324, 3.0, "3 is right"),
        (3.0, 5e-324, "4.941e-324 is right"),
        (-1.0, 3.0, "3 is right"),
        (float("inf"), 3.0, "a finite number is right"),
    ],
)
def test_how_far_off_a_number_is(value: float, right: float, apart: str) -> None:
    assert compared(value, right) == apart


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (None, "None, but 2 numbers are expected (is there a `return` at its end?)"),
        ([1], "1 value, but 2 numbers are expected"),
        ([], "an empty list, but 2 numbers are expected"),
        ({"dict": [["a", 1]]}, "a dict, but 2 numbers are expected"),
        (12345, "the number 12,345, but 2 numbers are expected"),
        ("both", "'both', but 2 numbers are expected"),
        ({"other": "Fraction"}, "a value of type Fraction, but 2 numbers are expected"),
    ],
)
def test_an_answer_of_another_form_is_met_with_what_came(value: object, form: str) -> None:
    misfit = place(0, 2)(value)
    assert (misfit, misfit.general) == (form, "no list of 2 numbers")
    if "dict" not in form:
        assert entry("a")(value) == form.replace("2 numbers are", "a dict is")


def test_a_hint_is_given_only_if_it_explains_every_line_about_the_function() -> None:
    def line(title: str, *numbers: int, slips: dict | None = None) -> Prediction:
        return Prediction(
            "count", 0, [(n,) for n in numbers], lambda n: n + 1, slips or SLIPS, title=title,
            otherwise="Count again.",
        )  # fmt: skip

    lines = [line("small", 2, 3), line("large", 8, 9)]
    assert said(lines, lambda n: n) == ["one is left out.", "one is left out."]
    assert said(lines, lambda n: n + 1 if n < 5 else n * n) == ["", "it is squared."]
    assert said(lines, lambda n: n if n < 5 else n * n) == ["Count again.", "Count again."]
    other_mistakes = [lines[0], line("part", 8, 9, slips=dict(SLIPS))]
    assert said(other_mistakes, lambda n: n if n < 5 else n * n) == [
        "one is left out.", "it is squared.",
    ]  # fmt: skip


def test_the_mistake_that_gives_the_right_answers_too_goes_first() -> None:
    """Both give 16 for 4; at 2 the function is right, which one of them explains."""
    slips = {"the last is left out.": lambda n: 4 * n, "it is squared.": lambda n: n * n}
    lines = [
        Prediction("square", 0, [(n,)], lambda n: 2 * n, slips, title=str(n), otherwise="Again.")
        for n in (4, 2)
    ]
    assert said(lines, lambda n: n * n) == ["it is squared.", ""]


def test_a_right_answer_speaks_against_a_mistake_that_is_made_overall() -> None:
    """5 for 2 is right and not a square, so the function did not square every number."""

    def line(overall: Sequence[str]) -> list[Prediction]:
        numbers = [(2,), (3,)]
        return [
            Prediction(
                "next", 0, numbers, lambda n: 2 * n + 1, SLIPS, otherwise="Again.", overall=overall
            )
        ]

    assert said(line(()), lambda n: n * n if n == 3 else 2 * n + 1) == ["it is squared."]
    assert said(line([*SLIPS]), lambda n: n * n if n == 3 else 2 * n + 1) == ["Again."]
    assert said(line([*SLIPS]), lambda n: n * n) == ["it is squared."]


def said(questions: Sequence[Prediction], function: Callable[[int], float]) -> list[str]:
    """The hints of the lines."""
    (case,) = evaluated(questions)
    answers = [Answer(function(*args)) for _, args in case.sides[0].instructions.calls]
    observed = Observed(case, [{}], [Answers(answers)], Ledger(1, [[]]), [[]])
    findings = [line.judge(observed) for line in case.lines]
    return [finding.sentences[-1] if not finding.ok else "" for finding in findings]


def test_equal_advice_has_one_cause_if_what_was_seen_differs_in_figures_alone() -> None:
    first = wrong("rank 1 sent 4,096 bytes.", "Half are enough.")
    assert first.cause == wrong("rank 12 sent 1.5 bytes.", "Half are enough.").cause
    assert first.cause != wrong("rank 1 received 4,096 bytes.", "Half are enough.").cause
    assert first.cause != wrong("rank 1 sent 4,096 bytes.", "A third is enough.").cause
    assert wrong("4 bytes.").cause != wrong("5 bytes.").cause


@pytest.mark.parametrize(
    "name", ["01_why_distribute/crossover", "04_zero/deal", "08_context_parallel/zigzag"]
)
def test_an_error_without_text_leaves_no_colon(name: str, capsys: pytest.CaptureFixture) -> None:
    def bare(*args: object, **kwargs: object) -> None:
        raise ValueError

    report = check(name, *[bare for _ in find(name).objects])
    raised = [text for text in report.messages if "raised" in text]
    assert raised and all(text.endswith("raised ValueError") for text in raised), raised
    assert "ValueError:" not in capsys.readouterr().out


def test_no_check_puts_a_colon_between_an_error_and_its_text_by_itself() -> None:
    folder = Path(checks.__file__).parent
    files = [file for file in folder.rglob("*.py") if file.name != "sentence.py"]
    pattern = re.compile(r"\{(error|kind)\}: \{")
    assert files and not [file for file in files if pattern.search(file.read_text("utf-8"))]
