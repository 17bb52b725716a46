"""Results entered into nbgrader's gradebook, and the penalties of its plugin for work that came late.

The book is derived from the results, and never the other way round. One process writes, in one
transaction for each result, so that the book holds a grade whole or not at all; entering the same result
again changes nothing. Scores, comments, extra credit and extensions that a person entered stay. Extra
credit for an exercise is the only field that both write: see `Entries.enter`. The tables are read by
their columns: nbgrader's objects compute every sum over the class when one of them is loaded, and a
class of 500 would pay for that 500 times.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from nbgrader.api import Comment, Grade, MissingEntry, SubmittedAssignment, SubmittedNotebook
from nbgrader.plugins import LateSubmissionPlugin
from nbgrader.preprocessors import AssignLatePenalties
from nbgrader.utils import parse_utc
from sqlalchemy import select, update
from traitlets.config import Config

from autograder.book.extra_credit import ExtraCredit
from autograder.book.misspelt import refuse_misspelt
from autograder.book.standing import ByHand, Standing
from autograder.course.config import SettingsError
from autograder.outcome import statuses
from autograder.outcome.result import Result

NO_RESPONSE = "No response."  # nbgrader's own comment on an exercise that was left as it was
NOTHING_READ = (statuses.UNREADABLE, statuses.MISSING)

GRADE, COMMENT = Grade.__table__, Comment.__table__
SUBMISSION, SUBMITTED = SubmittedAssignment.__table__, SubmittedNotebook.__table__


@dataclass(frozen=True)
class Total:
    """A submission's points in the book, the points taken off for being late, and the maximum.

    points: with extra credit, so they may exceed the maximum.
    """

    points: float
    penalty: float
    maximum: float

    @property
    def score(self) -> float:
        return max(0.0, self.points - self.penalty)


@dataclass(frozen=True)
class Cells:
    """An assignment as the book has it: ids and names of its cells."""

    assignment: str
    notebook: str
    duedate: datetime | None
    graded: dict[str, str]  # id -> grade_id
    maximum: dict[str, float]  # id -> points
    answers: dict[str, str]  # id -> grade_id of the cells that a student writes

    def bonus(self) -> list[str]:
        """grade_ids of the exercises that are extra credit: their checks have no points of their own."""
        return [
            name
            for cell, name in self.graded.items()
            if not self.maximum[cell] and not self.by_hand(cell)
        ]

    def by_hand(self, cell: str) -> bool:
        """Whether a person grades this cell: it is itself an answer, and not the check of one."""
        return cell in self.answers or self.graded[cell] in self.answers.values()


class Entries:
    """Writes results into an open gradebook (`ClassBook.open`). One at a time, by one process.

    SettingsError if a setting of the configuration cannot be used.
    """

    def __init__(self, book: Any, config: Config | None = None) -> None:
        self.book, self.db = book, book.db
        self._cells: dict[str, Cells] = {}
        try:
            refuse_misspelt(config or Config())
            # nbgrader's own step and its plugin, as the course's configuration has them
            step = AssignLatePenalties(config=config or Config())
            step.init_plugin()
            self.lateness: Any = step.plugin_inst
            self.extra = ExtraCredit(config=config or Config())
        except Exception as error:  # a wrong value, or a plugin that cannot be loaded
            raise SettingsError(error) from error

    def enter(
        self,
        result: Result,
        *,
        stamp: str | None = None,
        untouched: Collection[str] | None = None,
        fresh: bool = True,
    ) -> Total:
        """Write `result` into the book, and return the submission's total.

        stamp: the time of submission as nbgrader writes it, "" if unknown; None leaves the book's stamp.
        untouched: grade_ids of exercises that are as they were handed out; None leaves the comments as
        they are. An ungraded result clears the automatic scores. MissingEntry if the book does not know
        the assignment. fresh: the submission was graded just now, so the extra credit that it earned
        replaces the number beside the exercise; otherwise a person's number stays.
        """
        cells = self.cells(result.assignment)
        submission, notebook = self._submitted(result.student, result.assignment, cells)
        wanted = _automatic(result, cells, untouched or ())
        extra = {}
        if fresh or not self.holds(result):
            extra = dict.fromkeys(cells.bonus()) | self.extra.earned(result)
        try:
            if stamp is not None:
                self._set_stamp(submission, parse_utc(stamp) if stamp else None)
            self._set_scores(notebook, wanted)
            self._set_extra_credit(notebook, cells, extra)
            if untouched is not None:
                self._set_comments(notebook, cells, untouched)
            total = self._set_penalty(result.student, submission, notebook, cells)
            self.db.commit()
        except BaseException:  # also Ctrl-C: nothing half-written stays in the session
            self.db.rollback()
            raise
        return total

    def clear(self, submissions: Iterable[tuple[str, str]]) -> None:
        """Remove the automatic scores of these (student, assignment) pairs from the book, all at once.

        So the book shows no old score while they are graded again. Pairs that it does not have are
        skipped.
        """
        try:
            for student, assignment in submissions:
                cells = self.cells(assignment)
                if (cell := self._find(student, cells)) is not None:
                    self._set_scores(cell[1], dict.fromkeys(cells.graded))
                    self._set_extra_credit(cell[1], cells, dict.fromkeys(cells.bonus()))
                    self._set_penalty(student, *cell, cells)
            self.db.commit()
        except BaseException:  # as above
            self.db.rollback()
            raise

    def settle(self, assignment: str) -> None:
        """Write the penalties as they are due now, after points by hand, a due date or a setting changed."""
        cells = self.cells(assignment)
        penalised = SUBMITTED.c.late_submission_penalty.is_not(None)
        if cells.duedate is not None:
            penalised |= SUBMISSION.c.timestamp.is_not(None)
        rows = self.db.execute(
            select(SUBMISSION.c.student_id, SUBMISSION.c.id, SUBMITTED.c.id)
            .join(SUBMITTED, SUBMITTED.c.assignment_id == SUBMISSION.c.id)
            .where(SUBMITTED.c.notebook_id == cells.notebook)
            .where(penalised)
        )
        try:
            for student, submission, notebook in rows.all():
                self._set_penalty(student, submission, notebook, cells)
            self.db.commit()
        except BaseException:  # as above
            self.db.rollback()
            raise

    def holds(self, result: Result) -> bool:
        """Whether the book has this result's automatic scores, neither older ones nor none."""
        cells = self.cells(result.assignment)
        if (cell := self._find(result.student, cells)) is None:
            return False
        wanted = _automatic(result, cells, ())
        return all(
            grade.auto_score == wanted[grade.cell_id] or cells.by_hand(grade.cell_id)
            for grade in self._grades(cell[1], cells.graded)
        )

    def has(self, student: str, assignment: str) -> bool:
        """Whether the book has this student's submission."""
        return self._find(student, self.cells(assignment)) is not None

    def penalises(self, assignment: str) -> bool:
        """Whether late work on the assignment loses points, since it has a due date and a penalty is set."""
        of_the_course = type(self.lateness) is not LateSubmissionPlugin
        penalty = of_the_course or self.lateness.penalty_method != "none"
        return penalty and self.cells(assignment).duedate is not None

    def total(self, student: str, assignment: str) -> Total:
        """The submission's total after manual scores and penalties. MissingEntry if the book has none."""
        cells = self.cells(assignment)
        cell = self._find(student, cells)
        if cell is None:
            raise MissingEntry(f"no submission of {assignment} by {student}")
        return self._total(cell[1], cells, self._penalty(cell[1]))

    def standing(self, student: str, assignment: str) -> Standing:
        """A person's points for the submission, without the comments, its penalty, and if it has no time."""
        cells = self.cells(assignment)
        cell = self._find(student, cells)
        grades = self._grades(cell[1], cells.graded) if cell is not None else []
        return Standing(
            {
                cells.graded[row.cell_id]: ByHand(
                    row.manual_score, cells.maximum[row.cell_id], "", row.extra_credit or 0.0
                )
                for row in grades
                if row.manual_score is not None or row.extra_credit
            },
            0.0 if cell is None else self._penalty(cell[1]),
            cells.duedate is not None and cell is not None and self._stamp(cell[0]) is None,
        )

    def maximum(self, assignment: str) -> float:
        return sum(self.cells(assignment).maximum.values())

    # ---- reading the book

    def cells(self, assignment: str) -> Cells:
        """The assignment's cells, read once. Raises MissingEntry."""
        if assignment not in self._cells:
            entry: Any = self.book.find_assignment(assignment)
            notebook: Any = self.book.find_notebook(assignment, assignment)
            graded = [*notebook.grade_cells, *notebook.task_cells]
            self._cells[assignment] = Cells(
                entry.id,
                notebook.id,
                entry.duedate,
                {cell.id: cell.name for cell in graded},
                {cell.id: cell.max_score for cell in graded},
                {cell.id: cell.name for cell in [*notebook.solution_cells, *notebook.task_cells]},
            )
        return self._cells[assignment]

    def _find(self, student: str, cells: Cells) -> tuple[str, str] | None:
        """(id of the submission, id of its notebook) if the book has them."""
        row = self.db.execute(
            select(SUBMISSION.c.id, SUBMITTED.c.id)
            .join(SUBMITTED, SUBMITTED.c.assignment_id == SUBMISSION.c.id)
            .where(SUBMISSION.c.assignment_id == cells.assignment)
            .where(SUBMISSION.c.student_id == student)
            .where(SUBMITTED.c.notebook_id == cells.notebook)
        ).first()
        return None if row is None else (row[0], row[1])

    def _submitted(self, student: str, assignment: str, cells: Cells) -> tuple[str, str]:
        """`_find`, after nbgrader has made an empty submission where there was none."""
        if self._find(student, cells) is None:
            self.book.update_or_create_student(student)
            self.book.update_or_create_submission(assignment, student)
        cell = self._find(student, cells)
        if cell is None:
            raise MissingEntry(f"the gradebook's submission of {assignment} has no notebook")
        return cell

    def _grades(self, notebook: str, cells: Iterable[str]) -> list[Any]:
        # The index of this table begins with the cell: without it, every row of the class is read.
        query = select(GRADE).where(GRADE.c.cell_id.in_(list(cells)))
        return list(self.db.execute(query.where(GRADE.c.notebook_id == notebook)))

    def _stamp(self, submission: str) -> datetime | None:
        row = select(SUBMISSION.c.timestamp).where(SUBMISSION.c.id == submission)
        return self.db.execute(row).scalar()

    def _penalty(self, notebook: str) -> float:
        row = select(SUBMITTED.c.late_submission_penalty).where(SUBMITTED.c.id == notebook)
        return self.db.execute(row).scalar() or 0.0

    def _total(self, notebook: str, cells: Cells, penalty: float) -> Total:
        points = sum(map(_points, self._grades(notebook, cells.graded)))
        return Total(points, penalty, sum(cells.maximum.values()))

    # ---- writing the book; a value that is right already is not written again

    def _set_stamp(self, submission: str, stamp: datetime | None) -> None:
        if self._stamp(submission) != stamp:
            change = update(SUBMISSION).where(SUBMISSION.c.id == submission)
            self.db.execute(change.values(timestamp=stamp))

    def _set_scores(self, notebook: str, wanted: dict[str, float | None]) -> None:
        for grade in self._grades(notebook, wanted):
            score = wanted[grade.cell_id]
            if grade.auto_score != score:
                look_again = grade.manual_score is not None or score is None
                change = update(GRADE).where(GRADE.c.id == grade.id)
                self.db.execute(change.values(auto_score=score, needs_manual_grade=look_again))

    def _set_extra_credit(
        self, notebook: str, cells: Cells, wanted: Mapping[str, float | None]
    ) -> None:
        for grade in self._grades(notebook, cells.graded):
            name = cells.graded[grade.cell_id]
            if name in wanted and grade.extra_credit != wanted[name]:
                change = update(GRADE).where(GRADE.c.id == grade.id)
                self.db.execute(change.values(extra_credit=wanted[name]))

    def _set_comments(self, notebook: str, cells: Cells, untouched: Collection[str]) -> None:
        query = select(COMMENT).where(COMMENT.c.cell_id.in_(list(cells.answers)))
        for comment in self.db.execute(query.where(COMMENT.c.notebook_id == notebook)).all():
            text = NO_RESPONSE if cells.answers[comment.cell_id] in untouched else None
            if comment.auto_comment != text:
                change = update(COMMENT).where(COMMENT.c.id == comment.id)
                self.db.execute(change.values(auto_comment=text))

    def _set_penalty(self, student: str, submission: str, notebook: str, cells: Cells) -> Total:
        """Write the penalty of nbgrader's plugin for being late, at most the points that there are."""
        query = select(SUBMISSION.c.timestamp, SUBMISSION.c.extension)
        times = self.db.execute(query.where(SUBMISSION.c.id == submission)).one()
        total = self._total(notebook, cells, 0.0)
        late = _seconds_late(times.timestamp, cells.duedate, times.extension)
        penalty = None
        if late > 0:
            asked = self.lateness.late_submission_penalty(student, total.points, late)
            penalty = None if asked is None else min(max(0.0, asked), max(0.0, total.points))
        now = select(SUBMITTED.c.late_submission_penalty).where(SUBMITTED.c.id == notebook)
        if self.db.execute(now).scalar() != penalty:
            change = update(SUBMITTED).where(SUBMITTED.c.id == notebook)
            self.db.execute(change.values(late_submission_penalty=penalty))
        return Total(total.points, penalty or 0.0, total.maximum)


