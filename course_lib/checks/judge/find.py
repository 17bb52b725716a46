"""From "02_collectives/ring_all_reduce" to the exercise: the module has the assignment's name."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import re

import course_lib.checks.notebooks
from course_lib.checks.judge.case import Exercise, exercises

ASSIGNMENT = re.compile(r"\d\d_([a-z][a-z0-9_]*)\Z")


class UnknownExercise(LookupError):
    """There is no such exercise; the text names the ones that exist."""


def find(name: str) -> Exercise:
    """The exercise "<assignment>/<exercise>". UnknownExercise names the nearest one."""
    assignment, _, short = str(name).partition("/")
    known = of_assignment(assignment)
    if short not in known:
        near = difflib.get_close_matches(short, known, n=1)
        meant = f" Did you mean {assignment}/{near[0]}?" if near else ""
        raise UnknownExercise(
            f"there is no exercise {str(name)!r}.{meant} {assignment} has: {', '.join(known)}."
        )
    return known[short]


def of_assignment(assignment: str) -> dict[str, Exercise]:
    """All exercises of an assignment, such as "02_collectives"."""
    match = ASSIGNMENT.match(assignment)
    modules = {info.name for info in pkgutil.iter_modules(course_lib.checks.notebooks.__path__)}
    if match is None or match[1] not in modules:
        raise UnknownExercise(
            f"there are no checks for the assignment {assignment!r}; there are some for: "
            f"{', '.join(sorted(modules))} (with their number in front, as in the notebook's name)."
        )
    return exercises(importlib.import_module(f"course_lib.checks.notebooks.{match[1]}"))
