"""Workers: one that dies costs one call at most, and none outlives its grader."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from pathlib import Path

import nbformat
import pytest

from autograder.book.work import Work
from autograder.course.twin import read_twin
from autograder.outcome.limits import Limits
from autograder.run import jobs
from autograder.run.cluster import ClusterWorkers, SchedulerError
from autograder.run.jobs import LocalWorkers, TaskError, WorkerDiedError
from autograder.sandbox import capacity
from tests.autograder import marking_double

ROOT = Path(__file__).resolve().parents[2]
TOY = ROOT / "tests/toy/solutions/00_toy/00_toy.py"


@pytest.fixture(scope="module")
def workers() -> Iterator[LocalWorkers]:
    with LocalWorkers(2) as made:
        yield made


def test_calls_are_answered_whatever_their_order(workers: LocalWorkers) -> None:
    futures = [workers.submit(marking_double.double, number) for number in range(20)]
    assert [future.result(30) for future in futures] == [2 * number for number in range(20)]


def test_a_worker_is_another_process_and_serves_many_calls(workers: LocalWorkers) -> None:
    found = {workers.submit(marking_double.process_id).result(30) for _ in range(10)}
    assert found <= set(workers.processes())
    assert os.getpid() not in found


def test_a_worker_computes_in_one_thread_unless_it_is_told_otherwise(
    workers: LocalWorkers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert jobs.environment()["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert jobs.environment()["OMP_NUM_THREADS"] == "3"
    monkeypatch.undo()
    found = workers.submit(os.getenv, "OMP_NUM_THREADS").result(30)
    assert found == jobs.environment()["OMP_NUM_THREADS"]


def test_what_a_call_raises_arrives_with_its_traceback(workers: LocalWorkers) -> None:
    with pytest.raises(TaskError) as caught:
        workers.submit(marking_double.fail, "no idea").result(30)
    assert caught.value.args[0] == "LookupError: no idea"
    assert "marking_double.py" in caught.value.args[1]


def test_a_value_that_is_no_json_is_an_error_of_the_call(workers: LocalWorkers) -> None:
    with pytest.raises(TaskError, match="not JSON serializable"):
        workers.submit(marking_double.unserialisable).result(30)


def test_a_worker_that_dies_costs_only_its_call(workers: LocalWorkers) -> None:
    before = set(workers.processes())
    futures = [workers.submit(marking_double.double, number) for number in range(5)]
    deadly = workers.submit(marking_double.die)
    futures += [workers.submit(marking_double.double, number) for number in range(5, 10)]
    with pytest.raises(WorkerDiedError, match="exit code 7"):
        deadly.result(60)
    assert [future.result(60) for future in futures] == [2 * number for number in range(10)]
    assert len(workers.processes()) == 2
    assert set(workers.processes()) != before


def test_a_call_is_tried_again_by_another_worker(tmp_path: Path) -> None:
    with LocalWorkers(1) as workers:
        first = workers.submit(marking_double.process_id).result(30)
        again = workers.submit(marking_double._obey, f"# die once: {tmp_path / 'died'}\n# share: 1")
        assert again.result(60) == 1.0
        assert workers.submit(marking_double.process_id).result(30) != first


def test_a_worker_that_never_answers_is_ended(assert_no_orphans: Callable[..., None]) -> None:
    with LocalWorkers(1, seconds=1.0, tries=1) as workers:
        workers.submit(marking_double.double, 1)
        hanging = workers.processes()
        with pytest.raises(WorkerDiedError, match="no answer within 1 s"):
            workers.submit(marking_double._obey, "# hang").result(60)
        assert_no_orphans(hanging)


def test_killed_workers_take_what_they_were_doing_with_them(
    assert_no_orphans: Callable[..., None],
) -> None:
    workers = LocalWorkers(2)
    assert workers.submit(marking_double.double, 1).result(30) == 2
    futures = [workers.submit(marking_double._obey, "# hang") for _ in range(6)]
    time.sleep(0.3)
    pids = workers.processes()
    workers.kill()
    assert_no_orphans(pids)
    assert wait(futures, 10).not_done == set()
    assert all(_has_no_value(future) for future in futures)
    with pytest.raises(RuntimeError, match="shut down"):
        workers.submit(marking_double.double, 1)


def _has_no_value(future: Future) -> bool:
    return future.cancelled() or isinstance(future.exception(), WorkerDiedError)


GRADER = """
import sys, time
sys.path[:0] = {path!r}
from tests.autograder import marking_double
from autograder.run.jobs import LocalWorkers
workers = LocalWorkers(2)
for _ in range(2):
    workers.submit(marking_double._obey, "# hang")
workers.submit(marking_double.double, 1)
while len(workers.processes()) < 2:
    time.sleep(0.01)
time.sleep(0.5)
print(*workers.processes(), flush=True)
time.sleep(1000)
"""


def test_workers_end_with_a_grader_that_is_killed(assert_no_orphans: Callable[..., None]) -> None:
    code = GRADER.format(path=[str(ROOT), str(ROOT / "tests")])
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as grader:
        assert grader.stdout is not None
        pids = [int(pid) for pid in grader.stdout.readline().split()]
        assert len(pids) == 2
        grader.send_signal(signal.SIGKILL)
    assert_no_orphans(pids)


STALLED = """
import sys, time
sys.path[:0] = {path!r}
from autograder.run.jobs import Worker

