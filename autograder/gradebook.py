"""nbgrader's gradebook: enter assignments, clear what is old, read the totals."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nbgrader.api import Gradebook, MissingEntry

from autograder.config import COURSE_ID
from autograder.release import generate
from autograder.twin import grade_id, read_twin


class ClassBook:
    """The gradebook `out/gradebook.db`, with the student versions that belong to it beside it."""

    def __init__(self, out: Path, solutions: Path) -> None:
        self.out, self.solutions = out, solutions
        self.file = out / "gradebook.db"
        self.released = out / "release"
        out.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def open(self) -> Iterator[Any]:
        """nbgrader's Gradebook, whose rows are typed as columns and not as values."""
        with Gradebook(f"sqlite:///{self.file}", COURSE_ID) as book:
            yield book

    def register(self, assignments: Iterable[str]) -> str:
        """Enter the assignments as they are now. Returns a sentence when the book was begun anew.

        nbgrader cannot change the exercises of an assignment that has submissions: the old book is
        kept under another name then.
        """
        note = ""
        names = list(assignments)
        if self.file.exists() and any(self._exercises_changed(name) for name in names):
            kept = self.file.with_name(f"gradebook-until-{time.strftime('%Y%m%d-%H%M%S')}.db")
            self.file.rename(kept)
            note = f"The exercises have changed: a new gradebook is begun, the old one is {kept}."
        for name in names:
            generate(name, self.released, solutions=self.solutions, gradebook=True)
        return note

    def _exercises_changed(self, assignment: str) -> bool:
        twin = read_twin(self.solutions / assignment / f"{assignment}.py")
        now = {name for cell in twin.cells if (name := grade_id(cell)) is not None}
        with self.open() as book:
            try:
                notebook = book.find_notebook(assignment, assignment)
            except MissingEntry:
                return False
            then = {cell.name for cell in notebook.source_cells}
            return bool(notebook.submissions) and then != now

    def forget(self, students: Iterable[str]) -> None:
        """Remove these students and all their grades, where the book has them."""
        with self.open() as book:
            known = {student.id for student in book.students}
            for student in known & set(students):
                book.remove_student(student)

    def clear(self, student: str, assignment: str, score: float | None = None) -> None:
        """Set every automatic score of this submission to `score`; None: not graded (yet).

        So an old score never outlives a grading that failed. Manual scores stay.
        """
        with self.open() as book:
            book.update_or_create_student(student)
            submission = book.update_or_create_submission(assignment, student)
            for grade in _grades(submission):
                grade.auto_score = score
                grade.needs_manual_grade = score is None
            book.db.commit()

    def total(self, student: str, assignment: str) -> tuple[float, float]:
        """(score, maximum) of a submission, manual scores and late penalties included."""
        with self.open() as book:
            submission = book.find_submission(assignment, student)
            score = submission.score - submission.late_submission_penalty
            return max(0.0, score), submission.max_score

    def maximum(self, assignment: str) -> float:
        with self.open() as book:
            return book.find_assignment(assignment).max_score


def _grades(submission: Any) -> Iterator[Any]:
    """The grades of a SubmittedAssignment; its columns are typed as columns, not as values."""
    for notebook in submission.notebooks:
        yield from notebook.grades
