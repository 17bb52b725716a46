"""The statuses of a submission, in one word or two each. The reason beside a status is a sentence."""

from __future__ import annotations

from collections.abc import Iterable

GRADED = "graded"  # every cell ran to its end; the score may be anything
BLANK = "blank"  # every exercise is as it was handed out, and no points were earned
# A limit costs only the exercises that it hit: the others keep their points.
KERNEL_DIED = "kernel died"  # the notebook's process ended
OUT_OF_MEMORY = "out of memory"
TIMED_OUT = "timed out"  # a cell, a check or the submission reached its limit
TOO_MANY_PROCESSES = "too many processes"  # or threads
TOO_MANY_FILES = "too many files"  # open at a time
DISK_FULL = "disk full"
TOO_MUCH_OUTPUT = "too much output"  # the output beyond the limit was left out
UNREADABLE = "unreadable"  # the file that was handed in is not a notebook: 0 points
MISSING = "missing"  # the assignment's folder holds no notebook of its name: 0 points
UNGRADED = "ungraded"  # the grading itself failed: no score

LIMITS = (
    KERNEL_DIED, OUT_OF_MEMORY, TIMED_OUT, TOO_MANY_PROCESSES, TOO_MANY_FILES, DISK_FULL, TOO_MUCH_OUTPUT,
)  # fmt: skip
USED_UP = {  # by the names in the runtime and the judge
    "memory": OUT_OF_MEMORY, "disk": DISK_FULL, "processes": TOO_MANY_PROCESSES, "files": TOO_MANY_FILES,
}  # fmt: skip
PRECEDENCE = (*LIMITS, BLANK, GRADED)


def worst(statuses: Iterable[str]) -> str:
    """The one of `statuses`, all from PRECEDENCE, that a submission gets; GRADED without any."""
    return min(statuses, key=PRECEDENCE.index, default=GRADED)
