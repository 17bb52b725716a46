"""A judge never fails: an answer that it cannot read is wrong, and the grader is told."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from course_lib.checks.judge import case

T = TypeVar("T")
UNREADABLE = case.wrong(
    "The answer could not be judged, because the check itself failed on it.",
    "Look for a value that is far from every right one, such as nan, infinity or 5e-324.",
    cause="unreadable",
)


def guarded(failures: list[str], otherwise: T, look: Callable[..., T], *arguments: Any) -> T:
    """look(*arguments); if it raises, `otherwise`, and what Python said is added to `failures`.

    A rank can send whatever the form of its reply allows. A mistake in reading it costs one line, and neither
    the other lines nor the submission.
    """
    try:
        return look(*arguments)
    except Exception:
        if not case.hints_may_fail:
            raise
        failures.append(traceback.format_exc())
        return otherwise
