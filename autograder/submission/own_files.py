"""The files of ours that a single exercise rests on, beside those that all exercises share.

The checks of an assignment stand in a folder of their own, `course_lib/checks/notebooks/<topic>/`. An
exercise's own files are the one that its assignment's `__init__` imports it from, and those of such folders
that this file imports, and so on. Nothing is executed for it: the imports are read.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

CHECKS = Path("course_lib", "checks")
EXERCISES = CHECKS / "notebooks"


def is_own(path: Path) -> bool:
    """Whether a file, relative to the repository's root, is some exercise's and not of all."""
    return path.is_relative_to(EXERCISES) and path.parent != EXERCISES


def own_files(check: str, root: Path) -> list[Path]:
    """The files that exercise `check` ("02_collectives/ring_shift") alone rests on, below `root`.

    All exercises' files if it cannot be found: the exercise then rests on more files than it must.
    """
    assignment, _, name = check.partition("/")
    folder = EXERCISES / assignment.partition("_")[2]
    first = next((file for file in _named(folder, name, root) if is_own(file)), None)
    if first is None:
        return [file for file in _files(root) if is_own(file)]
    known, new = set[Path](), {first}
    while new:
        known |= new
        new = {path for file in new for path in _imported(file, root) if is_own(path)} - known
    return sorted(known)


@functools.cache
def _files(root: Path) -> list[Path]:
    return sorted(file.relative_to(root) for file in (root / CHECKS).rglob("*.py"))


@functools.cache
def _imported(file: Path, root: Path) -> frozenset[Path]:
    """The files that a file imports from the checks, anywhere in its text."""
    return frozenset(
        path
        for module, name in _imports(root / file)
        for path in _named(Path(*module.split(".")), name, root)
    )


def _named(package: Path, name: str, root: Path) -> Iterator[Path]:
    """The file that `from package import name` takes `name` from."""
    if (root / package / f"{name}.py").is_file():
        yield package / f"{name}.py"
    elif (root / package).with_suffix(".py").is_file():
        yield package.with_suffix(".py")
    elif (root / package / "__init__.py").is_file() and package.is_relative_to(CHECKS):
        for module, known in _imports(root / package / "__init__.py"):
            if known == name:
                yield from _named(Path(*module.split(".")), name, root)


def _imports(file: Path) -> Iterator[tuple[str, str]]:
    """(module, name) of each import of a file; `import a.b` is b of a."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                module, _, name = alias.name.rpartition(".")
                if module:
                    yield module, name
