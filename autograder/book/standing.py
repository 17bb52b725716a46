"""Points, extras and comments that a person added to an assignment's results in formgrader.

They are read from nbgrader's gradebook, for a whole assignment at once and without writing to it. The
automatic scores are not taken from there: the results are the truth.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nbgrader.api import (
    Assignment,
    BaseCell,
    Comment,
    Grade,
    GradeCell,
    Student,
    SubmittedAssignment,
    SubmittedNotebook,
    TaskCell,
)
from sqlalchemy import create_engine, select

from autograder.outcome import statuses, wording
from autograder.outcome.result import BY_HAND, Exercise, Result

UNTIMED = "No time stamp says whether it was late."
NOTHING_HANDED_IN = (statuses.MISSING, statuses.UNGRADED)


@dataclass(frozen=True)
class ByHand:
    """A person's grade of one cell: points of a maximum (None: only a comment), extras, a comment.

    If the exercise is extra credit, `extra` is the number of its points that count: the checks' points,
    unless the course limits extra credit or a person wrote another number there.
    """

    points: float | None
    maximum: float
    comment: str = ""
    extra: float = 0.0


@dataclass(frozen=True)
class Standing:
    """One submission: grades by hand, by `grade_id`, and the points taken off for being late.

    untimed: the assignment has a due date, but no time stamp says when the submission was handed in.
    """

    by_hand: dict[str, ByHand] = field(default_factory=dict)
    penalty: float = 0.0
    untimed: bool = False

    def points(self, exercise: Exercise) -> float:
        """An exercise's points: a person's before the automatic ones, and extras."""
        own = self.by_hand.get(exercise.grade_id)
        if own is None:
            return exercise.points
        automatic = 0.0 if exercise.extra else exercise.points
        return (automatic if own.points is None else own.points) + own.extra

    def own(self, exercise: Exercise) -> ByHand | None:
        """A person's grade of an exercise, with the comments on its check and on its code; None without one.

        formgrader has a field for points below the check, and a field for a comment below the code.
        """
        grade = self.by_hand.get(exercise.grade_id)
        code = self.by_hand.get(answer_of(exercise))
        if code is None or code is grade or code.points is not None:
            return grade
        grade = grade or ByHand(None, 0.0, "", exercise.points if exercise.extra else 0.0)
        comments = [comment for comment in (grade.comment, code.comment) if comment]
        return replace(grade, comment="\n".join(comments))

    def earned(self, exercise: Exercise) -> str:
        """ "3 of 8, by hand"; the words of `wording.earned` for the checks' points."""
        own, points = self.by_hand.get(exercise.grade_id), self.points(exercise)
        if own is None or (points == exercise.points and own.points is None):
            return wording.earned(exercise)
        if exercise.extra and exercise.attempted:
            return f"{wording.earned(exercise)}, of which {wording.shown(points)} count"
        if exercise.extra:
            return f"{wording.earned(exercise, points)} count"
        said = wording.earned(exercise, points - own.extra)
        return f"{said}{f', and {wording.shown(own.extra)} extra' if own.extra else ''}, by hand"

    def changes(self, exercise: Exercise) -> bool:
        """Whether a person added something to the checks' grade of an exercise."""
        own = self.by_hand.get(exercise.grade_id)
        return own is not None and (
            bool(own.comment) or not exercise.extra or own != ByHand(None, 0.0, "", exercise.points)
        )


def final_score(result: Result, standing: Standing | None = None) -> float | None:
    """The points that count; None without a grade."""
    if result.status == statuses.UNGRADED:
        return None
    standing = standing or Standing()
    known = {exercise.grade_id for exercise in result.exercises}
    others = [Exercise(name, name, 0.0, 0.0) for name in standing.by_hand if name not in known]
    total = sum(standing.points(exercise) for exercise in [*result.exercises, *others])
    return max(0.0, total - standing.penalty)


def answer_of(exercise: Exercise) -> str:
    """The `grade_id` of the cell in which the student writes what this exercise's cell checks."""
    return exercise.grade_id.removesuffix("_check")


