"""The test run itself: workers draw from one seed, a file's tests stay together, Ctrl-C ends all."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parents[1]

SETTINGS = f"""
[tool.pytest.ini_options]
testpaths = ["tests"]
pythonpath = [{str(HERE.parent)!r}]
markers = ["gpu: none here"]
"""
TOGETHER = """
import os, pytest

@pytest.mark.parametrize("number", range(8))
def test_together(number, seed):
    with open("together", "a") as file:
        print(seed, os.getpid(), file=file)
"""
# Each of two tests waits until the other has begun: in one worker the first would wait in vain.
AT_ONCE = """
import os, pathlib, pytest, time

@pytest.mark.parametrize("number", range(2))
def test_at_once(number, seed):
    pathlib.Path(f"begun-{number}").write_text(f"{seed} {os.getpid()}")
    other, deadline = pathlib.Path(f"begun-{1 - number}"), time.monotonic() + 120
    while not other.exists():
        assert time.monotonic() < deadline, "the other test does not begin"
        time.sleep(0.05)
"""
ENDLESS = "    while True:\n        time.sleep(1)\n"


@pytest.fixture
def suite(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """suite(*words, name=text, ...) starts two workers on such test files, under our conftest.py."""

    def start(*words: str, **files: str) -> subprocess.Popen[str]:
        (tmp_path / "tests").mkdir()
        shutil.copy(HERE / "conftest.py", tmp_path / "tests")
        (tmp_path / "pyproject.toml").write_text(SETTINGS)
        for name, text in files.items():
            (tmp_path / "tests" / f"{name}.py").write_text(text)
        return subprocess.Popen(
            [sys.executable, "-m", "pytest", "-n", "2", "-p", "no:cacheprovider", *words],
            cwd=tmp_path,
            env={name: text for name, text in os.environ.items() if name != "COURSE_TEST_SEED"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    return start


def test_workers_have_one_seed_and_share_out_what_stands_apart(
    suite: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    run = suite(test_a=TOGETHER, test_mutants=AT_ONCE)
    said, _ = run.communicate(timeout=300)
    assert run.returncode == 0, said
    header = re.search(r"COURSE_TEST_SEED=(\d+)", said)
    assert header is not None, said
    together = (tmp_path / "together").read_text().splitlines()
    apart = [(tmp_path / f"begun-{number}").read_text() for number in range(2)]
    assert len(together) == 8
    assert len(set(together)) == 1, "a file's tests ran in several workers"
    assert len(set(apart)) == 2
    assert {line.split()[0] for line in (*together, *apart)} == {header[1]}


@pytest.mark.parametrize("misspelt", ["tests/test_aa.py", "tests/test_aa.py::test_together[0]"])
def test_a_misspelt_file_is_named(
    suite: Callable[..., subprocess.Popen[str]], misspelt: str
) -> None:
    run = suite("tests/test_a.py", misspelt, test_a=TOGETHER)
    said, _ = run.communicate(timeout=300)
    assert run.returncode == pytest.ExitCode.USAGE_ERROR
    assert "not found: tests/test_aa.py" in said


def test_ctrl_c_ends_the_workers(
    suite: Callable[..., subprocess.Popen[str]],
    tmp_path: Path,
    assert_no_orphans: Callable[..., None],
) -> None:
    run = suite(test_mutants=AT_ONCE + ENDLESS)
    begun = [tmp_path / f"begun-{number}" for number in range(2)]
    deadline = time.monotonic() + 120
    while not all(path.exists() and path.read_text() for path in begun):
        assert run.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(run.pid, signal.SIGINT)
    said, _ = run.communicate(timeout=120)
    assert run.returncode == pytest.ExitCode.INTERRUPTED, said
    assert_no_orphans([int(path.read_text().split()[1]) for path in begun])
