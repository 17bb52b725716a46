"""No score depends on what was drawn: right solutions lose nothing at any seed, on a busy machine either.

COURSE_ALL_TESTS=1 (`make test-all`) judges every right solution at COURSE_SWEEP_SEEDS seeds (30), which takes
hours; without it a few of them, drawn anew each time. `python -m tests.checks.sweep` repeats one by its seed.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

import pytest
import torch

from course_lib.checks.judge.case import Draw
from course_lib.checks.judge.find import find
from course_lib.checks.notebooks.pipeline import running
from course_lib.checks.notebooks.pipeline.recognising import recognised, tokens
from course_lib.checks.notebooks.pipeline.running_whole import ScheduleRun, microbatches
from course_lib.checks.rank.notebooks.pipeline.fingerprints import fingerprint
from tests.checks.right_solutions import TWINS, right_solutions
from tests.checks.sweep import CORES, Outcome, busy, drawn_seeds, sweep

WHOLE = bool(os.environ.get("COURSE_ALL_TESTS"))
SEEDS = int(os.environ.get("COURSE_SWEEP_SEEDS") or 30)
WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT") or 1)
A_FEW, SECONDS = "a few of them", 5
SOLUTIONS = right_solutions()


# ---- every right solution


def lost(outcomes: Iterable[Outcome]) -> list[str]:
    return [str(one) for one in outcomes if one.score < 1]


@pytest.mark.parametrize("exercise", SOLUTIONS if WHOLE else [A_FEW])
def test_right_solutions_lose_nothing_at_any_seed(exercise: str, seed: int) -> None:
    with busy(max(1, CORES // WORKERS)):
        outcomes = a_few(seed) if exercise == A_FEW else of_exercise(exercise, seed)
        found = lost(outcomes)
    assert not found, "\n".join(found)


def of_exercise(exercise: str, seed: int) -> Iterator[Outcome]:
    yield from sweep({exercise: SOLUTIONS[exercise]}, drawn_seeds(SEEDS, seed))


def a_few(seed: int) -> Iterator[Outcome]:
    """Solutions and seeds that are drawn, for some seconds."""
    everything = [(name, one) for name, several in SOLUTIONS.items() for one in several]
    draw, deadline = random.Random(seed), time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        name, one = draw.choice(everything)
        yield from sweep({name: [one]}, [draw.randrange(1 << 31)])


def test_every_exercise_has_its_own_solution_and_two_others() -> None:
    written = {twin.stem for twin in TWINS}
    for name, several in SOLUTIONS.items():
        if name.partition("/")[0] not in written:  # its notebook has not been written
            assert len(several) >= 2, name
            continue
        first, *others = several
        assert first.title == "the notebook's own" and len(others) >= 2, name
        assert all(f"{wanted}" in first.text for wanted in find(name).objects), name


def test_processes_that_keep_the_machine_busy_end_with_their_parent(
    assert_no_orphans: Callable[..., None],
) -> None:
    """The parent is killed, as a run of the tests may be."""
    code = (
        "import sys\n"
        "from tests.checks.sweep import busy\n"
        "with busy(2) as pids:\n"
        "    print(*pids, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    program = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert program.stdout is not None
    pids = [int(pid) for pid in program.stdout.readline().split()]
    program.kill()
    program.communicate()
    assert len(pids) == 2
    assert_no_orphans(pids)


# ---- microbatches that are told apart


# At these a right solution of run_schedule lost half of its points: two microbatches had one fingerprint.
@pytest.mark.parametrize("unlucky", [1735072617, 1067004398])
def test_run_schedule_at_seeds_that_made_trouble(unlucky: int) -> None:
    exercise = "07_pipeline/run_schedule"
    found = lost(sweep({exercise: SOLUTIONS[exercise][:1]}, [unlucky]))
    assert not found, "\n".join(found)


def runs_of(seed: int, hidden: bool) -> list[ScheduleRun]:
    """All the runs of a check of run_schedule."""
    made: list[ScheduleRun] = []
    draw_run = running.drawn

    def drawn(*args: object, **kwargs: object) -> ScheduleRun:
        made.append(draw_run(*args, **kwargs))  # type: ignore[arg-type]
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "drawn", drawn)
        list(find("07_pipeline/run_schedule").cases(Draw(seed, hidden)))
    return made


def test_every_microbatch_is_recognised_at_every_stage(seed: int) -> None:
    for one in drawn_seeds(40, seed):
        runs = runs_of(one, hidden=True)
        assert {run.kind for run in runs} == {"tokens", "numbers"}
        for run in runs:
            for stage in range(run.size):
                prints = run.incoming(stage)
                found = [recognised(came, prints) for came in prints]
                assert found == list(range(len(run.batch))), f"{run.name} at seed={one}"


def test_microbatches_differ_whatever_was_drawn(seed: int) -> None:
    draw = Draw(seed)
    for _ in range(200):
        batch = microbatches(draw, "tokens", 6)
        assert len({int(x.view(-1)[0]) for x, _ in batch}) == 6
        counts = [int((targets != -100).sum()) for _, targets in batch]
        assert all(counts)
        assert all(one != other for one, other in pairwise(counts))


def test_a_fingerprint_tells_what_one_weighted_sum_does_not() -> None:
    one, other = torch.tensor([[6, 9, 8]]), torch.tensor([[8, 8, 8]])
    places = torch.arange(1, 4)
    assert (one * places).sum() == (other * places).sum()
    assert recognised(fingerprint(one), [fingerprint(other), fingerprint(one)]) == 1


def test_a_fingerprint_is_that_of_a_copy_with_other_rounding(seed: int) -> None:
    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    known = [fingerprint(2 * x), fingerprint(x)]
    assert recognised(fingerprint(x * (1 + 1e-12)), known) == 1
    assert recognised(fingerprint(x * (1 + 1e-4)), known) is None
    assert recognised(fingerprint(x[:2]), known) is None


@pytest.mark.parametrize(
    "came",
    [None, [], [15], "15", [15, "1", 0, 0, 0], [float("nan")] * 5, [True] * 5, [10**400] * 5],
)
def test_what_is_not_a_fingerprint_is_not_recognised(came: object) -> None:
    assert recognised(came, [fingerprint(torch.zeros(3, 5))]) is None


def test_no_more_tensors_are_told_apart_than_there_are_tokens(seed: int) -> None:
    shapes = [(2, 3)] * 11
    found = tokens(Draw(seed), shapes, 11)
    assert sorted(int(one[0, 0]) for one in found) == list(range(11))
    assert all(bool(((one >= 0) & (one < 11)).all()) for one in found)
    with pytest.raises(ValueError, match="12 tensors cannot all begin with another one of 11"):
        tokens(Draw(seed), [*shapes, (1, 1)], 11)