def reason(result: Result, standing: Standing) -> str:
    """Why points are missing: a penalty, and the first exercise that lost points after a person's points.

    Also that it is not known whether a penalty is due.
    """
    said = _lost(result, standing)
    late = (
        f"{wording.shown(standing.penalty)} taken off for being late." if standing.penalty else ""
    )
    late = UNTIMED if has_no_time(result, standing) else late
    return f"{late} {said}".strip()


def has_no_time(result: Result, standing: Standing) -> bool:
    """Whether a submission is due at a time, and does not say when it was handed in."""
    return standing.untimed and result.status not in NOTHING_HANDED_IN


def _lost(result: Result, standing: Standing) -> str:
    graded_by_hand = any(
        own.points is not None or own.extra
        for exercise in result.exercises
        if (own := standing.by_hand.get(exercise.grade_id)) is not None and not exercise.extra
    )
    if result.status != statuses.GRADED or not graded_by_hand:
        return result.reason
    for exercise in result.exercises:
        own = standing.by_hand.get(exercise.grade_id)
        by_hand = own is not None and own.points is not None
        waits = exercise.reason == BY_HAND and not by_hand
        if exercise.extra or waits or standing.points(exercise) >= exercise.maximum:
            continue
        said = standing.earned(exercise) if by_hand else exercise.reason
        return wording.about(exercise.name, said)
    return ""


def others(result: Result, standing: Standing) -> dict[str, ByHand]:
    """By grade_id, a person's grades of cells that belong to none of the result's exercises."""
    known = {exercise.grade_id for exercise in result.exercises}
    codes = {answer_of(exercise) for exercise in result.exercises}
    return {
        name: own
        for name, own in standing.by_hand.items()
        if name not in known and (name not in codes or own.points is not None)
    }


def added(result: Result, standing: Standing) -> dict[str, ByHand]:
    """By grade_id, the grades by hand that add something to the checks' grades."""
    known = {exercise.grade_id: exercise for exercise in result.exercises}
    return {
        name: own
        for name, own in standing.by_hand.items()
        if name not in known or standing.changes(known[name])
    }


def final_maximum(result: Result, standing: Standing | None = None) -> float:
    """The points that could be earned, as far as the result and the gradebook know."""
    known = {exercise.grade_id for exercise in result.exercises}
    more = standing.by_hand.items() if standing else ()
    return wording.maximum(result) + sum(
        by_hand.maximum for name, by_hand in more if name not in known
    )


def notebook_ids(gradebook: Path, assignment: str) -> dict[str, str]:
    """By student, the name under which formgrader shows the notebook; empty without a gradebook."""
    if not gradebook.is_file():
        return {}
    engine = create_engine(f"sqlite:///file:{gradebook}?mode=ro&uri=true")
    with engine.connect() as connection:
        book: Any = connection
        rows = book.execute(_of(assignment, NOTEBOOK.c.id))
        of_cell = {row[0]: row[1] for row in rows}
    engine.dispose()
    return of_cell


def named_students(gradebook: Path) -> list[str]:
    """The students for whom a person entered a name, an address or an id; none without a gradebook."""
    if not gradebook.is_file():
        return []
    table: Any = Student.__table__
    typed = (table.c.first_name, table.c.last_name, table.c.email, table.c.lms_user_id)
    engine = create_engine(f"sqlite:///file:{gradebook}?mode=ro&uri=true")
    with engine.connect() as connection:
        rows = connection.execute(select(table.c.id, *typed).order_by(table.c.id)).all()
    engine.dispose()
    return [row[0] for row in rows if any(row[1:])]


def extensions(gradebook: Path, assignments: Collection[str]) -> list[str]:
    """The students who have more time, once for each of these assignments; none without a gradebook."""
    if not gradebook.is_file():
        return []
    work: Any = SubmittedAssignment.__table__
    homework: Any = Assignment.__table__
    wanted = (
        select(work.c.student_id)
        .join(homework, homework.c.id == work.c.assignment_id)
        .where(homework.c.name.in_(assignments), work.c.extension.is_not(None))
    )
    return [row[0] for row in _rows(gradebook, wanted)]


