"""Why something cannot be sent to the ranks, by the name that the student gave it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from course_lib.runtime import wire


def explain(fn: Callable, args: tuple, kwargs: dict, error: Exception) -> str:
    """A sentence that names the argument, global or captured variable that cannot be pickled."""
    name = getattr(fn, "__name__", type(fn).__name__)
    advice = "Make it inside the function, on the rank that uses it."
    candidates = [(f"argument {i}", value) for i, value in enumerate(args)]
    candidates += [(f"argument {key!r}", value) for key, value in kwargs.items()]
    candidates += captured(fn)
    for label, value in candidates:
        if (reason := unpicklable(value)) is not None:
            return (
                f"{name} cannot be sent to the ranks: {label} is a {type(value).__name__}, which cannot "
                f"be copied to another process ({reason}). {advice}"
            )
    return f"{name} cannot be sent to the ranks: {error}. {advice}"


def captured(fn: Callable) -> list[tuple[str, Any]]:
    """Globals and closure variables that a function uses, with a label for each."""
    try:
        variables = inspect.getclosurevars(fn)
    except (TypeError, ValueError):  # a builtin or a callable object
        return []
    found = [
        (f"the global variable {key!r} that it uses", value)
        for key, value in variables.globals.items()
    ]
    found += [
        (f"the captured variable {key!r}", value) for key, value in variables.nonlocals.items()
    ]
    return found


def unpicklable(value: Any) -> str | None:
    """The reason why a value cannot be pickled, or None when it can."""
    try:
        wire.dumps(value)
    except Exception as error:
        return str(error) or type(error).__name__
    return None
