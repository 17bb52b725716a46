"""Results in words, the same on every page."""

from __future__ import annotations

import re

from autograder.outcome import statuses
from autograder.outcome.result import Exercise, Result

SAID = {
    statuses.GRADED: "",
    statuses.BLANK: "Nothing was written into any exercise.",
    statuses.TIMED_OUT: "A time limit was reached. Exercises finished in time keep their points. In each "
    "cell or exercise named here, look for a loop that does not end, for a rank that waits for another, or "
    "for work that can be made smaller.",
    statuses.KERNEL_DIED: "A cell ended the notebook's process. Exercises that do not depend on it "
    "keep their points.",
    statuses.OUT_OF_MEMORY: "The memory limit was reached. The other exercises keep their points.",
    statuses.TOO_MANY_PROCESSES: "Too many processes were started. The other exercises keep their points.",
    statuses.TOO_MANY_FILES: "Too many files were open at a time. The other exercises keep their points.",
    statuses.DISK_FULL: "The limit on file space was reached. The other exercises keep their points.",
    statuses.TOO_MUCH_OUTPUT: "A cell printed more than is kept. The beginning and the end are shown.",
    statuses.UNREADABLE: "The file that was handed in could not be read as a notebook.",
    statuses.MISSING: "No notebook of the right name was handed in.",
    statuses.UNGRADED: "The grading itself failed: there is no score yet, and it is not your fault.",
}
FINE = (statuses.GRADED,)
WITHOUT_NOTEBOOK = (statuses.UNREADABLE, statuses.MISSING, statuses.UNGRADED)


def about(name: str, said: str) -> str:
    """ "ring_shift: some ranks hold a wrong tensor"; `said` alone if it begins with the name itself."""
    return said if re.match(rf"`?{re.escape(name)}(?!\w)", said) else f"{name}: {said}"


def shown(points: float | None) -> str:
    """12.0 -> "12"; 4.25 -> "4.25"; None, of a submission without a grade, -> "-"."""
    return "-" if points is None else f"{points:.2f}".rstrip("0").rstrip(".")


def tone(status: str) -> str:
    """How a status is coloured: "good", "warn" or "bad"."""
    if status in FINE:
        return "good"
    return "warn" if status in (statuses.BLANK, statuses.UNGRADED, statuses.MISSING) else "bad"


def title(exercise: Exercise) -> str:
    """ "02_collectives/ring_all_reduce" -> "ring_all_reduce"; without a name, the cell's."""
    return (exercise.name.rpartition("/")[2] or exercise.grade_id).removesuffix("_check")


def earned(exercise: Exercise, points: float | None = None) -> str:
    """ "2.5 of 4"; "extra credit: 3.5 of 4", or that it was left alone. points: by default the check's."""
    points = exercise.points if points is None else points
    if not exercise.attempted and not points:
        return f"extra credit, {shown(exercise.maximum)} points: not attempted"
    said = f"{shown(points)} of {shown(exercise.maximum)}"
    return f"extra credit: {said}" if exercise.extra else said


def score(result: Result) -> float | None:
    """The points of the checks; None without a grade."""
    return None if result.status == statuses.UNGRADED else result.score


def maximum(result: Result) -> float:
    """The points that the checks could give without extra credit; 0 if nothing could be read."""
    return sum(exercise.maximum for exercise in result.exercises if not exercise.extra)