def _automatic(result: Result, cells: Cells, untouched: Collection[str]) -> dict[str, float | None]:
    """The automatic score of every graded cell, by its id; None without one."""
    if result.status == statuses.UNGRADED:
        return dict.fromkeys(cells.graded)
    points = {
        exercise.grade_id: exercise.points for exercise in result.exercises if not exercise.extra
    }
    return {
        cell: _one(
            points.get(name), cells, cell, result.status in NOTHING_READ or name in untouched
        )
        for cell, name in cells.graded.items()
    }


def _one(points: float | None, cells: Cells, cell: str, nothing: bool) -> float | None:
    """nothing: there is nothing to grade, so a person need not look either."""
    if cells.by_hand(cell):
        return 0.0 if nothing else None
    if points is None or not math.isfinite(points):
        return 0.0
    return min(max(0.0, points), cells.maximum[cell])


def _points(grade: Any) -> float:
    """A cell's points by nbgrader's rule: a person's score before the automatic one, and extras."""
    scores = (grade.manual_score, grade.auto_score)
    first = next((score for score in scores if score is not None), None)
    return 0.0 if first is None else first + (grade.extra_credit or 0.0)


def _seconds_late(stamp: datetime | None, due: datetime | None, extension: Any) -> float:
    if stamp is None or due is None:
        return 0.0
    return (stamp - due - extension if extension is not None else stamp - due).total_seconds()
