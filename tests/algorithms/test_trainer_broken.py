"""The three broken steps: each fails on the layouts with the axes that it needs, and on no other one."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import pytest
import torch

from course_lib import launch
from course_lib.checks.notebooks.capstone.broken_steps import BROKEN
from course_lib.mesh import Mesh
from course_lib.models import GPT, GPTConfig, next_token_loss
from course_lib.planning import Layout
from course_lib.trainer import broken, smallest_failing

CONFIG = GPTConfig(
    vocab_size=16, context=16, layers=2, heads=2, width=32, positions="rotary", tied=False
)
ROWS, LR, STEPS = 4, 1.0, 3
AXES: tuple[str, ...] = ("pp", "dp", "cp", "tp")
Sizes = tuple[int, ...]  # of AXES
LAYOUTS: dict[int, list[Sizes]] = {
    n: [s for s in product((1, 2), repeat=4) if prod(s) == n] for n in (1, 2, 4)
}
WHOLE: dict[str, Sizes] = {"step_a": (2, 2, 1, 2), "step_b": (2, 1, 2, 2), "step_c": (2, 2, 1, 2)}


def test_a_broken_step_is_right_on_two_replicas() -> None:
    """Data parallelism alone: all three have the loss of one rank, in each of two steps."""

    def job(name: str, ranks: int) -> list[float]:
        torch.set_default_dtype(torch.float64)
        layout = Layout({"dp": ranks}, microbatch=1, zero=1)
        step = getattr(broken, name)(CONFIG, layout, Mesh(layout.sizes), ROWS, LR)
        tokens = torch.arange(ROWS * (CONFIG.context + 1)).view(ROWS, -1) % CONFIG.vocab_size
        return [step(tokens[:, :-1], tokens[:, 1:]) for _ in range(2)]

    for name in WHOLE:
        one, two = (launch(job, name, n, world_size=n, backend="gloo")[0] for n in (1, 2))
        assert two == pytest.approx(one, abs=1e-12)


def tokens_of(step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    return torch.randint(CONFIG.vocab_size, (ROWS, CONFIG.context + 1), generator=generator)


def on_ranks(asked: list[tuple[str, Sizes]]) -> dict[Any, list[float]]:
    torch.set_default_dtype(torch.float64)
    losses = {}
    for name, numbers in asked:
        sizes = dict(zip(AXES, numbers, strict=True))
        layout = Layout(sizes, microbatch=1, zero=1, sequence=sizes["tp"] > 1)
        step = getattr(broken, name)(CONFIG, layout, Mesh(sizes), ROWS, LR)
        batches = (tokens_of(number) for number in range(STEPS))
        losses[name, numbers] = [step(tokens[:, :-1], tokens[:, 1:]) for tokens in batches]
    return losses


@pytest.fixture(scope="module")
def apart() -> dict[Any, list[float]]:
    """By step and sizes, how far each loss is from one process."""
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    model = GPT(CONFIG)
    torch.set_default_dtype(torch.float32)
    optimizer, right = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9), []
    for number in range(STEPS):
        tokens = tokens_of(number)
        loss = next_token_loss(model(tokens[:, :-1]), tokens[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        right.append(loss.item())
    asked = {n: list(product(WHOLE, layouts)) for n, layouts in LAYOUTS.items()}
    asked[8] = list(WHOLE.items())
    found = {}
    for n, calls in asked.items():
        run = launch(on_ranks, calls, world_size=n, backend="gloo", timeout=300)
        for key, losses in run[0].items():
            found[key] = [abs(one - other) for one, other in zip(losses, right, strict=True)]
    return found


@pytest.mark.parametrize("answer", BROKEN)
def test_a_step_fails_where_the_check_says_so_and_nowhere_else(answer: str, apart: Any) -> None:
    wrong = BROKEN[answer]
    for (name, numbers), differences in apart.items():
        if name != wrong.name:
            continue
        larger = frozenset(axis for axis, size in zip(AXES, numbers, strict=True) if size > 1)
        if wrong.fails(larger):
            assert max(differences) > 1e-5, (numbers, differences)
        else:
            assert max(differences) < 1e-12, (numbers, differences)


@pytest.mark.parametrize("answer", BROKEN)
def test_the_search_finds_the_axes_from_eight_ranks_on(answer: str, apart: Any) -> None:
    wrong = BROKEN[answer]
    sizes = dict(zip(AXES, WHOLE[wrong.name], strict=True))

    def fails(asked: dict[str, int]) -> bool:
        return max(apart[wrong.name, tuple(asked.values())]) > 1e-9

    assert set(smallest_failing(sizes, fails)) in wrong.needs


def test_the_first_loss_tells_a_forward_from_a_gradient(apart: Any) -> None:
    """The norms' gradients show from the second loss on; positions and groups in the first."""
    assert apart["step_a", (1, 1, 1, 2)][0] < 1e-12
    assert apart["step_b", (2, 1, 2, 1)][0] > 1e-6
    assert apart["step_c", (1, 2, 1, 2)][0] > 1e-6
