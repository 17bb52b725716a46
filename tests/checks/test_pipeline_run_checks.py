"""Checks of notebook 07 that run something: run_schedule, PipeDreamStage, and the formulas beside them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from autograder.sample.mutants import read_mutants
from course_lib import facts, launch
from course_lib.checks.judge.case import Draw, Observed
from course_lib.checks.notebooks.pipeline.running import drawn, trouble
from course_lib.checks.notebooks.pipeline.running_values import counted, why
from course_lib.checks.notebooks.pipeline.running_whole import ScheduleRun, any_order, case
from course_lib.checks.rank.notebooks.pipeline.fingerprints import fingerprint
from course_lib.checks.rank.notebooks.pipeline.watching import Kept, Watched
from course_lib.ledger.ledger import Ledger
from course_lib.pipeline import Schedule, Stage, run_schedule, stage_ranks, violation
from course_lib.pipeline.actions import flat
from course_lib.pipeline.generators import gpipe, interleaved_one_f_one_b, one_f_one_b
from tests.checks.test_mutants import judged as judged_mutant

ASSIGNMENT = "07_pipeline"
MUTANTS = Path(__file__).parents[1] / "mutants" / ASSIGNMENT
ROWS, WIDTH = 3, 5


@pytest.mark.parametrize(
    ("schedule", "chunks"),
    [
        (gpipe(1, 3), 1),
        (one_f_one_b(3, 4), 1),
        (interleaved_one_f_one_b(2, 4, 2), 2),
        (interleaved_one_f_one_b(3, 3, 3), 3),
    ],
    ids=["alone", "1F1B", "two chunks", "three chunks"],
)
def test_bytes_sent_are_those_of_the_closed_form(
    schedule: Schedule, chunks: int, seed: int
) -> None:
    """A plain stack of layers, which share nothing."""
    ranks = stage_ranks(schedule)
    count = 1 + max(one.microbatch for one in flat(schedule[0]))

    def body() -> None:
        torch.manual_seed(seed)
        batch = [(torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)) for _ in range(count)]
        stages = [
            Stage(
                index, len(ranks), nn.Linear(WIDTH, WIDTH), lambda x: x.shape,
                lambda y, t: (y - t).square().sum(), lambda t: torch.tensor(t.numel()),
            )
            for index in sorted(ranks) if ranks[index] == dist.get_rank()
        ]  # fmt: skip
        run_schedule(stages, schedule, batch)

    world_size = len(schedule)
    run = launch(body, world_size=world_size, backend="gloo")
    nbytes = ROWS * WIDTH * 4
    assert [run.ledger.bytes_sent(rank) for rank in range(world_size)] == [
        facts.pipeline_bytes_sent(world_size, count, rank, nbytes, chunks) for rank in range(world_size)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("exercise", "title"),
    [
        ("run_schedule", "GPipe, whatever the schedule says"),
        ("run_schedule", "what came in is kept to the end"),
        ("run_schedule", "outputs go to every rank"),
        ("pipedream_stage", "no versions, forward once more"),
    ],
)
def test_what_misses_the_point_is_half_at_most(exercise: str, title: str, seed: int) -> None:
    (mutant,) = (one for one in read_mutants(MUTANTS / f"{exercise}.py") if one.title == title)
    report, printed = judged_mutant(f"{ASSIGNMENT}/{exercise}", mutant, seed, whole=True)
    assert 0 < report.score <= 0.5, printed


# ---- drawing runs, decoding them and observing them


@pytest.mark.parametrize("overtaking", [False, True])
def test_orders_without_a_plan_are_valid(overtaking: bool, seed: int) -> None:
    draw, differ = Draw(seed), 0
    for _ in range(20):
        found = any_order(draw, 3, 5, overtaking)
        assert violation(found, 3, 5) is None
        orders = {kind: [[k for _, one, k in row if one == kind] for row in found] for kind in "FB"}
        differ += any(row != rows[0] for rows in orders.values() for row in rows)
    assert differ > 10 if overtaking else differ == 0


def a_run(seed: int, earlier: bool = False) -> ScheduleRun:
    return drawn(Draw(seed), "run", "tokens", [list(row) for row in gpipe(2, 4)], earlier)  # type: ignore[arg-type]


def shares_of(run: ScheduleRun, weights: list[float], stage: int) -> list[float] | None:
    """The weights that `counted` finds in a gradient whose microbatches count so often."""
    total = sum(run.counts)
    tensors = {
        f"run.grad.{name}": sum(w * run.term(k, stage)[name] for k, w in enumerate(weights)) / total
        for name in run.term(0, stage)
    }
    given = case("", [run], [])
    seen = Observed(given, [tensors] * 2, [{}] * 2, Ledger(2, [[], []]), [[], []])  # type: ignore[list-item]
    return counted(run, seen, stage, rank=stage)


def test_how_often_each_microbatch_counts_is_read_from_a_gradient(seed: int) -> None:
    run = a_run(seed)
    for stage, weights in enumerate([[1.0, 0.0, 2.0, 1.0], [0.25] * 4]):
        found = shares_of(run, weights, stage)
        assert found == pytest.approx(weights, abs=1e-8)
        assert found is not None
        says = why(run, found, stage)
        assert ("microbatch 1 counts never and microbatch 2 counts 2 times" in says) == (stage == 0)
        assert ("4 times too small" in says) == (stage == 1)


def test_a_sum_divided_by_the_microbatches_is_named(seed: int) -> None:
    run = a_run(seed)
    share = sum(run.counts) / len(run.batch)
    found = shares_of(run, [share] * len(run.batch), 0)
    assert "divided by the number of microbatches" in why(run, found, 0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("One of the differentiated Tensors does not require grad", "torch.autograd.backward"),
        ("element 0 of tensors does not require grad", "must ask for a gradient"),
        ("'NoneType' object has no attribute 'contiguous'", "Is x.grad None?"),
        ("The size of tensor a (4) must match the size of tensor b (3)", "another microbatch"),
        ("Expected input batch_size (8) to match target batch_size (3).", "another microbatch"),
        ("the two ends of a message differ", "sender's order"),
        ("ZeroDivisionError", ""),
    ],
)
def test_what_usually_breaks_a_run_is_named(text: str, says: str, seed: int) -> None:
    said = trouble(case("", [a_run(seed)], []), "error", text)
    assert says in said and bool(says) == bool(said)


def test_a_gradient_of_other_outputs_is_no_sum_of_microbatches(seed: int) -> None:
    run = a_run(seed)
    changed = run.term(0, 0)["linear.weight"]
    changed += torch.randn(changed.shape, generator=torch.Generator().manual_seed(seed))
    other = a_run(seed)
    tensors = {f"run.grad.{name}": one for name, one in run.term(0, 0).items()}
    seen = Observed(case("", [other], []), [tensors] * 2, [{}] * 2, Ledger(2, [[], []]), [[], []])
    assert counted(other, seen, 0, 0) is None


def test_what_forward_kept_counts_until_nobody_has_it() -> None:
    layer, x = nn.Linear(4, 4), torch.ones(3, 4, requires_grad=True)
    with Kept([*layer.parameters(), x]) as kept:
        first = torch.tanh(layer(x))
        second = torch.tanh(layer(x))
    assert kept.nbytes() == 2 * 3 * 4 * 4
    first.sum().backward()
    assert kept.nbytes() == 2 * 3 * 4 * 4, "first is its tanh's output, and still here"
    del first
    assert kept.nbytes() == 3 * 4 * 4
    second.sum().backward(retain_graph=True)
    held = second.detach()
    del second
    assert kept.nbytes() == 3 * 4 * 4
    del held
    assert kept.nbytes() == 0


def test_a_stage_tells_its_passes_in_their_order() -> None:
    watched = Watched(nn.Linear(2, 2))
    inputs = [torch.full((size, 2), 2.0) for size in (1, 3)]
    outputs = [watched(x) for x in inputs]
    for y in outputs[::-1]:
        y.sum().backward()
    assert [event[:2] for event in watched.events] == [("F", 0), ("F", 1), ("B", 1), ("B", 0)]
    assert watched.inputs == [fingerprint(x) for x in inputs]