print(Worker("stalls:prepare").process.pid, flush=True)
time.sleep(1000)
"""


def test_a_worker_that_still_imports_ends_with_a_grader_that_is_killed(
    tmp_path: Path, assert_no_orphans: Callable[..., None]
) -> None:
    begun = tmp_path / "begun"
    (tmp_path / "stalls.py").write_text(
        f"import pathlib, time\npathlib.Path({str(begun)!r}).touch()\ntime.sleep(600)\n"
    )
    code = STALLED.format(path=[str(ROOT), str(tmp_path)])
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as grader:
        assert grader.stdout is not None
        worker = int(grader.stdout.readline())
        try:
            deadline = time.monotonic() + 120
            while not begun.exists():
                assert time.monotonic() < deadline, "the worker did not come to its imports"
                time.sleep(0.05)
            grader.kill()
            grader.wait()
            assert_no_orphans([worker])
        finally:
            grader.kill()
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)


# ---- how many


def test_the_number_of_workers_follows_cores_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "cores", lambda: 8)
    monkeypatch.setattr(capacity, "available_memory", lambda: int(3.2 * capacity.WORKER_BYTES))
    assert capacity.default_jobs() == 3
    monkeypatch.setattr(capacity, "available_memory", lambda: 1000)
    assert capacity.default_jobs() == 1
    monkeypatch.setattr(capacity, "available_memory", lambda: 2**40)
    assert capacity.default_jobs() == 8


def test_a_control_groups_share_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bound, free = capacity.cores(), capacity.available_memory()
    assert bound >= 1 and free > 0
    monkeypatch.setattr(capacity, "CGROUP", tmp_path)
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("400\n")
    assert (capacity.cores(), capacity.available_memory()) == (1, 600)
    (tmp_path / "cpu.max").write_text("max 100000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert capacity.cores() >= 1 and capacity.available_memory() > 600


# ---- a cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a Dask scheduler on loopback, with two workers, each a process of its own."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    environment["DASK_DISTRIBUTED__ADMIN__SYSTEM_MONITOR__INTERVAL"] = "5s"
    started: list[subprocess.Popen] = []

    def start(*arguments: str) -> subprocess.Popen:
        command = [sys.executable, "-m", *arguments]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, env=environment, **quiet))
        return started[-1]

    try:
        scheduler = start(
            *("distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0"),
            *("--no-dashboard", "--no-show"),
        )
        assert scheduler.stderr is not None
        address = ""
        while not address:
            line = scheduler.stderr.readline()
            assert line, "the scheduler ended"
            if "Scheduler at:" in line:
                address = line.split()[-1]
        for _ in range(2):
            start(
                *("distributed.cli.dask_worker", address, "--nthreads", "1", "--no-dashboard"),
                *("--no-nanny", "--host", "127.0.0.1"),
            )
        yield address
    finally:
        for process in started:
            process.kill()
            process.wait()
            assert process.stderr is not None
            process.stderr.close()


def connect(address: str, workers: int) -> ClusterWorkers:
    """Workers of the cluster, as soon as it has so many of its own."""
    deadline = time.monotonic() + 60
    while True:
        try:
            made = ClusterWorkers(address)
        except SchedulerError:
            assert time.monotonic() < deadline
            time.sleep(0.2)
            continue
        if made.count == workers:
            return made
        made.shutdown()
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_a_cluster_answers_as_the_machine_itself_does(cluster: str) -> None:
    with connect(cluster, 2) as workers:
        futures = [workers.submit(marking_double.double, number) for number in range(10)]
        assert [future.result(60) for future in futures] == [2 * number for number in range(10)]
        busy = [workers.submit(marking_double.process_id) for _ in range(10)]
        assert len({future.result(60) for future in busy}) == 2
        with pytest.raises(TaskError, match="no idea"):
            workers.submit(marking_double.fail, "no idea").result(60)
        deadly = workers.submit(marking_double.die)
        with pytest.raises(WorkerDiedError, match="exit code 7"):
            deadly.result(60)
        assert workers.submit(marking_double.double, 4).result(60) == 8


def test_a_submission_gets_the_same_grade_on_a_cluster(cluster: str, seed: int) -> None:
    released = nbformat.writes(read_twin(TOY))
    draw = random.Random(seed)
    works = []
    for number in range(6):
        notebook = read_twin(TOY)
        for cell in notebook.cells:
            if cell["id"] in ("one", "two"):
                cell.source = f"# share: {draw.random():.3f}"
        content = nbformat.writes(notebook).encode()
        works.append(
            Work(f"student-{number}", "00_toy", content, released, released, Limits(), b"secret")
        )
    with connect(cluster, 2) as workers:
        futures = [workers.submit(marking_double.grade, work) for work in works]
        found = [future.result(60) for future in futures]
    assert found == [marking_double.grade(work) for work in works]


def test_a_cluster_that_is_not_there_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autograder.run.cluster.CONNECT_SECONDS", 1)
    with pytest.raises(SchedulerError, match="no Dask scheduler answers at tcp://127"):
        ClusterWorkers("tcp://127.0.0.1:9")
    with pytest.raises(SchedulerError, match="nonsense"):
        ClusterWorkers("nonsense://x")