def due_dates(gradebook: Path, assignments: Collection[str]) -> list[str]:
    """Those of the assignments that have a due date; none without a gradebook."""
    if not gradebook.is_file():
        return []
    table: Any = Assignment.__table__
    wanted = select(table.c.name).where(table.c.name.in_(assignments), table.c.duedate.is_not(None))
    return [row[0] for row in _rows(gradebook, wanted)]


def _rows(gradebook: Path, wanted: Any) -> list[Any]:
    engine = create_engine(f"sqlite:///file:{gradebook}?mode=ro&uri=true")
    with engine.connect() as connection:
        rows = connection.execute(wanted).all()
    engine.dispose()
    return list(rows)


def standings(gradebook: Path, assignment: str) -> dict[str, Standing]:
    """By student; empty if there is no gradebook yet."""
    if not gradebook.is_file():
        return {}
    engine = create_engine(f"sqlite:///file:{gradebook}?mode=ro&uri=true")
    cells: dict[str, dict[str, ByHand]] = defaultdict(dict)
    with engine.connect() as connection:
        book: Any = connection
        maxima = _maxima(book)
        comments = {(row[0], row[1]): row[2] for row in book.execute(_comments(assignment))}
        for student, name, cell, manual, extra in book.execute(_grades(assignment)):
            comment = comments.pop((student, name), "") or ""
            bonus = extra is not None and not maxima.get(cell)  # a person may enter 0
            if manual is not None or extra or comment or bonus:
                cells[student][name] = ByHand(manual, maxima.get(cell, 0.0), comment, extra or 0.0)
        for (student, name), comment in comments.items():
            if comment:  # of an exercise whose points are given in another cell
                cells[student][name] = ByHand(None, 0.0, comment)
        lateness = {row[0]: row[1:] for row in book.execute(_lateness(assignment))}
    engine.dispose()
    return {
        student: Standing(cells.get(student, {}), penalty or 0.0, due is not None and stamp is None)
        for student, (penalty, due, stamp) in lateness.items()
    }


# nbgrader's classes, by their tables: loading its objects computes sums over the whole class
SUBMISSION, NOTEBOOK = SubmittedAssignment.__table__, SubmittedNotebook.__table__
ASSIGNMENT, CELL = Assignment.__table__, BaseCell.__table__
GRADE, COMMENT = Grade.__table__, Comment.__table__


def _of(assignment: str, *columns: Any, rows: Any = None) -> Any:
    """A query for columns of all submissions of an assignment, and of `rows` that belong to cells."""
    query = select(SUBMISSION.c.student_id, *columns)
    query = query.join(ASSIGNMENT, SUBMISSION.c.assignment_id == ASSIGNMENT.c.id)
    query = query.join(NOTEBOOK, NOTEBOOK.c.assignment_id == SUBMISSION.c.id)
    if rows is not None:
        query = query.join(rows, rows.c.notebook_id == NOTEBOOK.c.id)
        query = query.join(CELL, CELL.c.id == rows.c.cell_id)
    return query.where(ASSIGNMENT.c.name == assignment)


def _grades(assignment: str) -> Any:
    columns = (CELL.c.name, GRADE.c.cell_id, GRADE.c.manual_score, GRADE.c.extra_credit)
    return _of(assignment, *columns, rows=GRADE)


def _comments(assignment: str) -> Any:
    return _of(assignment, CELL.c.name, COMMENT.c.manual_comment, rows=COMMENT)


def _lateness(assignment: str) -> Any:
    times = (ASSIGNMENT.c.duedate, SUBMISSION.c.timestamp)
    return _of(assignment, NOTEBOOK.c.late_submission_penalty, *times)


def _maxima(book: Any) -> dict[str, float]:
    tables = (GradeCell.__table__, TaskCell.__table__)
    return {
        row[0]: row[1]
        for table in tables
        for row in book.execute(select(table.c.id, table.c.max_score))
    }
