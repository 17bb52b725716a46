"""The cause of a mistake may be in another exercise, whose function the judged one calls.

`neighbour_sum` can be two calls of `ring_shift`, and then a mistake in `ring_shift` also fails the check of
`neighbour_sum`, whose messages know nothing of it.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from course_lib.checks.judge.find import UnknownExercise, of_assignment
from course_lib.checks.report import Report
from course_lib.checks.words import number

CACHED = type(functools.cache(len))


def remarks(report: Report, objects: Iterable[Any], latest: Mapping[str, Report]) -> Iterator[str]:
    """A sentence for each function of another exercise that `objects` call and whose last check lost points.

    latest: the last report of each exercise. A function named by the report's messages is left out.
    """
    assignment, _, own = report.name.partition("/")
    said = " ".join(report.messages)
    if report.passed or not any(name.startswith(f"{assignment}/") for name in latest):
        return
    try:
        exercises = of_assignment(assignment)
    except UnknownExercise:  # the report says so
        return
    checked_by = {
        thing: name for name, exercise in exercises.items() for thing in exercise.objects if name != own
    }
    for thing in objects:
        for called in names_called(thing):
            last = latest.get(f"{assignment}/{checked_by.get(called, '')}")
            if last is not None and not last.passed and f"`{called}`" not in said:
                points = f"{last.points(last.possible):.1f} of {number(last.possible)} points"
                who = getattr(thing, "__name__", "this")
                yield f"`{who}` calls `{called}`, whose last check gave {points}. The cause may be there."


def names_called(thing: Any) -> list[str]:
    """The functions and classes of the same module that a function or class uses, and those they use."""
    names: dict[str, None] = {}
    waiting = [thing]
    while waiting:
        for function in functions_of(waiting.pop()):
            for name in names_in(function.__code__):
                other = function.__globals__.get(name)
                if name not in names and is_ours(other) and other.__module__ == function.__module__:
                    names[name] = None
                    waiting.append(other)
    return list(names)


def is_ours(thing: Any) -> bool:
    """Whether it is a function or a class; nothing is asked of other objects, which could run code."""
    return isinstance(thing, types.FunctionType | CACHED) or inspect.isclass(thing)


def functions_of(thing: Any) -> Iterator[types.FunctionType]:
    for part in vars(thing).values() if inspect.isclass(thing) else [thing]:
        if isinstance(part, staticmethod | classmethod):
            part = part.__func__
        elif isinstance(part, property):
            part = part.fget
        layers: list[Any] = []  # a decorator's function, and the function that it wraps
        while isinstance(part, types.FunctionType | CACHED) and part not in layers:
            layers.append(part)
            part = vars(part).get("__wrapped__")
        yield from (layer for layer in layers if isinstance(layer, types.FunctionType))


def names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from names_in(part)
