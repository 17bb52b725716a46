"""The checks of notebook 07's schedules against the library: it passes them, and the formulas agree."""

from __future__ import annotations

import importlib
import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autograder.sample.mutants import read_mutants
from course_lib.checks.judge import judge
from course_lib.checks.judge.case import Case, Draw, Finding, Observed
from course_lib.checks.judge.conclude import conclude
from course_lib.checks.judge.find import find
from course_lib.checks.judge.replies import plain_data
from course_lib.checks.notebooks.pipeline import interleaved, schedules, zero_bubble
from course_lib.checks.notebooks.pipeline.asked import Rows, Sizes, rows_of, schedules_case
from course_lib.checks.notebooks.pipeline.order import ahead
from course_lib.checks.rank.notebooks.pipeline.schedules import Answers, write_schedules
from course_lib.checks.report import Report
from course_lib.checks.sentence import general
from course_lib.checks.wire import NotAsAgreed, decode, plain_message
from course_lib.ledger.ledger import Ledger
from course_lib.pipeline import Action, Durations, Pair, generators, peak_activations, simulate
from course_lib.pipeline import violation as violated
from course_lib.pipeline.actions import flat
from course_lib.runtime import wire

ASSIGNMENT = "07_pipeline"
MUTANTS = Path(__file__).parents[1] / "mutants" / ASSIGNMENT
SCHEDULES = (
    "naive",
    "gpipe",
    "one_f_one_b",
    "interleaved_one_f_one_b",
    "zero_bubble_h1",
    "dualpipe",
)


def observed(case: Case, function: Callable[..., Any]) -> Observed:
    """The recipe's observations of a function, made without a process for it."""
    values, tensors = write_schedules([function], {}, [], case.sides[0].instructions)
    assert tensors == {}
    told = decode(Answers, plain_data(json.loads(json.dumps(plain_message(values)))))
    return Observed(case, [{}], [told], Ledger(1, [[]]), [[]])


def judge_lines(case: Case, observed: Observed) -> list[judge.Judged]:
    exercise = find(f"{ASSIGNMENT}/gpipe")
    return judge.judge_lines(judge.Session(exercise, [], hidden=False), case, observed, [])


def findings(name: str, function: Callable[..., Any], seed: int, hidden: bool) -> Iterator[Finding]:
    """The finding of each line of an exercise on a function."""
    for case in find(f"{ASSIGNMENT}/{name}").cases(Draw(seed, hidden)):
        for judged in judge_lines(case, observed(case, function)):
            yield judged.finding


def reported(name: str, function: Callable[..., Any], seed: int, kind: str) -> Report:
    """The whole check of a function, without the processes."""
    exercise = find(f"{ASSIGNMENT}/{name}")
    judged = [
        one
        for case in exercise.cases(Draw(seed, kind == "hidden"))
        for one in judge_lines(case, observed(case, function))
    ]
    return conclude(exercise.name, exercise, judged, seed, kind)


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_librarys_own_generators_pass_at_many_seeds(name: str, seed: int) -> None:
    """Without the processes; test_notebook_solutions.py has the whole check."""
    for more in range(seed, seed + 5):
        for found in findings(name, getattr(generators, name), more, hidden=True):
            assert found.ok, found.sentences


@pytest.mark.parametrize("package", ["course_lib.pipeline", "course_lib.pipeline.generators"])
def test_the_librarys_own_generators_are_not_to_be_handed_in(package: str, seed: int) -> None:
    def one_f_one_b(stages: int, microbatches: int) -> list:
        return importlib.import_module(package).one_f_one_b(stages, microbatches)

    report = judge.judge(f"{ASSIGNMENT}/one_f_one_b", wire.dumps((one_f_one_b,)), seed)
    assert report["score"] == 0
    assert "The check judges your own: write your own" in report["lines"][0]["sentences"][0]


def test_a_stub_is_not_written_yet(seed: int) -> None:
    def naive(stages: int, microbatches: int) -> list:
        raise NotImplementedError

    report = judge.judge(f"{ASSIGNMENT}/naive", wire.dumps((naive,)), seed)
    assert report["score"] == 0
    assert [line["title"] for line in report["lines"]] == ["not written yet"]


