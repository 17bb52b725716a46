"""What the checks of notebook 07 judge by itself, and what they say beside the points."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist

from course_lib import facts, launch
from course_lib.checks.engine import judge as judging
from course_lib.checks.engine.report import Report
from course_lib.checks.pipeline.running_nccl import (
    Steps,
    batches,
    mixed_up,
    takes_turns,
    waits_for_ever,
)
from course_lib.ledger.ledger import Ledger
from course_lib.pipeline import simulate
from course_lib.pipeline.actions import parts
from course_lib.pipeline.generators import one_f_one_b
from course_lib.runtime import wire
from tests.test_mutants import judged, mutants

MUTANTS = Path(__file__).parent / "mutants" / "07_pipeline"

# --- two fractions -------------------------------------------------------------------------------

RIGHT_IDEAL = """
def bubble_of_ideal(schedule, stages, microbatches, chunks=1):
    p, m = stages, microbatches
    if schedule == "naive":
        return p - 1
    return (p - 1) / m / {"interleaved_one_f_one_b": chunks, "zero_bubble_h1": 3}.get(schedule, 1)
"""
WRONG_IDEAL = """
def bubble_of_ideal(schedule, stages, microbatches, chunks=1):
    return stages / microbatches
"""
IDEAL_FROM_TOTAL = """
def bubble_of_ideal(schedule, stages, microbatches, chunks=1):
    share = bubble_of_total(schedule, stages, microbatches, chunks)
    return share / (1 - share)
"""
RIGHT_TOTAL = RIGHT_IDEAL.replace("of_ideal", "of_total").replace("p - 1\n", "(p - 1) / p\n").replace(
    "return (p - 1) / m / ", "r = (p - 1) / m / ") + "    return r / (1 + r)\n"  # fmt: skip
TOTAL_FROM_IDEAL = """
def helper(*args):
    return bubble_of_ideal(*args)


def bubble_of_total(schedule, stages, microbatches, chunks=1):
    ratio = helper(schedule, stages, microbatches, chunks)
    return ratio / (1 + ratio)
"""
WITHOUT_CHUNKS = """
def bubble_of_total(schedule, stages, microbatches, chunks=1):
    ratio = bubble_of_ideal(schedule, stages=stages, microbatches=microbatches)
    return ratio / (1 + ratio)
"""
CONSTANTS = """
def bubble_of_ideal(schedule, stages, microbatches, chunks=1):
    return 1.0


def bubble_of_total(schedule, stages, microbatches, chunks=1):
    return 0.5
"""
EACH_FROM_THE_OTHER = """
deep = []


def bubble_of_ideal(schedule, stages, microbatches, chunks=1):
    deep.append(1)
    share = 0.5 if len(deep) > 3 else bubble_of_total(schedule, stages, microbatches, chunks)
    deep.pop()
    return share / (1 - share)


def bubble_of_total(schedule, stages, microbatches, chunks=1):
    ratio = bubble_of_ideal(schedule, stages, microbatches, chunks)
    return ratio / (1 + ratio)
