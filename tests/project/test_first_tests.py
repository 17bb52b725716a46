"""Each file of tests/algorithms begins with a test that a student can read: short, and before all helpers."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ALGORITHMS = Path(__file__).resolve().parents[1] / "algorithms"
FILES = sorted(ALGORITHMS.glob("test_*.py"))
MOST_LINES = 30


def trouble(source: str) -> str:
    """The fault of the first function or class of a file of tests; empty if there is none."""
    definitions = [
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    ]
    if not definitions:
        return "there is no test"
    first = definitions[0]
    if isinstance(first, ast.ClassDef) or not first.name.startswith("test_"):
        return f"{first.name} comes before the first test"
    begin = min([first.lineno, *(decorator.lineno for decorator in first.decorator_list)])
    lines = first.end_lineno - begin + 1
    return f"{first.name} has {lines} lines" if lines > MOST_LINES else ""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_begins_with_a_short_test(path: Path) -> None:
    assert not trouble(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("N = 2\n", "there is no test"),
        ("def helper(): ...\ndef test_sum(): ...\n", "helper comes before the first test"),
        ("class Model: ...\ndef test_sum(): ...\n", "Model comes before the first test"),
        ("def test_sum():\n" + "    assert 1\n" * 30, "test_sum has 31 lines"),
        ("@mark\ndef test_sum():\n" + "    assert 1\n" * 29, "test_sum has 31 lines"),
        ("N = 2\ndef test_sum():\n" + "    assert 1\n" * 29 + "def helper(): ...\n", ""),
    ],
)
def test_other_beginnings_are_found(source: str, says: str) -> None:
    assert trouble(source) == says