# --- answers of the ranks ------------------------------------------------------------------------


class Unprintable:
    def __repr__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (None, r"gives None; a list is expected"),
        ({0: []}, r"gives a value of type dict; a list is expected"),
        (Action(0, "F", 0), r"gives a value of type Action; a list is expected"),
        ((row for row in []), r"gives a value of type generator; a list is expected"),
        ([[Action(0, "F", 0)]], r"gives 1 list; 2 lists are expected, one for each rank"),
        ([Action(0, "F", 0)] * 2, r"the entry of rank 0 is a value of type Action, not a list"),
        ([[], {Action(1, "F", 0)}], r"the entry of rank 1 is a value of type set, not a list"),
        ([[(0, "F", 0)], []], r"action 0 of rank 0 is \(0, 'F', 0\)\. Write Action\("),
        ([["0F0"], []], r"action 0 of rank 0 is '0F0'\. Write Action\("),
        ([[Action(0, "F", 0), None], []], r"action 1 of rank 0 is None\. Write Action\("),
        ([[Action(0.5, "F", 0)], []], r"is Action\(0\.5, 'F', 0\)\. Write Action\("),  # type: ignore[arg-type]
        ([[Action(0, "F", True)], []], r"is Action\(0, 'F', True\)\. Write Action\("),
        ([[Action(0, "F", 10**5000)], []], r"is Action\(0, 'F', a value of type very large int"),
        ([[Unprintable()], []], r"raised ValueError: no text"),
        ([[Pair(Action(0, "F", 0), None)], []], r"is .* Write Action\("),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_schedule_is_told(given: Any, says: str) -> None:
    sizes = Sizes(2, 1)
    found = rows_of("naive", observed(schedules_case("one", [sizes], []), lambda *_: given), sizes)
    assert isinstance(found, Finding) and not found.ok
    assert re.search(says, found.sentences[0]), found.sentences


def test_what_no_recipe_tells_is_refused() -> None:
    """A rank's code may answer in the recipe's name: the judge goes on after any answer."""
    sizes = Sizes(2, 1)
    seen = observed(schedules_case("one", [sizes], []), lambda *_: [])
    for told in (
        {},
        {"rows": [[{"pair": 3}], []]},
        {"rows": [[{}], [[]]]},
        {"rows": [[["F", 0, 0]], [[0, "F" * 4000, 0]]]},
        {"rows": [[[0, ["F"], 0]], []]},
        {"rows": [[3], "text"]},
    ):
        forged = replace(seen, values=[decode(Answers, {"answers": [told]})])
        found = rows_of("naive", forged, sizes)
        assert isinstance(found, Finding) and len(found.sentences[0]) < 400, told
    for told in (
        {"error": ["ValueError", "text", "line 1", "more"]},
        {"error": []},
        {"rows": {}},
        {"rows": [], "more": 1},
        [],
    ):
        with pytest.raises(NotAsAgreed):
            decode(Answers, {"answers": [told]})


def test_what_is_a_schedule_comes_back_as_it_is(seed: int) -> None:
    chance = random.Random(seed)
    p = 2 * chance.randrange(1, 5)
    sizes = Sizes(p, 2 * p + 2 * chance.randrange(3))
    case = schedules_case("one", [sizes], [])
    seen = observed(case, lambda *given: tuple(generators.dualpipe(*given)))
    assert rows_of("dualpipe", seen, sizes) == generators.dualpipe(sizes.stages, sizes.microbatches)


# --- points for a schedule of another exercise ---------------------------------------------------


def whole(name: str) -> Callable[..., Rows]:
    """A schedule of one stage a rank under any exercise's arguments."""
    return lambda p, m, chunks=1: getattr(generators, name)(p, m)


def halved(name: str) -> Callable[..., Rows]:
    """The same with every backward cut in two, W after I."""
    return lambda p, m: [
        [half for one in row for half in cut(one)] for row in getattr(generators, name)(p, m)
    ]


def cut(one: Action | Pair) -> list[Action]:
    assert isinstance(one, Action)
    return [one] if one.kind == "F" else [one._replace(kind=kind) for kind in "IW"]


