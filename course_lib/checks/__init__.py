"""`check`: judge an exercise, print the table of its cases, return a report."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from course_lib.checks.report import Report

__all__ = ["Report", "check"]

# Of each exercise, the last report on its visible cases in this process. A check with a seed is left out,
# since it repeats inputs to look at something, as a *Break it* does with a broken version.
latest: dict[str, Report] = {}


def check(name: str, *objects: Any, seed: int | None = None, cases: str = "visible") -> Report:
    """Judge `objects` as the exercise `name`, such as check("02_collectives/all_gather", all_gather).

    An exercise may be several objects, in the order that the notebook gives. Prints one line for each case
    and, below a failing one, what was seen and what usually causes it.

    seed: draws the same inputs again, and leaves the points in the notebook's last cell as they are; without
    one, inputs are fresh. cases: "visible", or "hidden" (fresh values and more cases, for graded cells).
    Returns a Report: `.score` in 0..1, `.points(12)`. Never raises for what the objects do, and writes
    nothing to stderr. Ctrl-C leaves one line, and where each rank was.
    """
    from course_lib.checks import beneath, outdated
    from course_lib.checks.client import submit
    from course_lib.runtime.errors import Interrupted
    from course_lib.runtime.interrupts import never_lost

    counts = cases == "visible" and seed is None
    try:
        with never_lost():
            report = submit(name, objects, secrets.randbelow(1 << 31) if seed is None else int(seed), cases)
    except KeyboardInterrupt as interrupt:
        _, *ranks = str(interrupt).splitlines() if isinstance(interrupt, Interrupted) else [""]
        said = [f"the check of {name} was interrupted; run it again.", *ranks]
        raise Interrupted("\n".join(said)) from None
    lines = [report.shown(), *outdated.remarks(objects)]
    if counts:
        latest[name] = report
        lines += beneath.remarks(report, objects, latest)
    print("\n".join(lines))
    return report


def __getattr__(name: str) -> Any:
    if name == "Report":  # the ranks import this package too and need none of it
        from course_lib.checks.report import Report

        return Report
    raise AttributeError(f"module 'course_lib.checks' has no attribute {name!r}")
