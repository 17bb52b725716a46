"""The entries of people in the gradebook, counted. They cannot be made again from the submissions."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import astuple, dataclass
from pathlib import Path

from autograder.book.standing import added, due_dates, extensions, named_students, standings
from autograder.book.store import Store
from autograder.outcome.result import Result


@dataclass(frozen=True)
class Typed:
    """scores, extras: exercises that have a person's points or extra credit. people: named students.

    extensions, due_dates: how many; an extension is for one student and one assignment.
    """

    scores: int = 0
    extras: int = 0
    comments: int = 0
    people: int = 0
    extensions: int = 0
    due_dates: int = 0

    def __bool__(self) -> bool:
        return any(astuple(self))

    def __str__(self) -> str:
        """ "1 score, extra credit for 2 exercises and 1 comment that people entered in the gradebook"."""
        parts = [
            counted(self.scores, "score") if self.scores else "",
            f"extra credit for {counted(self.extras, 'exercise')}" if self.extras else "",
            counted(self.comments, "comment") if self.comments else "",
            f"names or addresses of {counted(self.people, 'student')}" if self.people else "",
            counted(self.extensions, "extension") if self.extensions else "",
            counted(self.due_dates, "due date") if self.due_dates else "",
        ]
        *some, last = [part for part in parts if part] or ["nothing"]
        return f"{', '.join(some)}{' and ' * bool(some)}{last} that people entered in the gradebook"


def typed(
    out: Path,
    assignments: Collection[str],
    students: Collection[str] | None = None,
    names_too: bool = True,
) -> Typed:
    """Count the entries for these students (None: all, and due dates). names_too: also names and addresses.

    The checks' own extra credit stands in the field that a person may change. It counts if it differs from
    the stored result.
    """
    store, book = Store(out), out / "gradebook.db"
    scores = extras = comments = 0
    for assignment in assignments:
        for student, standing in standings(book, assignment).items():
            if students is not None and student not in students:
                continue
            result = store.find(assignment, student) or Result(student, assignment, "")
            for cell in added(result, standing).values():
                scores += cell.points is not None
                comments += bool(cell.comment)
            extras += sum(
                cell.extra != earned(result, name) for name, cell in standing.by_hand.items()
            )
    named = named_students(book) if names_too else []
    people = sum(students is None or student in students for student in named)
    later = sum(
        students is None or student in students for student in extensions(book, assignments)
    )
    due = len(due_dates(book, assignments)) if students is None else 0
    return Typed(scores, extras, comments, people, later, due)


def earned(result: Result, grade_id: str) -> float:
    """The extra credit that the checks gave in a cell."""
    return sum(
        exercise.points
        for exercise in result.exercises
        if exercise.grade_id == grade_id and exercise.extra
    )


def counted(amount: int, noun: str) -> str:
    """ "1 score", "2 scores". `course_lib.checks.words` has it, too, but its import starts a process."""
    return f"{amount:,} {noun}{'s' * (amount != 1)}"
