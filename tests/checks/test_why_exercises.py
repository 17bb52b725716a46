"""Notebook 01's checks: their sentences, visible and hidden, and the borders on which plans lie."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import pytest

from course_lib import facts
from course_lib.checks import check, kit
from course_lib.checks.judge.case import Draw, Exercise
from course_lib.checks.judge.find import of_assignment
from course_lib.checks.judge.formulas import Keywords, Model, Prediction, applied, call, published
from course_lib.checks.notebooks.why_distribute import layouts, meter, names, sizes
from course_lib.checks.report import Report
from course_lib.models import GPTConfig

ASSIGNMENT = "01_why_distribute"


def judged(name: str, *objects: Any, seed: int) -> tuple[str, str]:
    """The check's sentences, and those that a hidden case may show in their place."""
    report: Report = check(f"{ASSIGNMENT}/{name}", *objects, seed=seed)
    hidden = (sentence for line in report.lines for sentence in line.general or [])
    return " ".join(map(str, report.messages)), " ".join(hidden)


# ---- questions


def test_a_model_is_named_as_it_is_published_or_by_what_differs() -> None:
    assert repr(published("Llama-3-8B")) == "Llama-3-8B"
    assert repr(Model(layers=7, bias=False)) == "GPTConfig(layers=7, bias=False)"
    assert call(2, (Model(), 3, (1.0, 2.0), Keywords(causal=True))) == [
        2, [{"config": asdict(GPTConfig())}, 3, {"tuple": [1.0, 2.0]}], {"causal": True},
    ]  # fmt: skip


def test_drawn_models_have_all_values_of_all_switches(seed: int) -> None:
    drawn = [sizes.drawn(Draw(seed), number) for number in range(12)]
    for name in ("mlp", "norm", "positions", "bias", "tied"):
        assert len({getattr(model, name) for model in drawn}) == 2, name
    assert any(model.kv_heads is None for model in drawn)
    assert any(model.kv_heads not in (None, 1) for model in drawn)
    assert all(model.hidden is None or model.hidden != 4 * model.width for model in drawn)


