"""Lint, format and types of all files in the repository."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TWINS = sorted(ROOT.glob("solutions/*/*.py"))
WIDE = 100  # columns of a docstring that the web pages show without scrolling


@pytest.mark.parametrize("command", ["ruff check", "ruff format --check", "basedpyright"])
def test_the_code_is_clean(command):
    program, *arguments = command.split()
    done = subprocess.run(
        [sys.executable, "-m", program, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr


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
