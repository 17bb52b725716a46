"""Checks are cut by where they run: ranks know nothing of the judge, and neither of an exercise."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHECKS = ROOT / "course_lib" / "checks"
PREFIX = "course_lib.checks."
WORDS = ("sentence", "words")  # of messages: they import nothing of the checks but each other
# The parts of the checks that the files of each part may import, beside their own.
MAY = {
    "rank": ("wire",),
    "judge": ("rank", "wire", "report", *WORDS),
    "wire.py": (),
    "kit.py": ("judge", *WORDS),
    "notebooks": ("kit", "rank", "judge", *WORDS),
    "client.py": ("judge", "report", *WORDS),
    "report.py": ("colour", *WORDS),
    "colour.py": (),
    "outdated.py": (),
    "beneath.py": ("judge", "report", *WORDS),
    "sentence.py": WORDS,
    "words.py": WORDS,
}
# The judge finds an exercise by its name: it imports from the notebooks' folder.
FINDS = (CHECKS / "judge" / "find.py",)
ALGORITHMS = re.compile(
    r"\b(zero[123]|fsdp|bucket(s|ed)?|powersgd|top-?k|int8|pipedream|gpipe|1f1b|dualpipe|zigzag|striped|"
    r"ulysses|ring_attention|hierarchical|one_bit|vocab\w*|conjugate)\b",
    re.IGNORECASE,
)


def files(part: str) -> list[Path]:
    at = CHECKS / part
    return [at] if at.is_file() else sorted(at.rglob("*.py"))


def imported(file: Path) -> Iterator[str]:
    """The modules of the checks that a file imports, without the prefix "course_lib.checks."."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        yield from (name.removeprefix(PREFIX) for name in names if name.startswith(PREFIX))


def test_every_part_of_the_checks_is_named_here() -> None:
    there = {one.name for one in CHECKS.iterdir()} - {"__pycache__", "__init__.py", "ruff.toml"}
    assert there == set(MAY)


@pytest.mark.parametrize("part", MAY)
def test_arrows_point_from_the_exercise_to_the_judge_to_the_rank(part: str) -> None:
    may = {part.removesuffix(".py"), *MAY[part]}
    for file in files(part):
        beyond = {name for name in imported(file) if name.partition(".")[0] not in may}
        assert not beyond or file in FINDS, f"{file.relative_to(ROOT)} imports {beyond}"


# Modules that exercises import beside the kit: frames, with names of their own (`layer_case`, `LayerRun`).
FRAMES = (
    "judge.functions",
    "judge.layers",
    "judge.meshes",
    "judge.training_runs",
)


def test_exercises_are_written_with_the_kit() -> None:
    for file in files("notebooks"):
        beside = {name for name in imported(file) if name.startswith("judge.")}
        other = {name for name in beside if not name.startswith(FRAMES)}
        assert not other, f"{file.relative_to(ROOT)} imports {other}: the kit has them, or should"


@pytest.mark.parametrize("part", ["rank", "judge"])
def test_machinery_names_no_algorithm(part: str) -> None:
    for file in files(part):
        if (CHECKS / "rank" / "notebooks") in file.parents:
            continue
        found = {match[0] for match in ALGORITHMS.finditer(file.read_text())}
        assert not found, f"{file.relative_to(ROOT)} speaks of {found}"
