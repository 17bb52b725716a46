"""The scorecard counts exactly: FLOPs, bytes of live tensors, bytes sent."""

from __future__ import annotations

import random

import pytest
import torch
import torch.distributed as dist

from course_lib import launch
from course_lib.scorecard import Costs, costs, scorecard


def test_flops_of_products_and_sums_forward_and_backward(seed: int) -> None:
    draw = random.Random(seed)
    m, n, k = (draw.randint(1, 40) for _ in range(3))
    weight = torch.randn(k, n, requires_grad=True)
    with costs(weight) as spent:
        (torch.ones(m, k) @ weight).sum().backward()
    # the product, its sum, and the product for the weight's gradient
    assert spent.flops == 2 * m * n * k + m * n + 2 * m * n * k


def test_elementwise_work_counts_one_for_each_element(seed: int) -> None:
    n = random.Random(seed).randint(1, 1000)
    with costs() as spent:
        x = torch.ones(n)
        x += 1
        x = x * 2 + x
        x[: n // 2].clone()  # a copy computes nothing
    assert spent.flops == 3 * n


def test_the_peak_is_what_is_alive_at_once(seed: int) -> None:
    n = random.Random(seed).randint(1, 1000)
    own = torch.ones(n)
    with costs(own) as spent:
        for _ in range(5):
            scratch = torch.empty(3 * n)
            del scratch
        assert spent.peak_bytes == 4 * 4 * n
        kept = [torch.empty(n) for _ in range(6)]
        assert spent.peak_bytes == 7 * 4 * n
        del kept
    assert spent.peak_bytes == 7 * 4 * n


def test_views_of_a_tensor_are_counted_once() -> None:
    own = torch.ones(4, 6)
    with costs(own) as spent:
        views = [own.t(), own[:, ::2], own.view(-1), own.t()[1:]]
        own.add_(1)
    assert spent.peak_bytes == 4 * 24
    assert len(views) == 4


def test_the_scorecard_of_real_runs(seed: int) -> None:
    numel = random.Random(seed).randint(1, 2000)

    def pass_on(tensor: torch.Tensor) -> torch.Tensor:
        rank, n = dist.get_rank(), dist.get_world_size()
        received = torch.empty_like(tensor)
        request = dist.isend(tensor, (rank + 1) % n)
        dist.recv(received, (rank - 1) % n)
        request.wait()
        return received

    def job(algorithm) -> Costs:
        own = torch.ones(numel)
        with costs(own) as spent:
            algorithm(own)
        return spent

    def twice(tensor: torch.Tensor) -> torch.Tensor:
        return pass_on(pass_on(tensor) + tensor)

    runs = {name.__name__: launch(job, name, world_size=3) for name in (pass_on, twice)}
    card = scorecard(runs, unit=4 * numel, flops_alone=2 * numel)
    one, two = card.rows
    assert (one.flops, one.peak_bytes, one.bytes_sent) == (0, 8 * numel, 4 * numel)
    # at the worst moment: own, received, their sum; then own, the sum, what is received
    assert (two.flops, two.peak_bytes, two.bytes_sent) == (3 * numel, 12 * numel, 8 * numel)
    assert card.cells(two)[2] == "1.5 x one process"
    assert card.cells(two)[4].startswith("2 M (")
    assert "twice" in str(card) and "<td" in card._repr_html_()


def test_a_job_that_returns_no_costs_is_named() -> None:
    run = launch(dist.get_rank, world_size=1)
    with pytest.raises(ValueError, match="rank 0 of 'mine' returned 0; the job must return"):
        scorecard({"mine": run}, unit=4)
