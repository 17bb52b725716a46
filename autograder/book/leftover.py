"""Grades of earlier runs whose work is no longer in the class's folder.

A class may be graded folder by folder into one place, so such a grade stays and counts. But it may also be
left over, since the work was moved to another student's folder: then two students have the one grade. The
grader cannot tell which of the two it is, so it says what there is, and a person decides.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections import defaultdict
from collections.abc import Collection, Iterable
from pathlib import Path

from autograder.book.store import Store
from autograder.book.table import spelled
from autograder.outcome import statuses
from autograder.outcome.result import Result

Key = tuple[str, str]  # student, assignment
CURE = (
    "If work was moved from one student's folder to another, `python -m autograder forget NAME` removes the "
    "grade under the old name."
)
SHOWN = 20  # names in a sentence
WITHOUT_WORK = (statuses.BLANK, statuses.MISSING, statuses.UNREADABLE, statuses.UNGRADED)


def left_over(store: Store, submissions: Collection[Key]) -> list[Key]:
    """The grades of students who handed in nothing of an assignment that others handed in."""
    assignments = {assignment for _, assignment in submissions}
    stored = (
        (path.stem, assignment)
        for assignment in sorted(assignments)
        for path in (store.folder / assignment).glob("*.json")
        if not path.name.startswith(".")
    )
    return sorted(set(stored) - set(submissions))


def of_earlier_runs(results: Iterable[Result], table: Path) -> list[Key]:
    """The grades that are not in `grades.csv`, which holds the last run; none if it cannot tell."""
    if not table.is_file():
        return []
    text = table.read_text(encoding="utf-8", errors="replace")
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    # a spreadsheet may have saved it with other signs between the columns
    if not rows or not {"student", "assignment"} <= rows[0].keys():
        return []
    last = {(spelled(row["student"]), row["assignment"]) for row in rows}
    return sorted({(result.student, result.assignment) for result in results} - last)


def said(keys: Iterable[Key], rest: str) -> list[str]:
    """ "ann and bob have a grade in 00_first_ranks" and `rest`: one sentence for those alike."""
    of_student: dict[str, list[str]] = defaultdict(list)
    for student, assignment in keys:
        of_student[student].append(assignment)
    alike: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for student, assignments in of_student.items():
        alike[tuple(assignments)].append(student)
    return [
        f"{in_words(students)} {'has' if len(students) == 1 else 'have'} "
        f"{'a grade' if len(assignments) == 1 else 'grades'} in {in_words(assignments)} {rest}"
        for assignments, students in alike.items()
    ]


def same_notebooks(out: Path, results: Iterable[Result]) -> list[str]:
    """Sentences on students of whose notebooks every byte is the same. Untouched ones do not count."""
    alike: dict[tuple[str, str], list[str]] = defaultdict(list)
    for result in results:
        name = result.assignment
        path = out / "submitted" / result.student / name / f"{name}.ipynb"
        if result.status not in WITHOUT_WORK and path.is_file():
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            alike[name, digest].append(result.student)
    return [
        f"{in_words(sorted(students))} handed in the same notebook in {name}, byte for byte, and each of "
        f"them has a grade for it. {CURE}"
        for (name, _), students in sorted(alike.items())
        if len(students) > 1
    ]


def in_words(names: Iterable[str]) -> str:
    """ "a", "a and b", "a, b and c", and at most so many."""
    *some, last = list(names)
    if len(some) >= SHOWN:
        some, last = some[:SHOWN], f"{len(some) + 1 - SHOWN} more"
    return f"{', '.join(some)} and {last}" if some else last
