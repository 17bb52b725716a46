"""Which of many alike tests run: a share that the run's seed draws, and all of what a change touches.

`make test` runs a share of the answers in `tests/mutants`, and of the tests marked `drawn`. It runs all of
them for an exercise that a change touches: files that differ from the commit COURSE_TEST_SINCE (by default
the one before HEAD), or that git does not know. `make test-all` runs all. Each run says what it drew, and
COURSE_TEST_SEED repeats it.
"""

from __future__ import annotations

import ast
import os
import random
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ALL = "COURSE_ALL_TESTS"
SINCE = "COURSE_TEST_SINCE"
EXERCISES = "course_lib.checks.notebooks."
FOLDER = EXERCISES.replace(".", "/")


def everything() -> bool:
    """Whether all tests run."""
    return bool(os.environ.get(ALL))


def is_drawn(name: str, share: float, seed: int) -> bool:
    """Whether a test of this name runs, if `share` of those like it do."""
    return everything() or random.Random(f"{seed} {name}").random() < share


def some_of(names: Sequence[str], share: float, seed: int) -> set[str]:
    """`share` of the names, rounded up."""
    count = -(-len(names) * share // 1)
    return set(random.Random(f"{seed} {names}").sample(sorted(names), int(count)))


@cache
def changed_files() -> frozenset[str]:
    """Paths in the repository that differ from the commit SINCE; none where git cannot tell."""
    since = os.environ.get(SINCE) or "HEAD~1"
    commands = (
        ("git", "diff", "--name-only", since),
        ("git", "ls-files", "--others", "--exclude-standard"),
    )
    changed: set[str] = set()
    for command in commands:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            changed |= set(done.stdout.splitlines())
    return frozenset(changed)


def is_touched(exercise: str, module: str) -> bool:
    """Whether a change touches an exercise, such as "05_fsdp/clip": its answers, or what judges it.

    module: of the exercise. Code that all exercises share (the judge, the kit) does not count.
    """
    return bool({f"tests/mutants/{exercise}.py", *_sources(module)} & changed_files())


def header() -> str:
    """A sentence about the share that a run draws."""
    if everything():
        return f"{ALL}: all answers of tests/mutants, and all tests that are marked `drawn`"
    changed = changed_files()
    named = _few(sorted(file for file in changed if file.startswith(("tests/mutants/", FOLDER))))
    touched = f", and all of the exercises that {named} touch" if named else ""
    return (
        f"a share of tests/mutants and of tests marked `drawn`, by the seed{touched} ({ALL}=1: all)"
    )


def _few(names: list[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


@cache
def _sources(module: str) -> frozenset[str]:
    """The files of an exercise's module and of what it imports among the exercises, below ROOT."""
    left, known = [module], set[str]()
    files: set[str] = set()
    while left:
        name = left.pop()
        if name in known or not name.startswith(EXERCISES):
            continue
        known.add(name)
        file = f"{name.replace('.', '/')}.py"
        if not (ROOT / file).is_file():  # a name in a module, or a package, which holds nothing
            continue
        files.add(file)
        for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                left += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return frozenset(files)
