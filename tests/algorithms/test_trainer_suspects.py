"""Three programs with one process's losses on 2 x 2 x 2 ranks, and two flaws that show on 1,024."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from course_lib import dry_run, launch
from course_lib.checks.notebooks.capstone.suspects import NOTHING, RANK, RIGHT
from course_lib.dry import DryRun, by_axis, whole_batch
from course_lib.mesh import Mesh
from course_lib.models import GPT, GPTConfig, next_token_loss
from course_lib.planning import Layout
from course_lib.runtime.launch import Run
from course_lib.trainer import make_step, suspect_a, suspect_b, suspect_c

SUSPECTS = {"verdict_a": suspect_a, "verdict_b": suspect_b, "verdict_c": suspect_c}
EIGHT, MANY = {"pp": 2, "dp": 2, "tp": 2}, {"pp": 8, "dp": 16, "tp": 8}
TINY = GPTConfig(vocab_size=64, context=32, layers=4, heads=4, width=32, tied=False)
SIXTEEN_LAYERS = GPTConfig(vocab_size=256, context=32, layers=16, heads=8, width=64, tied=False)
ROWS, STEPS, LR = 8, 3, 0.1


def test_two_of_three_cost_too_much_on_1024_ranks() -> None:
    """Rank 517 of pp 8 x dp 16 x tp 8: 4 times the activations, nothing, 8 times the bytes over dp."""
    marks = []
    for suspect in SUSPECTS.values():
        table = of_many(suspect).table()
        marks.append([(row.what, row.mark) for row in table.rows if row.mark])
    assert marks[0] == [("activations: bytes", "<- 4 times")]
    assert marks[1] == []
    assert marks[2] == [("dp: bytes sent", "<- 8 times")]


def batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    made = []
    for _ in range(STEPS):
        inputs, targets = (torch.randint(64, (ROWS, 32), generator=generator) for _ in range(2))
        targets[0, 3:] = -100  # so that the mean of the replicas' means is another loss
        made.append((inputs, targets))
    return made


def losses_on_eight(make: Callable) -> list[float]:
    torch.set_default_dtype(torch.float64)
    step = make(TINY, Layout(EIGHT, microbatch=2), Mesh(EIGHT, device="cpu"), ROWS, LR)
    return [step(*batch) for batch in batches()]


@pytest.fixture(scope="module")
def of_one_process() -> list[float]:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    try:
        model = GPT(TINY)
    finally:
        torch.set_default_dtype(torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    losses = []
    for inputs, targets in batches():
        loss = next_token_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def on_eight(make: Callable) -> Run:
    return launch(losses_on_eight, make, world_size=8, backend="gloo", timeout=300)


@pytest.fixture(scope="module")
def of_a_right_one() -> dict[str, float]:
    """Bytes that rank 5 sends, by axis."""
    return by_axis(on_eight(make_step).ledger.operations(5), EIGHT)[0]


@pytest.mark.parametrize("name", SUSPECTS)
def test_on_eight_real_ranks_each_has_the_losses_and_the_bytes_of_a_right_one(
    name: str, of_one_process: list[float], of_a_right_one: dict[str, float]
) -> None:
    run = on_eight(SUSPECTS[name])
    for losses in run:
        assert losses == pytest.approx(of_one_process, abs=1e-12)
    assert by_axis(run.ledger.operations(5), EIGHT)[0] == of_a_right_one


def of_many(make: Callable) -> DryRun:
    def setup(config: GPTConfig, mesh: Mesh, microbatches: int):
        layout = Layout(mesh.sizes, microbatch=1, recompute="none")
        return make(config, layout, mesh, layout.dp * microbatches, LR)

    def step(made: Callable, mesh: Mesh, batch: list[tuple[Tensor, Tensor]]) -> None:
        made(*whole_batch(batch, mesh))

    return dry_run(setup, step, sizes=MANY, rank=RANK, model=SIXTEEN_LAYERS, microbatches=16)


@pytest.mark.parametrize("name", SUSPECTS)
def test_as_one_rank_of_1024_each_flaw_has_the_factor_that_the_check_wants(name: str) -> None:
    run, (kind, factor) = of_many(SUSPECTS[name]), RIGHT[name]
    rows = {"bytes over dp": ["dp: bytes sent"], "activations": ["activations: bytes"], NOTHING: []}
    marked = [row for row in run.table().rows if row.mark]
    assert [row.what for row in marked] == rows[kind]
    for row in marked:
        assert row.closed and row.measured == factor * row.closed
