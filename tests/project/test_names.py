"""Names say what kind of thing a variable holds: some words never do."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("autograder", "benchmarks", "course_lib", "examples", "solutions", "tools")
VAGUE = {"one", "found", "seen", "told", "given"}


def named(source: str) -> Iterator[tuple[int, str]]:
    """Every name that a module gives, with its line: variables, arguments, fields, functions, aliases."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield node.lineno, name
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield node.lineno, name
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                yield node.lineno, name
            case ast.alias(asname=str(name)) | ast.alias(asname=None, name=name):
                yield node.lineno, name


@pytest.mark.parametrize("folder", FOLDERS)
def test_names_say_what_they_hold(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    vague = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for path in files
        for line, name in named(path.read_text(encoding="utf-8"))
        if name in VAGUE
    ]
    assert not vague, "\n".join(vague)


@pytest.mark.parametrize(
    "source",
    [
        "for one in lines: pass", "found = []", "def judge(seen): pass", "def told(): pass",
        "class Row:\n    given: str", "self.found = 1", "from words import told",
        "with run() as seen: pass", "f = lambda one: one", "if (found := f()): pass",
    ],
)  # fmt: skip
def test_vague_names_are_found(source: str) -> None:
    assert sum(name in VAGUE for _, name in named(source)) == 1


def test_other_uses_of_the_words_are_free() -> None:
    source = "x = row.found\nprint('one', one=1)\nday['seen'] = found\n"
    assert not [name for _, name in named(source) if name in VAGUE]
