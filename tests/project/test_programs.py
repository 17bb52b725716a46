"""A command whose output is no longer read, as in `... | head -1`, ends without a complaint."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from course_lib.program import BROKEN_PIPE, run_program
from tests.notebooks import made

ROOT = Path(__file__).resolve().parents[2]
ANSWERS = ROOT / "tests" / "mutants" / "00_first_ranks" / "hello.py"
TITLE = next(
    line.partition(": ")[2]
    for line in ANSWERS.read_text("utf-8").splitlines()
    if line.startswith("# %% wrong: ")
)
STARTED_BY_THE_COURSE = {  # and by no person
    "benchmarks/launching.py",
    "course_lib/operation/starter.py",
    "course_lib/runtime/gpus.py",
    "course_lib/runtime/reach.py",
}


def unread(*words: str, folder: Path) -> tuple[int, str]:
    """(exit code, stderr) of a command whose stdout has no reader from the beginning."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        ended = subprocess.run(
            [sys.executable, *words],
            stdout=write_end,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            timeout=300,
        )
    finally:
        os.close(write_end)
    return ended.returncode, ended.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("course_lib.progress", "mine.ipynb"),
        ("course_lib.submit", "--no-run", "mine.ipynb"),
        ("autograder", "mutant", str(ANSWERS), TITLE),
    ],
    ids=lambda words: words[0],
)
def test_a_command_without_a_reader_ends_quietly(words: tuple[str, ...], tmp_path: Path) -> None:
    made.hello(tmp_path / "mine.ipynb", made.HELLO, made.FULL)
    assert unread("-m", *words, folder=tmp_path) == (BROKEN_PIPE, "")


def test_every_command_ends_in_this_way() -> None:
    programs = {
        path.relative_to(ROOT).as_posix()
        for package in ("course_lib", "autograder", "benchmarks")
        for path in (ROOT / package).rglob("*.py")
        if path.name == "__main__.py" or '__name__ == "__main__"' in path.read_text("utf-8")
    }
    without = {name for name in programs if "run_program(" not in (ROOT / name).read_text("utf-8")}
    assert without == STARTED_BY_THE_COURSE


TAKE_ALL_WORDS = {  # and hand them to another program, or are started by a test
    "tests/autograder/interrupted_grader.py",
    "tests/browser/__main__.py",
    "tests/runtime/without_handles.py",
    "tools/open_lab.py",
}


def test_a_command_that_writes_files_only_explains_itself_when_it_is_asked_for_help() -> None:
    programs = {
        path.relative_to(ROOT).as_posix(): path.read_text("utf-8")
        for folder in ("tests", "tools")
        for path in (ROOT / folder).rglob("*.py")
    }
    without = {
        name
        for name, text in programs.items()
        if re.search('^if __name__ == "__main__":', text, re.MULTILINE)
        and "parse_args(" not in text
    }
    assert without == TAKE_ALL_WORDS


def test_a_pipe_that_broke_elsewhere_is_told() -> None:
    def main() -> int:
        raise BrokenPipeError("to a rank")

    with pytest.raises(BrokenPipeError, match="to a rank"):
        run_program(main)
