"""Memory counts from before a student's objects are read: by then libraries are there, and no more."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from course_lib.runtime.held import Held
from course_lib.runtime.moments import BASE, OF_LIBRARIES, START, Moments


def moments(backend: str, room: int) -> Moments:
    children = SimpleNamespace(measured={})
    pool: Any = SimpleNamespace(
        world_size=1, logs=[()], stacks=[0], children=children, backend=backend
    )
    pool.stacks = [os.open(os.devnull, os.O_RDONLY)]
    return Moments(pool, (), None, room)


@pytest.mark.parametrize(
    ("base", "counts"),
    [(1_000, 1_000), (1_500, 1_500), (1_501, 1_500), (9_000_000, 1_500), (10, 10)],
)
def test_a_base_counts_for_no_more_than_the_start_and_a_little_room(base: int, counts: int) -> None:
    host = moments("gloo", 500)
    host.readings[0] = {START: [Held(1_000, 1_000, 1_000)], BASE: [Held(base, base, base)]}
    at_most = host.at_most(0, host.readings[0][BASE][0])
    assert (at_most.whole, at_most.anonymous) == (counts, counts)
    assert at_most.resident == min(base, 1_500 + OF_LIBRARIES)
    assert host.above(0, "held.0", Held(10_000, 10_000)) == 10_000 - counts


def test_where_nothing_was_measured_at_the_start_a_base_is_a_base() -> None:
    base = Held(9_000_000, 9_000_000, 9_000_000)
    assert moments("gloo", 500).at_most(0, base) == base
    on_gpu = moments("nccl", 500)
    on_gpu.readings[0] = {START: [Held(0, 0, 0)]}
    assert on_gpu.at_most(0, base) == base
