"""Lint, format and types of all files in the repository."""

from __future__ import annotations

import ast
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TWINS = sorted(ROOT.glob("solutions/*/*.py"))
WIDE = 100  # columns of a docstring that the web pages show without scrolling


@pytest.mark.parametrize("command", ["ruff check", "ruff format --check", "basedpyright"])
def test_the_code_is_clean(command):
    program, *arguments = command.split()
    code, output = run([sys.executable, "-m", program, *arguments], 600)
    assert code == 0, output


def run(command: Sequence[str], seconds: float) -> tuple[int, str]:
    """The exit code and the output of a program. After the time-out its children are ended as well.

    basedpyright is a Python program that starts one of Node.js, which would go on for minutes.
    """
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    ) as program:  # fmt: skip
        try:
            output, _ = program.communicate(timeout=seconds)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGKILL)
    return program.returncode, output


def test_a_time_out_ends_the_children_too(
    assert_no_orphans: Callable[..., None], tmp_path: Path
) -> None:
    file = tmp_path / "pid"
    with pytest.raises(subprocess.TimeoutExpired):
        run(["sh", "-c", f"sleep 1000 & echo $! > {file}; wait"], 2)
    assert_no_orphans([int(file.read_text())])


def wide_lines(source: str) -> list[int]:
    """The lines of docstrings that have more than WIDE columns."""
    lines = source.splitlines()
    return [
        number
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None
        for number in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
        if len(lines[number - 1]) > WIDE
    ]


def test_a_wide_docstring_is_found() -> None:
    fits = f'    """{"x" * (WIDE - 10)}"""'
    assert len(fits) == WIDE
    assert wide_lines(f"def f():\n{fits}\n") == []
    assert wide_lines(f"class A:\n    def f():\n    {fits}\n") == [3]
    assert wide_lines(f'TEXT = "{"x" * WIDE}"  # no docstring\n') == []


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.stem)
def test_docstrings_of_a_notebook_do_not_scroll_on_the_web(twin: Path) -> None:
    found = wide_lines(twin.read_text(encoding="utf-8"))
    assert not found, f"{twin.name}: wrap the docstrings at {WIDE} columns in lines {found}"
