"""Paths that graded code must not see: the references, the cases, and the judge."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable

import course_lib.checks
from course_lib.checks.judge.find import of_assignment
from course_lib.exports import late_names

# Of `course_lib.checks`: the code that ranks run, and that with which a cell's `check` refers to the grader.
SEEN = (
    "rank", "__init__.py", "client.py", "colour.py", "outdated.py", "report.py", "sentence.py", "wire.py",
    "words.py", "__pycache__",
)  # fmt: skip


def reference_modules(assignment: str) -> list[str]:
    """The modules that hold the answers to the assignment's exercises."""
    modules = {name for exercise in of_assignment(assignment).values() for name in exercise.references}
    return sorted(modules)


def exported_from(modules: Iterable[str]) -> set[str]:
    """The names by which packages export these modules' objects, such as "course_lib.pipeline.run_schedule".

    None of the modules is imported: their packages know the names.
    """
    names: set[str] = set()
    for module in modules:
        package, _, leaf = module.rpartition(".")
        names |= {f"{package}.{name}" for name, holder in late_names(package).items() if holder == leaf}
    return names


def masked_paths(assignment: str) -> tuple[str, ...]:
    """Files and folders to be masked while the assignment is graded: sources and compiled files.

    Of the checks all but the code that runs in ranks, or that speaks of the verdict; modules that cannot be
    found have no file.
    """
    paths: list[str] = []
    for folder in course_lib.checks.__path__:
        paths += [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name not in SEEN]
    for name in reference_modules(assignment):
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            continue
        if spec.submodule_search_locations:
            paths += list(spec.submodule_search_locations)
        else:
            paths += [spec.origin, *compiled(spec.origin)]
    return tuple(paths)


def compiled(source: str) -> list[str]:
    """The compiled files of a source, of whatever Python and optimisation."""
    folder, name = os.path.split(source)
    cache, stem = os.path.join(folder, "__pycache__"), name.removesuffix(".py")
    if not os.path.isdir(cache):
        return []
    return [os.path.join(cache, file) for file in os.listdir(cache) if file.startswith(f"{stem}.")]
