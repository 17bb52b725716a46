"""Grade a class: one submission after the other, each with a row whatever it does.

The notebook is copied to `out/submitted`, nbgrader restores and executes it into `out/autograded`
and enters the scores into `out/gradebook.db`; feedback pages go to `out/feedback`.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbgrader import preprocessors as nbgrader
from nbgrader.converters import Autograde, NbGraderException
from nbgrader.coursedir import CourseDirectory
from nbgrader.utils import compute_checksum
from traitlets.config import Config
from traitlets.log import get_logger

from autograder import status as statuses
from autograder.config import Limits, base_config
from autograder.feedback import write_feedback, write_note
from autograder.gradebook import ClassBook
from autograder.intake import MissingError, Submission, UnreadableError, stage
from autograder.preprocessors.grading import ExecuteSubmission, RestoreCells, SaveScores
from autograder.scores import DIED, TIME_LIMIT, one_line, own_error, score_cell
from autograder.table import Row, shown

Show = Callable[[str], None]


class AutogradeOne(Autograde):
    """nbgrader's autograde that remembers why a notebook failed; nbgrader only logs it."""

    failure: Exception | None = None

    def convert_single_notebook(self, notebook_filename: str) -> None:
        try:
            super().convert_single_notebook(notebook_filename)
        except Exception as error:
            self.failure = error
            raise


def grading_config(solutions: Path, out: Path, limits: Limits) -> Config:
    """nbgrader's configuration for grading, with our steps in its two pipelines."""
    config = base_config(solutions, out)
    config.RestoreCells.release_directory = str(out / "release")
    config.ExecuteSubmission.timeout = limits.cell
    config.ExecuteSubmission.submission_timeout = limits.submission
    config.Autograde.sanitize_preprocessors = [
        RestoreCells,
        nbgrader.ClearOutput,
        nbgrader.DeduplicateIds,
        nbgrader.OverwriteKernelspec,
        nbgrader.OverwriteCells,
        nbgrader.CheckCellMetadata,
    ]
    config.Autograde.autograde_preprocessors = [
        ExecuteSubmission,
        nbgrader.LimitOutput,
        SaveScores,
        nbgrader.AssignLatePenalties,
        nbgrader.CheckCellMetadata,
    ]
    return config


@dataclass(frozen=True)
class Grader:
    """Grades submissions into one gradebook."""

    book: ClassBook
    config: Config
    out: Path

    def grade(self, submission: Submission) -> Row:
        """The submission's row. Never raises for what was handed in or for nbgrader's failures."""
        student, assignment = submission.student, submission.assignment
        self.book.clear(student, assignment)
        try:
            stage(submission, self.out / "submitted" / student / assignment)
            status, reason = self._autograde(student, assignment)
            score, maximum = self.book.total(student, assignment)
            write_feedback(student, assignment, self.config)
            return Row(student, assignment, score, maximum, status, reason)
        except UnreadableError as error:
            missing = isinstance(error, MissingError)
            status = statuses.MISSING if missing else statuses.UNREADABLE
            self.book.clear(student, assignment, score=0.0)
            return self._without_notebook(submission, 0.0, status, str(error))
        except Exception as error:  # ours or nbgrader's: this submission has no grade, others do
            get_logger().error(traceback.format_exc())
            self.book.clear(student, assignment)
            reason = one_line(f"the grading failed ({type(error).__name__}: {error})")
            return self._without_notebook(submission, None, statuses.UNGRADED, reason)

    def _autograde(self, student: str, assignment: str) -> tuple[str, str]:
        """Restore, execute and score; returns (status, reason)."""
        course = CourseDirectory(config=self.config)
        course.student_id, course.assignment_id = student, assignment
        converter = AutogradeOne(coursedir=course, config=self.config)
        converter.force = True
        try:
            converter.start()
        except NbGraderException as error:
            raise (converter.failure or error) from error
        result = self.out / "autograded" / student / assignment / f"{assignment}.ipynb"
        return _status_of(nbformat.read(result, as_version=4))

    def _without_notebook(
        self, submission: Submission, score: float | None, status: str, reason: str
    ) -> Row:
        student, assignment = submission.student, submission.assignment
        maximum = self.book.maximum(assignment)
        page = self.out / "feedback" / student / assignment / f"{assignment}.html"
        points = f"{shown(score)} of {shown(maximum)}"
        write_note(page, assignment=assignment, score=points, status=status, reason=reason)
        return Row(student, assignment, score, maximum, status, reason)


def grade_class(
    submissions: list[Submission],
    *,
    solutions: Path,
    out: Path,
    limits: Limits | None = None,
    strangers: Iterable[str] = (),
    show: Show = lambda text: None,
) -> list[Row]:
    """Grade the submissions in their order; `show` gets the progress, in pieces of lines.

    `strangers` are students whose grades leave the gradebook when they have no submission here:
    the sample class does not stay among real students.
    """
    book = ClassBook(out, solutions)
    if note := book.register(sorted({submission.assignment for submission in submissions})):
        show(f"{note}\n")
    book.forget(set(strangers) - {submission.student for submission in submissions})
    grader = Grader(book, grading_config(solutions, out, limits or Limits()), out)
    rows = []
    for number, submission in enumerate(submissions, 1):
        began = time.monotonic()
        show(f"[{number}/{len(submissions)}] {submission.student} {submission.assignment} ... ")
        row = grader.grade(submission)
        points = f"{shown(row.score)} of {shown(row.max_score)}"
        show(f"{points}, {row.status} ({time.monotonic() - began:.1f} s)\n")
        rows.append(row)
    return rows


def _status_of(notebook: NotebookNode) -> tuple[str, str]:
    """(status, reason) of an executed submission; reason is "" when all points are there."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    exercises = [cell for cell in cells if cell.metadata.get("nbgrader", {}).get("solution")]
    if exercises and all(_untouched(cell) for cell in exercises):
        return statuses.BLANK, "nothing was written into any exercise"
    for status, kind in ((statuses.KERNEL_DIED, DIED), (statuses.TIMED_OUT, TIME_LIMIT)):
        for cell in cells:
            if sentence := own_error(cell, (kind,)):
                named = "" if status == statuses.KERNEL_DIED else _named(cell)
                return status, f"{named}{sentence}"
    return statuses.GRADED, _first_loss(cells)


def _untouched(cell: NotebookNode) -> bool:
    return cell.metadata["nbgrader"].get("checksum") == compute_checksum(cell)


def _named(cell: NotebookNode) -> str:
    name = cell.metadata.get("nbgrader", {}).get("grade_id", "")
    return f"{name.removesuffix('_check')}: " if name else ""


def _first_loss(cells: list[NotebookNode]) -> str:
    for cell in cells:
        if cell.metadata.get("nbgrader", {}).get("grade"):
            score = score_cell(cell)
            if score.points < score.maximum:
                return f"{_named(cell)}{score.reason}"
    return ""
