"""Imports run one way: between packages, between autograder's folders, and between any two modules."""

from __future__ import annotations

import ast
import graphlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from course_lib.checks.judge.masks import SEEN

ROOT = Path(__file__).resolve().parents[2]
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def table(name: str) -> list[list[str]]:
    """The rows of a table of docs/architecture.md, cell by cell."""
    text = ARCHITECTURE.partition(f"<!-- {name}: begin -->")[2].partition(f"<!-- {name}: end -->")[
        0
    ]
    return [line.split("|")[1:-1] for line in text.strip().splitlines()[2:]]


def named(cell: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", cell))


def may_import() -> dict[str, set[str]]:
    """The parts of the library that each part may import; a row may stand for several parts."""
    rows = {frozenset(named(parts)): (holds, others) for parts, holds, others in table("PARTS")}
    algorithms = {
        name for parts, (holds, _) in rows.items() if "algorithm" in holds for name in parts
    }
    return {
        name: named(others) | (algorithms if "the algorithms" in others else set())
        for parts, (_, others) in rows.items()
        for name in parts
    }


def modules(package: str) -> dict[str, Path]:
    """Every module of a package by its dotted name; a package's is that of its `__init__`."""
    names = {}
    for file in (ROOT / package).rglob("*.py"):
        path = file.relative_to(ROOT).with_suffix("")
        if path.parts[1:3] == ("faults", "course"):  # a notebook's source
            continue
        names[".".join(path.parts).removesuffix(".__init__")] = file
    return names


def imports(package: str) -> Iterator[tuple[str, str]]:
    """(importing, imported) modules of a package, wherever the import stands, for types alone as well."""
    known = modules(package)
    for name, file in known.items():
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                targets = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            else:
                continue
            for target in targets:
                while target not in known and "." in target:
                    target = target.rpartition(".")[0]
                if target in known and target not in (name, package):
                    yield name, target


def part(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


@pytest.mark.parametrize("package", ["course_lib", "autograder"])
def test_no_modules_import_each_other_in_a_circle(package: str) -> None:
    graph: dict[str, set[str]] = {}
    for importing, imported in imports(package):
        graph.setdefault(importing, set()).add(imported)
    assert len(graph) > 50
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_a_part_of_the_library_imports_only_what_it_may() -> None:
    parts = {part(name) for name in modules("course_lib")} - {""}
    may = may_import()
    where = "docs/architecture.md, What may import what"
    assert parts <= set(may), f"{where}: no row has {sorted(parts - set(may))}"
    assert parts >= set(may), f"{where}: course_lib has no {sorted(set(may) - parts)}"
    beyond = [
        (importing, imported)
        for importing, imported in imports("course_lib")
        if part(importing) not in ("", part(imported))
        and part(imported) not in may[part(importing)]
    ]
    assert not beyond, f"{where}: a row allows it, or the import is another way: {beyond}"


def test_pictures_alone_imports_what_draws() -> None:
    """Nowhere else, for types alone either: an algorithm can be read and copied out without a figure."""
    pattern = re.compile(r"^\s*(?:from|import) (?:matplotlib|ipywidgets)\b", re.MULTILINE)
    drawing = {
        part(name)
        for name, file in modules("course_lib").items()
        if pattern.search(file.read_text(encoding="utf-8"))
    }
    assert drawing == {"pictures"}


def test_autograders_folders_import_only_folders_below_them() -> None:
    order = [*(name for row in table("FLOORS") for name in named(row[0])), "__main__"]
    assert {part(name) for name in modules("autograder")} - {""} == set(order)
    place = {name: number for number, name in enumerate(order)}
    upward = [
        (importing, imported)
        for importing, imported in imports("autograder")
        if place[part(imported)] > place[part(importing)]
    ]
    assert not upward


def test_the_library_imports_nothing_of_the_grader_or_the_tests() -> None:
    for file in modules("course_lib").values():
        text = file.read_text(encoding="utf-8")
        assert not re.search(
            r"^\s*(?:from|import) (?:autograder|tests|tools)\b", text, re.MULTILINE
        ), file


def test_a_report_is_imported_where_graded_code_runs() -> None:
    """There the files of the checks are masked; a report, and what it imports, must not be."""
    needed, found = set(), {"course_lib.checks.report"}
    while found - needed:
        needed |= found
        found = {
            imported
            for importing, imported in imports("course_lib")
            if importing in needed and imported.startswith("course_lib.checks.")
        }
    assert {f"{name.rpartition('.')[2]}.py" for name in needed} <= set(SEEN)


def test_a_python_without_the_courses_packages_is_told_in_a_sentence() -> None:
    hide = "import sys; sys.modules['cloudpickle'] = None; import course_lib"
    done = subprocess.run(
        [sys.executable, "-c", hide], capture_output=True, text=True, check=False, cwd=ROOT
    )
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: ") and sys.executable in last
    assert "has no cloudpickle" in last and ".venv/bin/python in place of python" in last
