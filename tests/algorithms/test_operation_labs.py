"""The labs: agents and ranks that are really killed, runs that go on, and no process that is left."""

from __future__ import annotations

import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import cloudpickle
import pytest

from course_lib import operation
from course_lib.operation import (
    AgentsRun,
    Journal,
    Kill,
    measured,
    run_agents,
    run_with_failures,
    train,
)
from course_lib.operation.starter import Deadline, fork, run_below
from tests.conftest import alive

STEPS, EVERY = 15, 5
NoOrphans = Callable[..., None]


def test_a_killed_rank_comes_back_and_the_run_ends_at_the_same_digit(tmp_path: Path) -> None:
    ends = []
    for name, dies in (("undisturbed", None), ("killed", (3, 7))):
        worker = partial(train, dies=dies, step_seconds=0.02)
        run = run_agents(worker, tmp_path / name, STEPS, EVERY, nodes=(2, 2), timeout=200)
        texts = [line.text for line in run.lines]
        assert run.codes == [0, 0]
        assert texts.count("from 0 of 4 ranks") == 4
        assert texts.count("from 5 of 4 ranks") == (4 if dies else 0)
        assert ("rank 3 dies in step 7" in texts) == (dies is not None)
        assert len({line.pid for line in run.lines if line.rank >= 0}) == (8 if dies else 4)
        ends.append(next(text for text in texts if text.startswith("end ")))
        print(name, f"{run.seconds:.1f} s", [line for line in run.lines if "step" not in line.text])
    assert ends[0] == ends[1]


# ---- agents


def processes(run: AgentsRun) -> set[int]:
    return {line.pid for line in run.lines}


@pytest.mark.parametrize("agent", [0, 1])
def test_two_ranks_go_on_when_an_agent_dies(
    agent: int, tmp_path: Path, assert_no_orphans: NoOrphans
) -> None:
    worker = partial(train, step_seconds=0.05)
    kills = [Kill(agent, "saved 5")]
    run = run_agents(worker, tmp_path, STEPS, EVERY, nodes=(1, 2), kills=kills, timeout=200)
    assert_no_orphans(processes(run), 0)
    assert run.codes == [-9, 0] if agent == 0 else [0, -9]
    texts = [line.text for line in run.lines]
    # On a busy machine one agent may begin alone, so only what follows the kill counts.
    after = texts[texts.index(f"agent {agent} is killed") :]
    # The last checkpoint, whatever was saved before the agent was dead.
    resumed = [text for text in after if re.fullmatch(r"from \d+ of 2 ranks", text)]
    assert len(resumed) == 2 and int(resumed[0].split()[1]) in (5, 10)
    end = next(text for text in texts if text.startswith("end "))
    alone = tmp_path / "alone"
    alone.mkdir()
    train(str(alone), STEPS, EVERY)  # here, without ranks
    wanted = next(line.text for line in Journal(alone / "journal").lines() if "end" in line.text)
    assert float(end.split()[1]) == pytest.approx(float(wanted.split()[1]), rel=1e-12)


def test_the_labs_run_on_the_functions_they_are_given(tmp_path: Path) -> None:
    """Functions that were written in this process, as a notebook's are, and that note their calls."""

    def commit(disk: operation.Folder, step: int, parts: dict[str, bytes]) -> None:
        Journal(disk.path / "own").note(f"own commit {step}")
        operation.commit(disk, step, parts)

    def newest(disk: operation.Folder) -> tuple[int, dict[str, bytes]] | None:
        return operation.newest(disk)

    worker = partial(train, dies=(0, 7), commit=commit, newest=newest)
    run = run_agents(worker, tmp_path, 8, 4, ranks=1, timeout=200)
    assert [line.text for line in run.lines].count("from 4 of 2 ranks") == 2
    own = [line.text for line in Journal(tmp_path / "checkpoints" / "own").lines()]
    assert own == ["own commit 4", "own commit 8"]


def hangs(folder: str) -> None:
    Journal(f"{folder}/journal").note("hangs")
    time.sleep(1000)


def raises(folder: str) -> None:
    raise ArithmeticError("a fault of the worker")


def test_a_lab_that_hangs_is_ended_at_its_limit(
    tmp_path: Path, assert_no_orphans: NoOrphans
) -> None:
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="did not end in time"):
        run_agents(hangs, tmp_path, timeout=6)
    assert time.monotonic() - began < 60
    assert_no_orphans({line.pid for line in Journal(tmp_path / "journal").lines()}, 0)


def chatters() -> None:
    while True:
        os.write(1, b"a line of an agent\n" * 400)
        time.sleep(0.001)


def waits(deadline: Deadline) -> None:
    while True:
        deadline.pause()