def on_a_loop(forwards_first: bool) -> Callable[..., Rows]:
    """Naive, or GPipe, with the stages of interleaved 1F1B."""

    def generator(p: int, m: int, chunks: int = 2) -> Rows:
        if m % p:
            raise ValueError("no whole groups")
        rows = []
        for rank in range(p):
            own = [rank + p * chunk for chunk in range(chunks)]
            passes = [
                (k, kind, s)
                for k in range(m)
                for kind in "FB"
                for s in own[:: 1 if kind == "F" else -1]
            ]
            if forwards_first:
                passes.sort(key=lambda one: one[1], reverse=True)
            rows.append([Action(s, kind, k) for k, kind, s in passes])
        return rows

    return generator


def second_handmade(p: int, m: int) -> Rows:
    """ZB-H2, if there are microbatches enough for it."""
    return generators.zero_bubble_h2(p, m) if m >= 2 * p - 1 else halved("gpipe")(p, m)


def both_ends(p: int, m: int) -> Rows:
    """1F1B of two copies, one after the other."""
    first = generators.one_f_one_b(p, m // 2)
    other = [
        [
            Action(2 * p - 1 - rank, one.kind, one.microbatch + m // 2)
            for one in flat(first[p - 1 - rank])
        ]
        for rank in range(p)
    ]
    return [[*row, *more] for row, more in zip(first, other, strict=True)]


OTHERS = {
    "naive": [whole("gpipe"), whole("one_f_one_b")],
    "gpipe": [whole("naive"), whole("one_f_one_b")],
    "one_f_one_b": [whole("naive"), whole("gpipe")],
    "interleaved_one_f_one_b": [whole("one_f_one_b"), on_a_loop(False), on_a_loop(True)],
    "zero_bubble_h1": [
        halved("naive"), halved("gpipe"), halved("one_f_one_b"), whole("one_f_one_b"),
        second_handmade,
    ],
    "dualpipe": [both_ends],
}  # fmt: skip


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("cases", ["visible", "hidden"])
def test_another_schedule_of_the_notebook_keeps_a_quarter_at_most(
    name: str, cases: str, seed: int
) -> None:
    """It is an answer to another exercise, perhaps to an earlier one."""
    for other in OTHERS[name]:
        report = reported(name, other, seed, cases)
        assert report.score <= 0.25
        first = report.lines[0]
        if first.passed:
            assert report.score > 0.1, "for a schedule that can be done"
            assert any(
                said.endswith(
                    "at most a quarter of its points are earned, for a schedule that can be done."
                )
                for said in report.messages
            )


def test_a_slip_where_microbatches_are_few_costs_what_it_weighs(seed: int) -> None:
    """1F1B if there are enough of them, and GPipe if not."""

    def mostly(p: int, m: int) -> Rows:
        return generators.one_f_one_b(p, m) if m > p else generators.gpipe(p, m)

    report = reported("one_f_one_b", mostly, seed, "hidden")
    assert 0.7 < report.score < 1, report


# --- messages ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCHEDULES)
def test_of_hidden_cases_nothing_is_told_that_only_they_have(
    name: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages name no arguments and no actions: a function could return a schedule made for them."""
    monkeypatch.setattr("course_lib.checks.judge.case.hints_may_fail", False)
    for mutant in read_mutants(MUTANTS / f"{name}.py"):
        if mutant.right or mutant.title == "PyTorch's":  # the ranks refuse PyTorch's
            continue
        scope: dict[str, Any] = {}
        exec(mutant.text, scope)
        found = [one for one in findings(name, scope[name], seed, hidden=True) if not one.ok]
        assert found, mutant.title
        for said in (general(sentence) for one in found for sentence in one.sentences):
            assert not re.search(
                rf"{name}\(\d|\d[FBIW]\d(?!B)|(action|microbatch|stage) \d", said
            ), said


def damaged(rows: Rows, chance: random.Random) -> Rows:
    """One or two actions moved, lost, done twice or made another's."""
    rows = [list(row) for row in rows]
    for _ in range(chance.randrange(1, 3)):
        row = chance.choice(rows)
        place = chance.randrange(len(row)) if row else 0
        entry = row.pop(place) if row else Action(0, "F", 0)
        how = chance.randrange(4)
        if how == 1:
            row[place:place] = [entry, entry]
        elif how == 2 and isinstance(entry, Action):
            other = Action(chance.randrange(-1, 9), chance.choice("FBIW"), chance.randrange(-1, 9))
            row.insert(place, chance.choice([other, entry._replace(kind=other.kind)]))
        elif how:
            row.insert(chance.randrange(len(row) + 1), entry)
    return rows


@pytest.mark.parametrize("name", SCHEDULES)
def test_of_whatever_is_wrong_something_is_said(
    name: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("course_lib.checks.judge.case.hints_may_fail", False)
    chance = random.Random(f"{seed} {name}")

    def wrong(*sizes: int, **named: int) -> Rows:
        return damaged(getattr(generators, name)(*sizes, **named), chance)

    lost = 0
    for more in range(seed, seed + 20):
        for found in findings(name, wrong, more, hidden=False):
            waits = found.cause == "values"  # a line on memory, while others are wrong
            assert found.ok or waits or found.sentences[0]
            lost += not found.ok
    assert lost > 20


# --- closed forms --------------------------------------------------------------------------------


def some_sizes(seed: int, count: int = 12) -> Iterator[tuple[int, int]]:
    """Stages, and at least as many microbatches."""
    chance = random.Random(seed)
    for _ in range(count):
        p = chance.randrange(2, 9)
        yield p, p + chance.randrange(12)


def test_the_forwards_that_are_asked_for_are_those_of_the_library(seed: int) -> None:
    for p, m in some_sizes(seed):
        for few in (m, 1, p - 1):
            rows = generators.one_f_one_b(p, few)
            needed = [schedules.forwards_needed(Sizes(p, few), rank) for rank in range(p)]
            assert list(map(ahead, rows)) == needed
        rows = generators.zero_bubble_h1(p, m)
        assert list(map(ahead, rows)) == [p - rank for rank in range(p)]
        assert [zero_bubble.stored(row) for row in rows] == list(range(p))
        assert max(peak_activations(rows, weight_share=1)) == p
        for v in (1, 2, 3):
            rows, sizes = generators.interleaved_one_f_one_b(p, 2 * p, v), Sizes(p, 2 * p, v)
            assert list(map(ahead, rows)) == [interleaved.most_ahead(sizes, r) for r in range(p)]


def test_a_warm_up_of_one_step_a_rank_is_enough_where_messages_take_no_time(seed: int) -> None:
    """The check of interleaved 1F1B asks for this warm-up at least; Megatron-LM's has twice the steps."""
    chance = random.Random(seed)
    for p, _ in some_sizes(seed):
        m, v = p * chance.randrange(2, 5), chance.randrange(2, 4)
        lasting = Durations(*(chance.randrange(1, 6) for _ in range(3))).split(v)
        slow = replace(lasting, communication=lasting.forward / 8)
        usual, least, less = (looped(p, m, v, *how) for how in ((2, 0), (1, 0), (1, -1)))
        assert [ahead(row) for row in least] == [
            interleaved.least_ahead(Sizes(p, m, v), rank) for rank in range(p)
        ]
        assert simulate(least, lasting).total == pytest.approx(simulate(usual, lasting).total)
        assert simulate(least, slow).total > simulate(usual, slow).total
        if violated(less) is None:
            assert simulate(less, lasting).total > simulate(least, lasting).total + 1e-9


def looped(p: int, m: int, v: int, steps: int, more: int) -> list[list[Action]]:
    """Interleaved 1F1B with `steps` forwards of warm-up for each rank below, and so many more."""
    rows = []
    for rank, right in enumerate(generators.interleaved_one_f_one_b(p, m, v)):
        singles = [one for one in right if isinstance(one, Action)]
        forwards = [one for one in singles if one.kind == "F"]
        backwards = [one for one in singles if one.kind == "B"]
        lead = min(len(forwards), steps * (p - 1 - rank) + (v - 1) * p + 1 + more)
        row, forwards = forwards[:lead], forwards[lead:]
        for backward in backwards:
            row += [backward, *forwards[:1]]
            forwards = forwards[1:]
        rows.append(row)
    return rows
