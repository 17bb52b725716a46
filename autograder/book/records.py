"""The files written while a class is graded, in an order that makes it safe to stop anywhere.

The results (see `autograder.book.store`) are the truth; the gradebook, `grades.csv` and the pages follow
from them, and are written by one process. Two orders ensure that no finished grade is lost and
that no old grade stands where a new one is due:

- before submissions are graded, the table says "ungraded" of them, then their scores leave the
  gradebook, then their pages go, and last their results are set aside;
- after one has been graded, its page and notebook are written, then its result, then the gradebook and
  the table. If a run is stopped after it wrote the result, the next run writes the rest.
"""

from __future__ import annotations

import contextlib
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import nbformat
from sqlalchemy.exc import SQLAlchemyError
from traitlets.log import get_logger

from autograder.book.entries import Entries
from autograder.book.standing import reason as reason_with
from autograder.book.store import Store
from autograder.book.table import Row, write_csv
from autograder.book.work import Done, untouched_answers
from autograder.outcome import statuses
from autograder.outcome.result import Result, write_whole
from autograder.outcome.wording import shown
from autograder.submission.intake import STAMP, HandedIn, Submission

NOT_YET = "not graded yet: the next run carries on"


class Records:
    """The files under `out` and the rows of the table, in the order of the submissions."""

    def __init__(self, out: Path, entries: Entries) -> None:
        self.out, self.entries, self.store = out, entries, Store(out)
        self.rows: dict[tuple[str, str], Row] = {}
        self.notes: list[str] = []
        self.without_time: Counter[str] = (
            Counter()
        )  # submissions without a time stamp, by assignment

    def begin(
        self, submissions: Iterable[Submission], kept: dict[tuple[str, str], tuple[Result, str]]
    ) -> list[Submission]:
        """Remove the old grades of submissions that are not `kept`, and return these: they are due.

        kept: (result, time stamp) by (student, assignment), of submissions that need not be graded again.
        """
        due = []
        for submission in submissions:
            key = submission.student, submission.assignment
            if key in kept:
                self.rows[key] = self._row_of(kept[key][0])
            else:
                maximum = self.entries.maximum(submission.assignment)
                self.rows[key] = Row(*key, None, maximum, statuses.UNGRADED, NOT_YET)
                due.append(submission)
        self._write_table()
        self.entries.clear((submission.student, submission.assignment) for submission in due)
        for submission in due:
            for path in (
                self._page(submission.student, submission.assignment),
                self._notebook(submission),
            ):
                path.unlink(missing_ok=True)
            self.store.set_aside(submission.assignment, submission.student)
        for result, stamp in kept.values():
            self._keep(result, stamp)
        self._write_table()
        return due

    def leave(self, submissions: Iterable[Submission]) -> None:
        """Enter the rows of earlier runs for these; `begin` then replaces those of this run.

        Their penalties are those of now, as their points by hand are.
        """
        submissions = list(submissions)
        for assignment in {submission.assignment for submission in submissions}:
            self.entries.settle(assignment)
        for submission in submissions:
            key = submission.student, submission.assignment
            result = self.store.find(submission.assignment, submission.student)
            maximum = self.entries.maximum(submission.assignment)
            left = Row(*key, None, maximum, statuses.UNGRADED, NOT_YET)
            self.rows[key] = self._row_of(result) if result is not None else left

    def forget(self, student: str) -> None:
        """Remove every file about a student; `ClassBook.forget` does the same in the gradebook."""
        forget(self.out, student)

    def handed_in(self, submission: Submission, handed_in: HandedIn) -> None:
        """Keep the files that were handed in, under the names that nbgrader looks for."""
        folder = self.out / "submitted" / submission.student / submission.assignment
        folder.mkdir(parents=True, exist_ok=True)
        (folder / submission.notebook.name).write_bytes(handed_in.content)
        (folder / STAMP).unlink(missing_ok=True)
        if handed_in.stamp:
            (folder / STAMP).write_text(handed_in.stamp)

    def finish(self, done: Done, stamp: str) -> Row:
        """Write everything about a grade, and return its row."""
        result = done.result
        self._note_overtaken(result)
        self._note_time(result, stamp)
        for path, text in (
            (self._page(result.student, result.assignment), done.page),
            (self._notebook(result), done.notebook),
        ):
            if text:
                write_whole(path, text)
            else:
                path.unlink(missing_ok=True)
        self.store.write(result)
        with self._book_errors(result):
            self.entries.enter(result, stamp=stamp, untouched=done.untouched)
        row = self.rows[row_key(result)] = self._row_of(result)
        self._write_table()
        return row

    def _note_overtaken(self, result: Result) -> None:
        """List for eyes the points that a person gave when the checks gave others than now."""
        before = self.store.before(result.assignment, result.student)
        if before is None or not self.entries.has(result.student, result.assignment):
            return
        by_hand = self.entries.standing(result.student, result.assignment).by_hand
        earlier = {exercise.grade_id: exercise.points for exercise in before.exercises}
        for exercise in result.exercises:
            own, then = by_hand.get(exercise.grade_id), earlier.get(exercise.grade_id)
            if own is None or own.points is None or then is None:
                continue
            said = (
                f"{exercise.name}: the {shown(own.points)} points by hand are of an earlier submission; "
                f"the checks now give {shown(exercise.points)} of {shown(exercise.maximum)}"
            )
            if then != exercise.points or said in before.eyes:  # until a person changes them
                result.eyes.append(said)

    def _note_time(self, result: Result, stamp: str) -> None:
        if not stamp and result.status not in (statuses.MISSING, statuses.UNGRADED):
            self.without_time[result.assignment] += 1

    def untimed(self) -> list[str]:
        """A sentence on each assignment whose late work loses points, if some work has no time."""
        return [
            f"{assignment}: {count} submission{'s' * (count != 1)} without a time stamp. The penalty leaves "
            "this work alone, because its time is not known."
            for assignment, count in sorted(self.without_time.items())
            if self.entries.penalises(assignment)
        ]

    def changes(self) -> list[str]:
        """Sentences on the grades that differ from the last complete run's; kept in `results/last-changes`.

        A grade may also differ because of points by hand or a penalty. Afterwards this run is the last
        complete one.
        """
        rows, last = [], self.store.last_scores()
        for student, assignment in self.rows:
            before = self.store.before(assignment, student)
            now = self.store.find(assignment, student)
            if before is not None and now is not None and _grade(before) != _grade(now):
                own, then = self.rows[student, assignment].score, last.get((student, assignment))
                was = (
                    "" if then is None or then == before.score else f"{_points(then)} before, and "
                )
                changed = (
                    f" ({was}{_points(own)} in the table, with what was entered in the gradebook)"
                )
                changed = "" if own is None or (own == now.score and not was) else changed
                rows.append(
                    f"{student} {assignment}: {_grade(before)} before, {_grade(now)} now{changed}"
                )
            elif now is not None:
                rows += self._changed_by_hand(self.rows[student, assignment], last)
        write_whole(self.store.folder / "last-changes", "".join(f"{line}\n" for line in rows))
        self.store.keep_scores({key: row.score for key, row in self.rows.items()})
        self.store.settle()
        return rows

    def _changed_by_hand(self, row: Row, last: dict[tuple[str, str], float | None]) -> list[str]:
        """A sentence on a row whose result stayed as it was, and whose score did not."""
        before = last.get((row.student, row.assignment))
        if before is None or row.score is None or abs(before - row.score) < 1e-9:
            return []
        return [
            f"{row.student} {row.assignment}: {_points(before)} before, {_points(row.score)} now, because "
            "points by hand, a time stamp, a due date, an extension or a penalty changed"
        ]

    def _keep(self, result: Result, stamp: str) -> None:
        """See that the gradebook holds a grade of an earlier run, which may have been interrupted."""
        untouched = None
        path = self._notebook(result)
        self._note_time(result, stamp)
        if not self.entries.holds(result) and path.is_file():
            untouched = untouched_answers(nbformat.read(path, as_version=4))
        with self._book_errors(result):
            self.entries.enter(result, stamp=stamp, untouched=untouched, fresh=False)
        self.rows[row_key(result)] = self._row_of(result)

    def _row_of(self, result: Result) -> Row:
        """The row of a result, with the changes by a person or a penalty from the gradebook."""
        student, assignment = row_key(result)
        maximum = self.entries.maximum(assignment)
        if result.status == statuses.UNGRADED:
            return Row(student, assignment, None, maximum, result.status, result.reason)
        score, reason = result.score, result.reason
        if self.entries.holds(result):
            score = self.entries.total(student, assignment).score
            reason = reason_with(result, self.entries.standing(student, assignment))
        return Row(student, assignment, score, maximum, result.status, reason)

    def _write_table(self) -> None:
        write_csv(list(self.rows.values()), self.out / "grades.csv")

    def _page(self, student: str, assignment: str) -> Path:
        return self.out / "feedback" / student / assignment / f"{assignment}.html"

    def _notebook(self, graded: Submission | Result) -> Path:
        return (
            self.out
            / "autograded"
            / graded.student
            / graded.assignment
            / f"{graded.assignment}.ipynb"
        )

    @contextlib.contextmanager
    def _book_errors(self, result: Result) -> Iterator[None]:
        """A gradebook that cannot be written (another program locks it) costs no student a grade."""
        try:
            yield
        except SQLAlchemyError as error:
            get_logger().error("gradebook: %s", error)
            self.notes.append(
                f"{result.student} {result.assignment} could not be entered into the gradebook "
                f"({type(error).__name__}); the next run does it."
            )


def forget(out: Path, student: str, assignment: str = "") -> None:
    """Remove the files about a student's work on an assignment; without one, all files about the student."""
    Store(out).forget(student, assignment or "*")
    for name in ("feedback", "submitted", "autograded", "gradescope"):
        of_student = out / name / student
        if (of_student / assignment).is_dir():
            shutil.rmtree(of_student / assignment)
        if of_student.is_dir() and not any(of_student.iterdir()):
            of_student.rmdir()


def row_key(result: Result) -> tuple[str, str]:
    return result.student, result.assignment


def _grade(result: Result) -> str:
    if result.status == statuses.UNGRADED:
        return statuses.UNGRADED
    status = "" if result.status == statuses.GRADED else f", {result.status}"
    return f"{_points(result.score)}{status}"


def _points(score: float | None) -> str:
    return f"{shown(score)} point{'s' * (score != 1)}"