@pytest.mark.parametrize("module", ["sizes", "flops", "activations", "speed", "budgets"])
def test_every_mistake_has_numbers_of_its_own(
    module: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the arguments of a check no mistake gives what is right, nor what another mistake gives."""
    held = importlib.import_module(f"course_lib.checks.notebooks.why_distribute.{module}")
    questions: list[Prediction] = []
    monkeypatch.setattr(kit, "evaluated", lambda asked: iter(questions.extend(asked) or ()))
    for exercise in vars(held).values():
        if isinstance(exercise, Exercise):
            assert list(exercise.cases(Draw(seed))) == []
    by_slips: dict[int, list[Prediction]] = {}
    for question in questions:
        by_slips.setdefault(id(question.slips), []).append(question)
    for group in by_slips.values():
        rows = {says: numbers(group, slip) for says, slip in group[0].slips.items()}
        right = numbers(group, group[0].formula)
        for says, row in rows.items():
            assert row != right, f"{group[0].name}: never wrong: {says}"
        assert len({*rows.values()}) == len(rows), [
            says for says, row in rows.items() if list(rows.values()).count(row) > 1
        ]


def numbers(questions: Sequence[Prediction], formula: Callable[..., float]) -> tuple[float, ...]:
    """A formula's numbers on all arguments, to six digits."""
    return tuple(
        float(f"{applied(formula, args):.6g}")
        for question in questions
        for args in question.arguments
    )


def test_a_message_shows_the_call_and_a_hidden_one_does_not(seed: int) -> None:
    def step_flops(config, batch, seq, *, backward=True, causal=False, recompute=False):
        return (6 if backward else 2) * batch * seq * config.width

    visible, hidden = judged("step_flops", step_flops, seed=seed)
    assert "step_flops(GPTConfig(vocab_size=2, " in visible
    assert ", 1, 1024, backward=False) gives" in visible
    assert "GPTConfig" not in hidden and "gives a wrong number" in hidden


def test_a_part_that_is_missing_is_named(seed: int) -> None:
    def parameters(config):
        return {"embedding": config.vocab_size * config.width}

    visible, hidden = judged("parameters", parameters, seed=seed)
    assert "parameters(GPT-2 small) gives a dict without 'attention'." in visible
    assert "parameters gives a dict without 'attention' for some arguments." in hidden


def test_another_form_than_a_dict_is_named_once(seed: int) -> None:
    visible, hidden = judged("parameters", lambda config: 12, seed=seed)
    assert visible.count("gives the number 12, but a dict is expected.") == 1
    assert "parameters gives no dict for some arguments." in hidden and "12" not in hidden


def test_parts_of_a_function_that_raises_have_one_cause(seed: int) -> None:
    def parameters(config):
        return {"embedding": config.size}

    visible, _ = judged("parameters", parameters, seed=seed)
    assert visible.count("parameters(GPT-2 small) raised AttributeError") == 1
    assert "of parameters" not in visible

    def unwritten(config):
        raise NotImplementedError

    assert judged("parameters", unwritten, seed=seed)[0] == "parameters is not written yet."


# ---- layouts


def test_a_layout_that_does_not_fit_is_told_with_its_own_bill(seed: int) -> None:
    def first_that_fits(config, gpus, room, batch, seq):
        return 2, False

    visible, hidden = judged("first_that_fits", first_that_fits, seed=seed)
    assert "gives (2, False), but (2, False) needs" in visible and "the room is" in visible
    assert " GB (weights" in visible and " GB (" not in hidden
    assert "first_that_fits gives a layout that does not fit." in hidden


def test_plans_lie_on_borders(seed: int) -> None:
    """A layout just fits, and with the spare room taken away another answer is right."""
    draw, kinds = Draw(seed), set[tuple[int, bool] | None]()
    for number in range(layouts.CASES):
        plan = layouts.on_the_border(draw, number, inside=True)
        right = plan.right
        assert right is not None
        spare = plan.room - sum(plan.bill(right).values())
        assert spare == pytest.approx(1.0, abs=1e-2) or spare <= 0.0041 * plan.room
        less = replace(plan, room=plan.room - 2 * spare)
        assert less.right != right
        kinds |= {right, less.right}
    assert kinds >= {
        (0, False),
        (1, False),
        (2, False),
        (3, False),
        (0, True),
        (1, True),
        (3, True),
        None,
    }


def test_some_rooms_are_exactly_as_large_as_a_bill(seed: int) -> None:
    """One byte less, and the layout no longer fits; a sum in GB fits as well as one in bytes."""
    draw = Draw(seed)
    for number in range(6):
        plan = layouts.exactly(draw, number)
        assert plan.right == (number % 4, True)
        bill = plan.bill(plan.right)
        assert sum(bill.values()) == plan.room
        assert sum(part / 1e9 for part in bill.values()) <= plan.room / 1e9
        assert replace(plan, room=plan.room - 1).right != plan.right


def test_a_stub_that_a_plan_needs_is_named(seed: int) -> None:
    def parameters(config):
        raise NotImplementedError

    def first_that_fits(config, gpus, room, batch, seq):
        return sum(parameters(config).values()), False

    visible, hidden = judged("first_that_fits", first_that_fits, seed=seed)
    assert visible == "`first_that_fits` calls `parameters`, which is not written yet."
    assert hidden == "`first_that_fits` calls a function that is not written yet."


# ---- the meter


def test_a_name_is_explained_over_both_runs() -> None:
    right = {"": 2.0, "0": 3.0, "1.0": 5.0}
    other = {"": 7.0, "tail": 1.0}
    parents = {"": 5.0, "1": 5.0}
    assert names.why([(parents, right)]).startswith("The module around the one that runs")
    assert names.why([(parents, right), ({"": 8.0}, other)]).startswith("The module around")
    assert names.why([(parents, right), ({"tail": 8.0}, other)]) == names.INNERMOST
    assert names.why([({"": 8.0}, other)]).startswith("The first of the names")
    assert names.why([({"": 9.0}, other)]) == names.NOT_ALL


def test_every_mistake_of_the_meter_has_a_number_of_its_own() -> None:
    for seed in range(200):
        for name, run in meter.runs(Draw(seed)).items():
            assert run.total not in run.slips, (seed, name)
            numbers = list(run.slips)
            assert len(numbers) == len(set(numbers))


def test_the_blocks_bytes_are_the_facts(seed: int) -> None:
    run = meter.runs(Draw(seed))["block"]
    config = GPTConfig(layers=1, heads=run.model["heads"], width=run.model["width"])
    assert run.total == facts.activation_bytes(config, 1, run.rows, 4)


def test_exercises_have_sixty_points_and_three_more() -> None:
    known = of_assignment(ASSIGNMENT)
    points = {name: exercise.points for name, exercise in known.items() if not exercise.extra}
    assert points == {
        "parameters": 6, "step_flops": 8, "saved_bytes": 8, "activation_bytes": 6, "recipes": 6,
        "roofline": 6, "budgets": 6, "first_that_fits": 8, "questions": 6,
    }  # fmt: skip
    assert known["crossover"].extra and known["crossover"].points == 3
