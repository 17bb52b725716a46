"""Right answers of every exercise, judged where a GPU is pretended, and where NCCL's order is imitated.

Both devices are imitated on the CPU (`tests/gpu_like.py`, `tests/nccl_like.py`). An answer that is right
there leaves no tensor on the host, and needs no order of messages that gloo keeps and NCCL does not. So it is
right on GPUs as far as the CPU can tell. Lines on memory are left out, because the imitations hold other
memory than a GPU.

A run judges one answer of a share of the exercises on the pretended GPU, and all answers of an exercise that
a change touches. `make test-all` judges all of them on both devices.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from autograder.sample.mutants import MUTANTS, Mutant, read_mutants
from course_lib.checks.judge import judge
from course_lib.checks.judge.find import find
from course_lib.checks.report import Report
from tests import drawn, gpu_like, nccl_like
from tests.checks.test_mutants import drawing_once, judged

FILES = sorted(MUTANTS.glob("*/*.py"))
SHARE = 0.1  # of the exercises, on the pretended GPU
NOT_THERE = {"13_capstone/distribute"}  # C++ allocates what fully_shard sends, without a mark
DEVICE = "device, "  # begins lines of hello, which expect another name than the pretended GPU's


def name_of(file: Path) -> str:
    return f"{file.parent.name}/{file.stem}"


@pytest.mark.parametrize(
    "file", [file for file in FILES if name_of(file) not in NOT_THERE], ids=name_of
)
def test_right_answers_leave_nothing_on_the_host(
    file: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = name_of(file)
    exercise = find(name)
    answers = [answer for answer in read_mutants(file) if answer.right]
    if not (drawn.everything() or drawn.is_touched(name, exercise.cases.__module__, seed)):
        if not drawn.is_drawn(f"{name} on the pretended GPU", SHARE, seed):
            pytest.skip("not drawn in this run: make test-all runs all")
        titles = drawn.some_of([answer.title for answer in answers], 1 / len(answers), seed)
        answers = [answer for answer in answers if answer.title in titles]
    drawing = drawing_once(exercise)
    monkeypatch.setattr(judge, "find", lambda _: drawing)
    for answer in answers:
        with gpu_like.offered(checks=True):
            report, printed = judged(name, answer, seed)
        failed = [title for title in failed_lines(report) if not title.startswith(DEVICE)]
        assert not failed, f"{answer.title}\n{printed}"


def test_a_tensor_on_the_host_fails_there_and_only_there(seed: int) -> None:
    sums = (
        "def global_mean(values):\n    total = torch.tensor([values.sum().item(), len(values)])\n"
    )
    text = f"{sums}    dist.all_reduce(total)\n    return total[0] / total[1]\n"
    answer = Mutant("global_mean", True, "a sum and a count on the host", text, "")
    report, printed = judged("00_first_ranks/global_mean", answer, seed)
    assert report.score == 1, printed
    with gpu_like.offered(checks=True):
        report, printed = judged("00_first_ranks/global_mean", answer, seed)
    assert failed_lines(report) and "OtherDevice" in printed


@pytest.mark.skipif(not os.environ.get(drawn.ALL), reason="takes minutes: make test-all")
@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_right_answers_go_through_in_nccls_order_unless_a_remark_says_otherwise(
    file: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = name_of(file)
    drawing = drawing_once(find(name))
    monkeypatch.setattr(judge, "find", lambda _: drawing)
    for answer in read_mutants(file):
        if answer.right:
            with nccl_like.offered(checks=True):
                report, printed = judged(name, answer, seed)
            if "can hang" in answer.on_nccl:
                assert any("NCCL does what a rank begins" in said for said in report.messages), (
                    printed
                )
            elif "no tags" not in answer.on_nccl:
                assert not failed_lines(report), f"{answer.title}\n{printed}"


def failed_lines(report: Report) -> list[str]:
    """The titles of the lines that an answer fails, except lines on memory."""
    return [line.title for line in report.lines if not line.passed and line.aspect != "memory"]
