"""The lines that the checks of notebook 07 judge by themselves, and their remarks beside the points."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist

from autograder.sample.mutants import read_mutants
from course_lib import facts, launch
from course_lib.checks.judge import judge
from course_lib.checks.judge.remarks import TITLE
from course_lib.checks.notebooks.pipeline.running_sends import takes_turns
from course_lib.checks.report import Report
from course_lib.runtime import wire
from tests.checks.test_mutants import judged

MUTANTS = Path(__file__).parents[1] / "mutants" / "07_pipeline"

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
    told = judge.judge("07_pipeline/predictions", wire.dumps(given), seed, "hidden")
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


# --- messages that are waited for at once --------------------------------------------------------


@pytest.mark.parametrize("how", ["recv", "irecv and wait", "irecv, wait later", "batch and wait"])
def test_messages_that_are_waited_for_at_once_are_told(how: str) -> None:
    def body() -> None:
        x, other = torch.ones(2), 1 - dist.get_rank()
        if how == "batch and wait":
            call = dist.irecv if other == 0 else dist.isend
            ends = [dist.P2POp(call, torch.ones(2), other) for _ in range(2)]
            [work.wait() for work in dist.batch_isend_irecv(ends)]  # fmt: skip
        elif other == 1:
            work = dist.isend(x, 1)
            work.wait()
        elif how == "recv":
            dist.recv(x, 0)
        elif how == "irecv and wait":
            dist.irecv(x, 0).wait()
        else:
            work = dist.irecv(x, 0)
            work.wait()

    ledger = launch(body, world_size=2, backend="gloo").ledger
    said = takes_turns([ledger.operations(rank) for rank in range(2)])
    assert bool(said) == (how in ("recv", "irecv and wait"))
    assert not said or "begin a receive (irecv, or batch_isend_irecv)" in said[0]


# --- right, and yet not for NCCL -----------------------------------------------------------------

REMARKS = {
    "receives by name, sends in passing": ["so this run can hang there", "NCCL has no tags"],
    "one line of events for all ranks": [],
    "all receives posted at first, in the sender's order": ["rank 0 begins recv(src=1) before"],
    "batches that look ahead": ["NCCL has no tags"],
    "send and receive where the event of it stands": [
        "let a rank compute only when its message is"
    ],
}


@pytest.mark.parametrize("title", REMARKS)
def test_a_right_run_is_told_what_nccl_would_do_and_keeps_all_its_points(
    title: str, seed: int
) -> None:
    (mutant,) = (one for one in read_mutants(MUTANTS / "run_schedule.py") if one.title == title)
    report, printed = judged("07_pipeline/run_schedule", mutant, seed)
    assert report.score == 1 and report.messages == []
    lines = [line for line in report.lines if line.title == TITLE]
    assert all(line.passed and line.weight == 0 for line in lines)
    said = [" ".join(line.sentences) for line in lines]
    assert len(set(said)) == len(said) and bool(said) == bool(REMARKS[title]), printed
    for meant in REMARKS[title]:
        assert any(meant in one for one in said), printed
    for line in lines:
        assert not any("rank 0" in one for one in line.general or [])
