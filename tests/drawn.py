"""Which of many alike tests run: a share that the run's seed draws, and all of what a change touches.

`make test` runs a share of the answers in `tests/mutants`, of the tests marked `drawn`, and of those in the
folders of SHARES. It runs all of them for an exercise, a file or a notebook that a change touches: one of the
files that it is made of or imports differs from the commit COURSE_TEST_SINCE (by default the one before
HEAD), or is not known to git. `make test-all` runs all, and so does a run that names files of tests. Each run
says what it drew, and COURSE_TEST_SEED repeats it.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
ALL, NAMED = "COURSE_ALL_TESTS", "COURSE_TESTS_NAMED"  # the second is set by a run that names tests
SINCE = "COURSE_TEST_SINCE"
EXERCISES = "course_lib.checks.notebooks."
FOLDER = EXERCISES.replace(".", "/")
MOST = 20  # files of exercises in a change; if it has more, not all of the exercises run with all answers
# Of the tests in a file of these folders, beside its first, if no change touches what the file imports.
SHARES = {"tests/algorithms": 0.4, "tests/examples": 0.4, "tests/ledger": 0.4}
# Modules that a file imports when a name is first used, and nearly all who import the file use no such name.
LATE = {"course_lib/__init__.py": {"course_lib.dry", "course_lib.dry.dry_run"}}
OURS = r"(?:course_lib|examples|tests)[.\w]*|\.[.\w]*"
IMPORT = re.compile(rf"^[ ]*(?:from|import) ({OURS})(?: import (\([^)]*\)|.*))?", re.M)


def everything() -> bool:
    """Whether all tests run, of those that were named."""
    return bool(os.environ.get(ALL) or os.environ.get(NAMED))


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


def is_touched(exercise: str, module: str, seed: int) -> bool:
    """Whether a change touches an exercise, such as "05_fsdp/clip": its answers, or what judges it.

    module: of the exercise. Code that all exercises share (the judge, the kit) does not count. A change of
    more than MOST files, as when the messages of whole notebooks are worded anew, would run the answers of
    nearly all exercises, which takes hours: then the seed draws among those that it touches.
    """
    own = {file for file in files_of(module) if file.startswith(FOLDER)}
    if not {f"tests/mutants/{exercise}.py", *own} & changed_files():
        return False
    return is_drawn(exercise, MOST / max(MOST, len(changed_exercises())), seed)


def changed_exercises() -> list[str]:
    """The changed files that exercises are made of."""
    return sorted(file for file in changed_files() if file.startswith(("tests/mutants/", FOLDER)))


def header() -> str:
    """A sentence about the share that a run draws."""
    if everything():
        return "nothing is drawn: all answers of tests/mutants and all tests run, of those that were named"
    changed = changed_exercises()
    all_or_some = "all" if len(changed) <= MOST else "some"
    touched = f", and {all_or_some} of the exercises that {_few(changed)} touch" if changed else ""
    folders = ", ".join(["tests/mutants", *SHARES])
    return f"a share of {folders} and of tests marked `drawn`, by the seed{touched} ({ALL}=1: all)"


def _few(names: list[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def imports(text: str, package: str = "") -> set[str]:
    """The names of ours that code imports: modules, and perhaps names in these. package: of relative ones."""
    names: set[str] = set()
    for module, listed in IMPORT.findall(text):
        if module.startswith("."):
            up = len(module) - len(module.lstrip("."))
            parents = package.split(".")[: 1 - up or None]
            module = ".".join([*parents, module.lstrip(".")]).rstrip(".")
        names |= {module, *(f"{module}.{name}" for name in re.findall(r"\w+", listed))}
    return names


@cache
def files_of(*modules: str) -> frozenset[str]:
    """The files below ROOT that modules consist of, those that they import, and so on."""
    left, known, files = list(modules), set[str](), set[str]()
    while left:
        name = left.pop()
        if name in known:
            continue
        known.add(name)
        path = name.replace(".", "/")
        for file in (f"{path}.py", f"{path}/__init__.py"):
            if (ROOT / file).is_file():  # else a name in a module
                files.add(file)
                left += _imports(file)
    return frozenset(files)


@cache
def _imports(file: str) -> frozenset[str]:
    package = file.rpartition("/")[0].replace("/", ".")
    names = imports((ROOT / file).read_text(encoding="utf-8"), package)
    return frozenset(names - LATE.get(file, set()))


@cache
def share_of(path: Path) -> float:
    """The share of a file's tests that run: 1 if a change touches it, or if all in its folder run always."""
    name = path.relative_to(ROOT).with_suffix("") if path.is_relative_to(ROOT) else path
    touched = files_of(".".join(name.parts)) & changed_files()
    return 1.0 if touched else SHARES.get(name.parent.as_posix(), 1.0)


def drawn_notebooks(paths: Sequence[Path], share: float) -> list[Any]:
    """Parameters of a test: all notebooks that a change touches, and `share` of the others."""
    mark = pytest.mark.drawn(share)
    return [
        pytest.param(path, marks=[] if notebook_is_touched(path.stem) else [mark], id=path.stem)
        for path in paths
    ]


def notebook_is_touched(name: str) -> bool:
    """Whether a change touches a notebook's source, what it imports, or its checks; name: "05_fsdp"."""
    source = f"solutions/{name}/{name}.py"
    code, topic = (ROOT / source).read_text(encoding="utf-8"), name.partition("_")[2]
    imported = files_of(*imports(code), f"{EXERCISES}{topic}")
    return bool({source, *imported} & changed_files())
