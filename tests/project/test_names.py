"""Names say what they hold: some words never do, and a module or a class goes by its full name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("autograder", "benchmarks", "course_lib", "examples", "solutions", "tools")
VAGUE = {"one", "found", "seen", "told", "given"}

# Their modules go by their own names; a notebook may call the library `reference`, beside a student's own.
OWN = ("autograder", "benchmarks", "course_lib", "examples", "tests", "tools")
PATCHES = {
    "mutants",
    "outside",
    "cheats",
}  # folders of tests with cells and patches in place of modules
OF_WHAT = {"Layout", "Run", "Told"}
# Interfaces that notebooks show.
SHOWN = {("course_lib/planning/layout.py", "Layout"), ("course_lib/runtime/launch.py", "Run")}


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


def sources(folder: str) -> Iterator[Path]:
    for path in sorted((ROOT / folder).rglob("*.py")):
        if not (folder == "tests" and PATCHES & set(path.relative_to(ROOT).parts)):
            yield path


def own_modules() -> set[str]:
    """The dotted names of all modules and packages; those of `tools` are imported without the folder, too."""
    paths = [path.relative_to(ROOT).with_suffix("") for name in OWN for path in sources(name)]
    dotted = {".".join(path.parts).removesuffix(".__init__") for path in paths}
    dotted |= {name.removeprefix("tools.") for name in dotted}
    return dotted | {name.rpartition(".")[0] for name in dotted} - {""}


def renamed_modules(path: Path, source: str, modules: set[str]) -> Iterator[tuple[int, str]]:
    """Imports of own modules under other names: the line, and "module as name"."""
    package = path.relative_to(ROOT).parts[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            prefix = ""
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            prefix = "".join(f"{part}." for part in [*above, *filter(None, [node.module])])
        else:
            continue
        for alias in node.names:
            if alias.asname and prefix + alias.name in modules:
                yield node.lineno, f"{prefix}{alias.name} as {alias.asname}"


def test_a_module_is_imported_by_its_own_name() -> None:
    modules = own_modules()
    assert {"course_lib.checks.kit", "course_lib.ledger", "tests.conftest"} <= modules
    renamed = [
        f"{path.relative_to(ROOT)}:{line}: {what}"
        for folder in OWN
        for path in sources(folder)
        for line, what in renamed_modules(path, path.read_text(encoding="utf-8"), modules)
    ]
    assert not renamed, "\n".join(renamed)


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("from course_lib.checks.judge import training_runs as lines", 1),
        ("import course_lib.facts as numbers", 1),
        ("from . import kit as judge", 1),
        ("def late():\n    from ..ledger import rows as table", 1),
        ("import numpy as np, torch.nn.functional as F", 0),
        ("from course_lib.checks import kit, words", 0),
        ("from course_lib.runtime.launch import launch as start", 0),  # a function
    ],
)
def test_renamed_modules_are_found(source: str, count: int) -> None:
    path = ROOT / "course_lib" / "checks" / "client.py"
    assert len(list(renamed_modules(path, source, own_modules()))) == count


@pytest.mark.parametrize("folder", ["autograder", "course_lib"])
def test_classes_say_of_what(folder: str) -> None:
    bare = {
        (str(path.relative_to(ROOT)), node.name)
        for path in sources(folder)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and node.name in OF_WHAT
    }
    assert bare == {(path, name) for path, name in SHOWN if path.startswith(folder)}