"""


def lines_of_fractions(code: str, seed: int) -> dict[str, bool]:
    """The lines on the two fractions, by their titles."""
    main = ModuleType("__main__")
    exec(code, vars(main))
    given = (vars(main)["bubble_of_ideal"], vars(main)["bubble_of_total"], len, len)
    told = judging.judge("07_pipeline/predictions", wire.dumps(given), seed, "hidden")
    lines = Report.from_json(told).lines
    return {line.title: line.passed for line in lines if line.title.startswith("bubble_of")}


@pytest.mark.parametrize(
    ("code", "ideals", "totals", "where"),
    [
        (RIGHT_IDEAL + TOTAL_FROM_IDEAL, 2, 2, 0),
        (RIGHT_TOTAL + IDEAL_FROM_TOTAL, 2, 2, 0),
        (WRONG_IDEAL + TOTAL_FROM_IDEAL, 0, 2, 2),
        (WRONG_IDEAL + RIGHT_TOTAL, 0, 2, 0),
        (WRONG_IDEAL + WITHOUT_CHUNKS, 0, 1, 1),
        (WRONG_IDEAL.replace("ideal", "total") + IDEAL_FROM_TOTAL, 2, 0, 2),
        (CONSTANTS, 0, 0, 0),
        (EACH_FROM_THE_OTHER, 2, 0, 2),
    ],
    ids=["right", "right the other way", "wrong ideal", "wrong and apart", "chunks forgotten",
         "wrong total", "constants", "each from the other"],
)  # fmt: skip
def test_a_wrong_fraction_costs_the_other_nothing(
    code: str, ideals: int, totals: int, where: int, seed: int
) -> None:
    found = lines_of_fractions(code, seed)
    assert len(found) == 4
    passed = [title for title, ok in found.items() if ok]
    assert sum(title.startswith("bubble_of_ideal") for title in passed) == ideals, found
    assert sum(title.startswith("bubble_of_total") for title in passed) == totals, found
    assert sum("(where bubble_of_" in title for title in passed) == where, found


def test_the_code_of_these_tests_is_right_where_it_is_meant_to_be() -> None:
    names: dict[str, Any] = {}
    exec(RIGHT_IDEAL + RIGHT_TOTAL, names)
    for schedule, chunks in (("naive", 1), ("gpipe", 1), ("interleaved_one_f_one_b", 3)):
        for which in ("ideal", "total"):
            right = getattr(facts, f"pipeline_bubble_of_{which}")(schedule, 4, 8, chunks=chunks)
            assert names[f"bubble_of_{which}"](schedule, 4, 8, chunks) == pytest.approx(right)


# --- on NCCL -------------------------------------------------------------------------------------


def steps_of(ledger: Ledger) -> Steps:
    return {rank: batches(ledger.operations(rank)) for rank in range(ledger.world_size)}


def run(body: Callable[[], None], world_size: int = 2) -> Steps:
    return steps_of(launch(body, world_size=world_size, backend="gloo").ledger)


def exchange(first: str, batched: bool = False) -> Callable[[], None]:
    """Two ranks that swap a tensor; first: what each begins first."""

    def body() -> None:
        other, mine = 1 - dist.get_rank(), torch.ones(3)
        calls = [(dist.isend, mine), (dist.irecv, torch.empty(3))]
        if first == "receive":
            calls.reverse()
        if batched:
            works = dist.batch_isend_irecv([dist.P2POp(call, x, other) for call, x in calls])
        else:
            works = [call(x, other) for call, x in calls]
        for work in works:
            work.wait()

    return body


@pytest.mark.parametrize("first", ["send", "receive"])
def test_what_both_ranks_begin_with_waits_for_ever_unless_it_is_a_batch(first: str) -> None:
    said = waits_for_ever(run(exchange(first)))
    kind = {"send": "a send to", "receive": "a receive from"}[first]
    assert (
        f"rank 0 is at its 1st, {kind} rank 1, and rank 1 is at its 1st, {kind} rank 0." in said[0]
    )
    assert "batch_isend_irecv" in said[1]
    assert waits_for_ever(run(exchange(first, batched=True))) == []


def test_batches_that_follow_each_other_are_told_apart() -> None:
    def body() -> None:
        other, x = 1 - dist.get_rank(), torch.ones(1)
        for _ in range(2):
            both = [dist.P2POp(dist.isend, x, other), dist.P2POp(dist.irecv, torch.empty(1), other)]
            for work in dist.batch_isend_irecv(both):
                work.wait()
        dist.barrier()

    steps = run(body)
    assert [[one.op for one in step] for step in steps[0]] == [["send", "recv"]] * 2 + [["barrier"]]


def test_three_ranks_in_a_circle_are_told_without_the_fourth() -> None:
    def body() -> None:
        rank = dist.get_rank()
        if rank == 3:
            dist.recv(torch.empty(1), 0)
            return
        sent = dist.isend(torch.ones(1), (rank + 1) % 3)
        dist.irecv(torch.empty(1), (rank - 1) % 3).wait()
        sent.wait()
        if rank == 0:
            dist.send(torch.ones(1), 3)

    (first, _) = waits_for_ever(run(body, 4))
    assert "rank 2 is at its 1st, a send to rank 0" in first and "rank 3" not in first


def test_one_order_of_all_events_never_waits_for_ever(seed: int) -> None:
    """In whatever order the events of a schedule come, if it is the same on all ranks."""
    chance = random.Random(seed)
    schedule = one_f_one_b(3, chance.randrange(2, 6))
    events = simulate(schedule).events

    def body() -> None:
        rank, works = dist.get_rank(), []
        for event in events:
            (one,), src = parts(event.action), event.rank
            dst = src + 1 if one.kind == "F" else src - 1
            if src == rank and 0 <= dst < 3:
                works.append(dist.isend(torch.ones(1), dst))
            elif dst == rank:
                works.append(dist.irecv(torch.empty(1), src))
        for work in works:
            work.wait()

    steps = run(body, 3)
    assert waits_for_ever(steps) == takes_turns(steps) == mixed_up(steps) == []


@pytest.mark.parametrize("how", ["recv", "irecv and wait", "irecv, wait later"])
def test_messages_that_are_waited_for_at_once_are_told(how: str) -> None:
    def body() -> None:
        x = torch.ones(2)
        if dist.get_rank() == 0:
            work = dist.isend(x, 1)
            work.wait()
        elif how == "recv":
            dist.recv(x, 0)
        elif how == "irecv and wait":
            dist.irecv(x, 0).wait()
        else:
            work = dist.irecv(x, 0)
            work.wait()

    said = takes_turns(run(body))
    assert bool(said) == (how != "irecv, wait later")
    assert not said or "Begin a receive (irecv, or batch_isend_irecv)" in said[0]


@pytest.mark.parametrize("turned", [False, True])
def test_messages_that_only_tags_tell_apart_are_told(turned: bool) -> None:
    def body() -> None:
        order = (1, 2) if dist.get_rank() == 0 or not turned else (2, 1)
        works = []
        for tag in order:
            call = dist.isend if dist.get_rank() == 0 else dist.irecv
            works.append(call(torch.ones(1), 1 - dist.get_rank(), tag=tag))
        for work in works:
            work.wait()

    said = mixed_up(run(body))
    assert bool(said) == turned
    if turned:
        assert "rank 1 receives the messages of rank 0 in another order" in said[0]


REMARKS = {
    "receives by name, sends in passing": ["Ranks may wait for each other", "NCCL has no tags"],
    "one line of events for all ranks": [],
    "all receives posted at first, in the sender's order": ["a receive from rank 1"],
    "batches that look ahead": ["NCCL has no tags"],
    "send and receive where the event of it stands": [
        "let a rank compute only when its message is"
    ],
}


@pytest.mark.parametrize("title", REMARKS)
def test_a_right_run_is_told_what_nccl_would_do_and_keeps_all_its_points(
    title: str, seed: int
) -> None:
    (mutant,) = (one for one in mutants(MUTANTS / "run_schedule.py") if one.title == title)
    report, printed = judged("07_pipeline/run_schedule", mutant, seed)
    assert report.score == 1 and report.messages == []
    lines = [line for line in report.lines if "on NCCL" in line.title]
    assert len(lines) == 2 and all(line.passed and line.weight == 0 for line in lines)
    said = [" ".join(line.sentences) for line in lines if line.sentences]
    assert len(said) == len(REMARKS[title]), printed
    for one, meant in zip(said, REMARKS[title], strict=True):
        assert meant in one
    for line in lines:
        assert bool(line.sentences) == ("costs no points" in line.title)
        assert not any("rank 0" in one for one in line.general or [])
