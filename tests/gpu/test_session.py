"""`make gpu`: its parts and their order, the notebooks, MPS, and a rehearsal without a GPU."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import gpu_mps
import gpu_notebook
import gpu_session
import nbformat
import pytest

from course_lib.runtime import gpus

ROOT = Path(__file__).resolve().parents[2]


def test_the_session_on_gpus_says_what_it_cannot_do_here(tmp_path: Path) -> None:
    """`make gpu` without a GPU runs the parts that need none, writes a report and exits with 0."""
    if gpus.gpu_count():
        pytest.skip("this machine has a GPU: the session would take minutes")
    command = [sys.executable, "tools/gpu_session.py", "--out", str(tmp_path)]
    answer = subprocess.run(command, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    said, *lines, where = answer.stdout.splitlines()
    assert said.startswith("No GPU") and where.endswith("report.md")
    results = {result["part"]: result for result in map(json.loads, lines)}
    assert results["facts"]["status"] == "passed"
    assert {r["status"] for name, r in results.items() if name != "facts"} == {"left out"}
    assert "| facts | passed |" in (tmp_path / "report.md").read_text()
    assert (tmp_path / "results.jsonl").read_text().splitlines() == lines
    with tarfile.open(tmp_path / "logs.tar.gz") as archive:
        assert archive.getnames() == ["facts.log"]


def test_the_session_is_rehearsed_in_its_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """The processes that take minutes are made up here: `make gpu ARGS=--rehearse` starts them."""
    commands = []

    def logged(command: list[str], log: Path, limit: float, environment: dict) -> tuple[int, float]:
        commands.append((command, environment))
        log.write_text("done")
        if "gpu_notebook.py" in command[1]:
            Path(command[3]).with_suffix(".json").write_text("[]")
            Path(environment["COURSE_LAUNCHES"]).write_text("4 gloo\n")
        return 0, 1.0

    monkeypatch.setattr(gpu_session, "run_logged", logged)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert gpu_session.main(["--rehearse", "--lean", "--out", str(tmp_path)]) == 0
    results = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line[0] == "{"]
    assert [(r["part"], r["status"]) for r in results] == [
        ("facts", "passed"), ("record", "passed"), ("over NCCL: 00_first_ranks", "passed"),
        ("over NCCL", "passed"), ("grading", "passed"), ("one rank", "left out"), ("several", "left out"),
        ("as it comes", "left out"),
    ]  # fmt: skip
    assert [" ".join(command[1:]).replace(str(tmp_path), "OUT") for command, _ in commands] == [
        "-m course_lib.doctor",
        "-m course_lib.gpu --out OUT/record.json --rehearse",
        f"{ROOT}/tools/gpu_notebook.py 00_first_ranks OUT/over_NCCL_00_first_ranks --lean",
        "-m autograder selftest --quick",
    ]
    assert commands[2][1]["COURSE_BACKEND"] == "gloo"
    assert gpu_session.main(["--rehearse", "--limit", "1", "--out", str(tmp_path)]) == 0
    assert "no time was left" in (tmp_path / "report.md").read_text()


def test_a_notebook_that_fell_back_to_the_cpu_has_not_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    runs = {"10": "8 nccl\n16 gloo\n", "05": "4 gloo\n"}

    def logged(command: list[str], log: Path, limit: float, environment: dict) -> tuple[int, float]:
        log.write_text("")
        Path(command[3]).with_suffix(".json").write_text("[]")
        Path(environment["COURSE_LAUNCHES"]).write_text(runs[command[2][:2]])
        return 0, 1.0

    monkeypatch.setattr(gpu_session, "run_logged", logged)
    session = gpu_session.Session(tmp_path, 1, shares=True, notebooks=("05", "10"))
    result = gpu_session.notebooks_over_nccl(session, 60)
    assert result.status == "failed" and result.said == "1 of 2 notebooks without a fault"
    assert result.details == [
        "10_four_dimensions: 0 cells went wrong; 1 runs over NCCL, 1 on the CPU, 1 s",
        "05_fsdp: 1 cells went wrong; 0 runs over NCCL, 1 on the CPU, 1 s",
        "    nothing ran over NCCL",
    ]
    assert capsys.readouterr().out.count("{") == 2, "each notebook has a line of its own at once"


def test_a_record_without_all_experiments_has_not_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def logged(command: list[str], log: Path, limit: float, environment: dict) -> tuple[int, float]:
        log.write_text("ring: no time was left\n")
        Path(command[command.index("--out") + 1]).write_text('{"masks": {}}')
        return 0, 1.0

    monkeypatch.setattr(gpu_session, "run_logged", logged)
    result = gpu_session.record(gpu_session.Session(tmp_path, 1), 60)
    assert (result.status, result.said) == (
        "timed out",
        "1 experiments are in record.json, 1 had no time",
    )


def test_notebooks_that_no_gpu_has_seen_come_first() -> None:
    names = [path.name for path in gpu_session.SOLUTIONS.iterdir() if path.is_dir()]
    order = gpu_session.in_order(())
    assert sorted(order) == sorted(names)
    known = [name[:2] for name in order if name[:2] in gpu_session.ORDER]
    assert known == list(gpu_session.ORDER)
    assert order[len(order) - len(known)][:2] == "10", "new notebooks are before the known ones"
    assert gpu_session.in_order(("03", "05")) == ["05_fsdp", "03_data_parallel"]


@pytest.mark.parametrize(
    ("count", "shares", "variables", "left"),
    [
        (0, False, {}, {"over NCCL", "record", "grading", "one rank", "several", "as it comes"}),
        (1, False, {}, {"over NCCL", "several"}),
        (4, False, {}, set()),
        (1, True, {"COURSE_RANKS_PER_GPU": "8", "MPS": "here"}, set()),
        (3, True, {"COURSE_RANKS_PER_GPU": "3", "MPS": "here"}, set()),
    ],
)
def test_parts_that_a_machine_cannot_run_are_left_out(
    count: int, shares: bool, variables: dict, left: set, tmp_path: Path
) -> None:
    session = gpu_session.Session(tmp_path, count, shares=shares, mps=(("MPS", "here"),))
    assert session.sharing() == variables
    assert {part.name for part in gpu_session.PARTS if gpu_session.left_out(part, session)} == left


def test_lean_notebooks_check_each_exercise_once() -> None:
    cell = nbformat.v4.new_code_cell(
        'report = check("a/b", f)\n### BEGIN HIDDEN TESTS\nreport = check("a/b", f, cases="hidden")\n'
        "### END HIDDEN TESTS\nreport.points(4)"
    )
    text = nbformat.v4.new_markdown_cell(cell.source)
    alone = nbformat.v4.new_code_cell('report = check("a/b", f)\nreport.points(4)')
    notebook = nbformat.v4.new_notebook(cells=[cell, text, alone])
    gpu_notebook.lean(notebook)
    assert notebook.cells[0].source.count("check(") == 1 and 'cases="hidden"' in cell.source
    assert text.source.count("check(") == 2 and alone.source.count("check(") == 1


def test_faults_of_a_notebook_that_ran() -> None:
    def cell(*outputs: dict, **metadata: object) -> nbformat.NotebookNode:
        made = nbformat.v4.new_code_cell("...", outputs=[nbformat.from_dict(o) for o in outputs])
        made.metadata.update(metadata)
        return made

    error = {"output_type": "error", "ename": "ValueError", "evalue": "one\ntwo", "traceback": []}
    mixed = {"output_type": "stream", "name": "stdout", "text": f"oh: {gpu_notebook.NEVER[0]}, cpu"}
    cells = [cell(error), cell(error, tags=["raises-exception"]), cell(mixed)]
    found = list(gpu_notebook.faults(nbformat.v4.new_notebook(cells=cells), "not finished (x)"))
    assert [said.partition(": ")[2] for said in found] == [
        "0 cells had run", "ValueError: one | two", f"it says {gpu_notebook.NEVER[0]!r}"
    ]  # fmt: skip


@pytest.fixture
def mps_control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Path]:
    """A stand-in for the MPS daemon, which writes down how it was called, and ends with a code."""

    def made(code: int) -> Path:
        said = tmp_path / "called"
        program = tmp_path / "programs" / gpu_mps.CONTROL
        program.parent.mkdir()
        program.write_text(
            f'#!/bin/sh\necho "$CUDA_MPS_PIPE_DIRECTORY $* $(cat)" >> {said}\nexit {code}\n'
        )
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
        return said

    return made


def test_an_mps_server_is_ended_with_the_session(tmp_path: Path, mps_control: Callable) -> None:
    said, folder = mps_control(0), tmp_path / "mps"
    with gpu_mps.server(folder, dict(os.environ)) as found:
        assert found["CUDA_MPS_PIPE_DIRECTORY"] == str(folder)
        assert said.read_text().split() == [str(folder), "-d"]
    assert said.read_text().splitlines()[1].split() == [str(folder), "quit"]


def test_without_mps_nothing_is_set(tmp_path: Path, mps_control: Callable) -> None:
    with gpu_mps.server(tmp_path / "mps", {"PATH": str(tmp_path)}) as found:
        assert found == {}
    said = mps_control(1)
    with gpu_mps.server(tmp_path / "mps", dict(os.environ)) as found:
        assert found == {}
    assert len(said.read_text().splitlines()) == 1, "a server that did not start is not ended"


@pytest.mark.parametrize(
    ("without", "beside", "used", "says"),
    [
        (2.4e-3, 5e-5, True, "took 2.400 ms without MPS and 0.050 ms with it: it is used"),
        (1e-5, 5e-5, False, "took 0.010 ms without MPS and 0.050 ms with it: it is not used"),
        (None, 5e-5, True, "messages did not arrive without MPS and 0.050 ms with it: it is used"),
        (1e-5, None, False, "messages did not arrive with it: it is not used"),
    ],
)
def test_the_faster_way_is_taken(
    without: float | None,
    beside: float | None,
    used: bool,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = {"CUDA_MPS_PIPE_DIRECTORY": "x"}
    monkeypatch.setattr(
        gpu_mps,
        "seconds_a_message",
        lambda own: beside if found.items() <= own.items() else without,
    )
    variables, said = gpu_mps.faster({}, found)
    assert variables == (found if used else {}) and says in said
    assert gpu_mps.faster({}, {}) == ({}, "no MPS here: ranks that share a GPU take turns")


def test_messages_are_timed_only_where_there_are_gpus() -> None:
    if gpus.gpu_count():
        pytest.skip("this machine has a GPU: the trial would time it")
    assert gpu_mps.seconds_a_message(dict(os.environ)) is None


def test_the_packages_that_a_gpu_session_needs_are_in_the_lock() -> None:
    lines = (ROOT / "tools" / "gpu_wheels.txt").read_text().splitlines()
    locked = (ROOT / "requirements.lock").read_text()
    for name in (line for line in lines if not line.startswith("#")):
        assert re.search(rf"(?m)^{name}==", locked), name


def test_a_part_that_runs_past_its_limit_is_ended_with_all_that_it_started(
    tmp_path: Path, assert_no_orphans: Callable[..., None]
) -> None:
    code = (
        "import subprocess, sys, time; child = subprocess.Popen([sys.executable, '-c', "
        "'import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(60)'])\n"
        "print(child.pid, flush=True)\n"
        "try: time.sleep(60)\n"
        "except KeyboardInterrupt: print('written down')"
    )
    log = tmp_path / "log"
    began = time.monotonic()
    ended, _ = gpu_session.run_logged([sys.executable, "-c", code], log, 10.0, dict(os.environ))
    assert ended is None and time.monotonic() - began < 10 + gpu_session.LAST_CHANCE
    pid, said = log.read_text().split(maxsplit=1)
    assert said.strip() == "written down"
    assert_no_orphans([int(pid)])


def test_the_sessions_report_reads_what_pytest_wrote(tmp_path: Path) -> None:
    (tmp_path / "cases.xml").write_text(
        '<testsuites><testsuite><testcase classname="tests.runtime.test_gpu" name="a"/>'
        '<testcase classname="tests.runtime.test_gpu" name="b"><failure message="E: no&#10;more"/></testcase>'
        '<testcase classname="tests.runtime.test_gpu" name="c"><skipped message="why"/></testcase>'
        "</testsuite></testsuites>"
    )
    assert list(gpu_session.read_cases(tmp_path / "cases.xml")) == [
        ("test_gpu::a", "passed", ""),
        ("test_gpu::b", "failed", "E: no"),
        ("test_gpu::c", "skipped", "why"),
    ]
    broken = gpu_session.Result(
        "tests", "failed", 1.0, "1 passed, 1 failed", ["test_gpu::b: E: no"]
    )
    text = gpu_session.report("1 GPU", [broken])
    assert "| tests | failed | 1 | 1 passed, 1 failed |" in text and "test_gpu::b: E: no" in text