def test_a_starter_whose_caller_ended_during_its_imports_ends_too() -> None:
    """It was then the child of another process, which it must not take for its caller."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    starter = subprocess.run(
        [sys.executable, "-m", "course_lib.operation.starter"],
        input=cloudpickle.dumps((150, gone.pid, waits)), capture_output=True, timeout=300,
    )  # fmt: skip
    assert b"the program that started the lab is gone" in starter.stdout


def fails_below_chatter(deadline: Deadline) -> None:
    fork(chatters)
    deadline.pause(0.05)
    raise ArithmeticError("the reason")


def test_the_reason_is_told_beside_pages_of_output() -> None:
    with pytest.raises(RuntimeError, match="the reason") as told:
        run_below(fails_below_chatter, 60)
    assert len(str(told.value)) < 5000


def test_the_fault_of_a_worker_is_told(tmp_path: Path, assert_no_orphans: NoOrphans) -> None:
    run = run_agents(raises, tmp_path, restarts=0, ranks=1, timeout=100)
    assert run.codes == [1, 1]
    with pytest.raises(RuntimeError, match="a fault of the worker"):
        run_with_failures(raises, tmp_path, mtbf=1000.0, seed=0)
    assert_no_orphans(processes(run), 0)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_when_the_program_is_ended(
    number: signal.Signals, tmp_path: Path, assert_no_orphans: NoOrphans
) -> None:
    program = (
        "import sys\n"
        "from tests.algorithms.test_operation_labs import hangs, run_agents\n"
        "run_agents(hangs, sys.argv[1], timeout=300)"
    )
    root = Path(__file__).resolve().parents[2]
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], cwd=root, stderr=subprocess.DEVNULL
    )
    journal = Journal(tmp_path / "journal")
    try:
        for _ in range(6000):
            ranks = [line.pid for line in journal.lines() if line.text == "hangs"]
            if len(ranks) == 4:
                break
            time.sleep(0.02)
        assert len(ranks) == 4 and all(map(alive, ranks))
    finally:
        process.send_signal(number)
        process.wait(60)
    assert_no_orphans({line.pid for line in journal.lines()}, 30)


def test_no_temporary_file_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    run = run_agents(partial(train, dies=(1, 2)), tmp_path / "lab", 4, 2, ranks=1, timeout=200)
    assert run.codes == [0, 0]
    assert not list((tmp_path / "temporary").iterdir())


# ---- drawn failures


def test_drawn_times_have_their_mean_and_no_memory() -> None:
    drawn = [next(operation.times_between_failures(3.0, seed)) for seed in range(500)]
    times = operation.times_between_failures(3.0, 1)
    many = [next(times) for _ in range(20_000)]
    assert statistics.mean(many) == pytest.approx(3, rel=0.03)
    later = [seconds - 2 for seconds in many if seconds > 2]
    assert statistics.mean(later) == pytest.approx(3, rel=0.05)
    assert len(set(drawn)) == 500


def test_a_run_that_starts_again_after_its_last_save_ends_with_the_same_loss(
    tmp_path: Path,
) -> None:
    """A kill between the last save and the end of the process leaves no step to run."""
    for _ in range(2):
        train(str(tmp_path), STEPS, EVERY)
    texts = [line.text for line in Journal(tmp_path / "journal").lines()]
    assert texts[-2] == f"from {STEPS} of 1 ranks"
    (loss,) = {text for text in texts if text.startswith("end ")}
    assert float(loss.split()[1]) > 0


def test_a_run_that_is_killed_at_drawn_times_comes_to_its_end(
    tmp_path: Path, assert_no_orphans: NoOrphans
) -> None:
    worker = partial(train, step_seconds=0.01)
    run = run_with_failures(worker, tmp_path, 120, 5, mtbf=0.8, seed=3, timeout=200)
    lines = Journal(tmp_path / "journal").lines()
    assert_no_orphans({line.pid for line in lines}, 0)
    starts = [int(line.text.split()[1]) for line in lines if line.text.startswith("from")]
    assert run.kills == sorted(run.kills) and run.kills and run.kills[-1] < run.seconds
    assert len(starts) <= len(run.kills) + 1 and starts == sorted(starts) and starts[0] == 0
    # A kill can come after a save and before its line, so the steps tell which saves there were.
    done = {int(line.text.split()[1]) + 1 for line in lines if line.text.startswith("step")}
    assert set(starts) <= {0} | {step for step in done if step % 5 == 0}
    alone = tmp_path / "alone"
    alone.mkdir()
    train(str(alone), 120, 5)
    assert Journal(alone / "journal").lines()[-1].text == lines[-1].text  # to the last digit
    assert lines[-1].text.startswith("end 0.")


def test_the_goodput_formula_is_met_by_a_run_that_is_killed(tmp_path: Path) -> None:
    worker = partial(train, step_seconds=0.02, save_seconds=0.1, start_seconds=0.1)
    run = run_with_failures(worker, tmp_path, 400, 20, mtbf=2.0, seed=0, timeout=400)
    costs = measured(run, Journal(tmp_path / "journal").lines())
    formula = operation.goodput(20 * costs.step, costs.save, costs.restart, 2.0)
    print(run, costs, formula)
    assert costs.step > 0.02 and costs.save > 0.1 and costs.restart > 0.1
    assert costs.goodput < 1
    assert (
        0.5 * formula < costs.goodput < 1.5 * formula
    )  # some eight failures scatter, and so does the load


def test_a_run_that_never_failed_has_no_restart() -> None:
    line = partial(operation.Line, pid=1, rank=-1)
    texts = [
        "from 0 of 1 ranks",
        "step 0",
        "step 1",
        "saved 2",
        "step 2",
        "step 3",
        "saved 4",
        "end 0",
    ]
    lines = [line(time=float(at), text=text) for at, text in enumerate(texts)]
    run = operation.FailedRun(began=0.0, seconds=10.0, kills=[])
    assert measured(run, lines) == operation.Costs(step=1.0, save=1.0, restart=0.0, goodput=0.4)


def test_a_journal_keeps_the_lines_of_many_writers_apart(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    assert journal.lines() == []
    writers = [
        threading.Thread(target=lambda n=n: [journal.note(f"{n} {i}") for i in range(200)])
        for n in range(4)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    lines = journal.lines()
    assert len(lines) == 800 and {line.pid for line in lines} == {os.getpid()}
    for n in range(4):
        own = [line.text for line in lines if line.text.startswith(f"{n} ")]
        assert own == [f"{n} {i}" for i in range(200)]
