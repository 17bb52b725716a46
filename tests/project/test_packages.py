"""The packages of topics: their exports, names that can be hidden, and folders that can be copied out."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autograder.course.config import assignments
from autograder.sample.mutants import MUTANTS
from course_lib.checks.judge.masks import reference_modules
from course_lib.exports import late_names

ROOT = Path(__file__).resolve().parents[2]
TOPICS = (
    "axis_types", "collectives", "compression", "context_parallel", "data", "data_parallel", "dry",
    "experts", "facts", "fsdp", "models", "operation", "pipeline", "planning", "precision", "recompute",
    "tensor_parallel", "trainer", "zero",
)  # fmt: skip
# They import what exercises of earlier notebooks hide, and none of their own names can be had there.
COMPOSED = ("trainer",)
# Modules that are imported by their names. This one has the names of others, and exercises hide it.
BY_NAME = ("course_lib.planning.by_hand",)
# Checks and their mutants may be there before their notebook.
KNOWN = {*assignments(), *(folder.name for folder in MUTANTS.iterdir() if folder.is_dir())}
HIDDEN = sorted({module for name in KNOWN for module in reference_modules(name)})
READERS = [
    *ROOT.glob("*.md"),
    *(path for folder in ("benchmarks", "docs", "examples") for path in (ROOT / folder).rglob("*.py")),
    *ROOT.glob("docs/*.md"),
    *ROOT.glob("solutions/*/*.py"),
]  # fmt: skip


def package(topic: str):
    return importlib.import_module(f"course_lib.{topic}")


# ---- exports


@pytest.mark.parametrize("topic", TOPICS)
def test_every_public_name_can_be_imported_from_the_package(topic: str) -> None:
    exported = package(topic).__all__
    assert len(exported) == len(set(exported)) and not [name for name in exported if name[0] == "_"]
    for name in exported:
        made: dict = {}
        exec(f"from course_lib.{topic} import {name}", made)
        assert made[name] is not None
    assert {*exported} <= {*dir(package(topic))}
    assert not hasattr(package(topic), "nothing")


def imported(source: str) -> Iterator[tuple[str, str]]:
    """(module, name) of every `from course_lib.topic... import name` in a text, of Python or not."""
    pattern = r"^[ \t#>]*from (course_lib\.[\w.]+) import (?:\(([^)]*)\)|(.+))$"
    for module, several, line in re.findall(pattern, source, re.MULTILINE):
        for one in re.sub(r"#.*", "", several or line).split(","):
            name = one.partition(" as ")[0].strip()
            if name:
                yield module, name


@pytest.mark.parametrize("reader", READERS, ids=lambda path: path.name)
def test_names_that_are_used_outside_a_package_are_exported(reader: Path) -> None:
    """A package exports every name that a notebook, a benchmark or a page imports from its modules."""
    for module, name in imported(reader.read_text(encoding="utf-8")):
        topic = module.split(".")[1]
        if topic in TOPICS and module not in BY_NAME and name not in package(topic).__all__:
            is_module = importlib.util.find_spec(f"course_lib.{topic}.{name}") is not None
            assert is_module, f"course_lib.{topic} does not export {name}"


def test_imports_are_found_in_any_text() -> None:
    text = "```\nfrom course_lib.zero import (\n    A,  # why\n    B as b,\n)\n```\n"
    assert [*imported(text)] == [("course_lib.zero", "A"), ("course_lib.zero", "B")]
    assert [*imported("#     from course_lib.a.b import c, d")] == [
        ("course_lib.a.b", "c"),
        ("course_lib.a.b", "d"),
    ]


# ---- hidden names

HIDING = """
import importlib, sys
from course_lib.checks.rank.own_work import own_work

hidden, names = {hidden!r}, {names!r}
for turn in ("new", "kept"):  # a rank that is kept, as NCCL's are, may have used them for another exercise
    with own_work(hidden):
        for topic in names:
            package = importlib.import_module(f"course_lib.{{topic}}")
            for name in names[topic]:
                try:
                    getattr(package, name)
                except ImportError as error:
                    assert "write your own" in str(error), error
                    print(turn, topic, name)
        assert not set(hidden) & set(sys.modules)
    for topic in names:
        importlib.import_module(f"course_lib.{{topic}}")
        exec(f"from course_lib.{{topic}} import *")
"""


def test_names_that_exercises_ask_for_are_hidden_and_the_others_are_there() -> None:
    """Tried in a process of its own. The error for a hidden name says that it is hidden."""
    needed = [
        topic for topic in TOPICS if f"course_lib.{topic}" not in HIDDEN and topic not in COMPOSED
    ]
    names = {topic: package(topic).__all__ for topic in needed}
    program = HIDING.format(hidden=HIDDEN, names=names)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    refused = {tuple(line.split()) for line in done.stdout.splitlines()}
    wanted = {
        (topic, name)
        for topic in needed
        for name, module in late_names(f"course_lib.{topic}").items()
        if f"course_lib.{topic}.{module}" in HIDDEN  # others are only imported late
    }
    assert refused == {(turn, *one) for turn in ("new", "kept") for one in wanted}
    assert {("context_parallel", "ring_attention"), ("pipeline", "run_schedule")} <= wanted


# ---- folders that can be copied out


@pytest.mark.parametrize("topic", ["collectives", "compression"])
def test_the_folder_can_be_copied_out_alone(topic: str, tmp_path: Path) -> None:
    """It imports torch and itself only, and works under another name outside the package."""
    folder = ROOT / "course_lib" / topic
    for path in folder.glob("*.py"):
        source = path.read_text()
        assert len(source.splitlines()) < 300, path.name
        for node in ast.walk(ast.parse(source)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            top = {name.partition(".")[0] for name in names}
            assert top <= {"torch", *sys.stdlib_module_names}, (path.name, top)
    shutil.copytree(folder, tmp_path / "lifted")
    program = "import sys; sys.path[:0] = ['.']; from lifted import *"
    program += "; assert not any('course_lib' in m for m in sys.modules)"
    subprocess.run([sys.executable, "-I", "-c", program], cwd=tmp_path, check=True)
