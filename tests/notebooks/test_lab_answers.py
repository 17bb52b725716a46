"""The notebooks say of their labs the same as the diagnoses say of these programs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from course_lib.checks.notebooks.first_ranks.quiz import REMEDIES, WAITS
from course_lib.runtime import wire
from course_lib.runtime.diagnosis import Failure
from course_lib.runtime.run import run_ranks


def failure_of(program: Callable[[], object], world_size: int = 3) -> Failure:
    outcome = run_ranks(
        "course_lib.runtime.call:call", {}, wire.dumps((program, (), {})),
        world_size=world_size, timeout=20, backend="gloo",
    )  # fmt: skip
    assert outcome.failure is not None
    return outcome.failure


def neighbour_sum() -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    dist.recv(torch.empty(2), (rank - 1) % n)
    dist.recv(torch.empty(2), (rank + 1) % n)
    dist.send(torch.ones(2), (rank + 1) % n)
    dist.send(torch.ones(2), (rank - 1) % n)


def collect() -> None:
    rank = dist.get_rank()
    if rank:
        for _ in range((3, 3, 2)[rank]):
            dist.send(torch.ones(()), 0)
        return
    for src in (1, 2):
        for _ in range(3):
            dist.recv(torch.empty(()), src)


def global_mean() -> None:
    if dist.get_rank() == 1:
        return
    dist.all_reduce(torch.ones(()))


@pytest.mark.parametrize("program", [neighbour_sum, collect, global_mean])
def test_who_waits_for_whom(program):
    failure = failure_of(program)
    waiting = {r: report.waits_for for r, report in failure.ranks.items() if report.waits_for}
    assert failure.kind == "deadlock"
    assert waiting == {rank: [whom] for rank, whom in WAITS[program.__name__].items()}


def average() -> None:
    t = torch.ones(4)
    if dist.get_rank() == 1:
        dist.broadcast(t, 0)
    else:
        dist.all_reduce(t)


def hand_over() -> None:
    if dist.get_rank() == 0:
        dist.send(torch.ones(4), 1)
    elif dist.get_rank() == 1:
        dist.recv(torch.empty(5), 0)


def columns() -> None:
    dist.all_reduce(torch.ones(4, 4)[:, ::2])


def relay() -> None:
    if dist.get_rank() == 0:
        t = torch.ones(4)
        handle = dist.isend(t, 1)
        t.add_(1)
        handle.wait()
    elif dist.get_rank() == 1:
        dist.recv(torch.empty(4), 0)


def farewell() -> None:
    if dist.get_rank() == 0:
        dist.isend(torch.ones(4), 1)
    elif dist.get_rank() == 1:
        dist.recv(torch.empty(4), 0)


SAYS = {
    "the same collective on every rank": "must call the same collectives",
    "the same size and dtype at both ends": "same number of elements and the same dtype",
    "contiguous()": "x.contiguous()",
    "wait before writing": "was changed before wait()",
    "wait for the handle": "returned without waiting for",
}


@pytest.mark.parametrize("program", [average, hand_over, columns, relay, farewell])
def test_what_would_cure_it(program):
    assert SAYS[REMEDIES[program.__name__]] in failure_of(program).message


def one_sample_more() -> None:
    """Notebook 03, section 1: ten samples on four ranks, none of them filled up."""
    for _ in range(10)[dist.get_rank() :: dist.get_world_size()]:
        dist.all_reduce(torch.ones(4))


def test_ranks_with_one_sample_more_wait_for_ever():
    failure = failure_of(one_sample_more, world_size=4)
    waiting = {r: report.waits_for for r, report in failure.ranks.items() if report.waits_for}
    assert failure.kind == "deadlock"
    assert waiting == {0: [2, 3], 1: [2, 3]}
    assert "collective number 3" in failure.message
