"""The grades of earlier runs that still hold, and single verdicts of those that do not.

A grade rests on files, checks, limits and the secret: as long as its fingerprint is the same, it holds. If
nothing but the check of an exercise has changed, the verdicts on the other exercises hold.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Container
from pathlib import Path

from autograder.book.store import Store
from autograder.outcome import statuses
from autograder.outcome.limits import Limits
from autograder.outcome.result import Exercise, Result
from autograder.submission import fingerprint
from autograder.submission.intake import HandedIn, Submission, UnreadableError, collect


class Earlier:
    """Results of earlier runs, by student and assignment.

    solutions, released: the folders of the instructor's notebooks and of the student versions that follow
    from them. basis: a hash of everything that all submissions have in common.
    """

    def __init__(
        self, store: Store, solutions: Path, released: Path, limits: Limits, basis: str
    ) -> None:
        self.store, self.solutions, self.released = store, solutions, released
        self.limits, self.basis = limits, basis
        self.results: dict[tuple[str, str], Result] = {}  # of due submissions, see `look_at`
        # the exercises that are judged anew in submissions that keep their other verdicts
        self.judged_again: dict[tuple[str, str], list[str]] = {}
        self.of_exercise = functools.cache(fingerprint.of_exercise)
        self._notebooks: dict[str, tuple[str, str]] = {}

    def kept(self, submissions: list[Submission]) -> dict[tuple[str, str], tuple[Result, str]]:
        """The results that still hold: (result, time stamp) by (student, assignment)."""
        kept: dict[tuple[str, str], tuple[Result, str]] = {}
        for submission in submissions:
            mark, stamp = self._fingerprint(submission)
            result = self.store.find(submission.assignment, submission.student)
            if result is not None and rests_on(result, mark) and not self._stale(result):
                kept[submission.student, submission.assignment] = result, stamp
        return kept

    def look_at(self, submissions: list[Submission], kept: Container[tuple[str, str]]) -> None:
        """Read the earlier results of due submissions: some of their verdicts may hold still.

        The results that an interrupted run has set aside are among them.
        """
        for submission in submissions:
            key = submission.student, submission.assignment
            if key not in kept:
                result = self.store.find(submission.assignment, submission.student)
                result = result or self.store.before(submission.assignment, submission.student)
                if result is not None:
                    self.results[key] = result

    def _stale(self, result: Result) -> list[Exercise]:
        """The exercises whose own checks are not those that judged them."""
        return [
            exercise
            for exercise in result.exercises
            if exercise.check and exercise.rests_on != self.of_exercise(exercise.check)
        ]

    def known(self, submission: Submission, mark: str) -> list[Exercise]:
        """The verdicts of an earlier grading that hold, if no more has changed than some checks."""
        result = self.results.get((submission.student, submission.assignment))
        if result is None or not rests_on(result, mark):
            return []
        stale = self._stale(result)
        known = [
            exercise
            for exercise in result.exercises
            if exercise not in stale and not exercise.by_chance
        ]
        if known:
            names = [exercise.name for exercise in result.exercises if exercise not in known]
            self.judged_again[submission.student, submission.assignment] = names
        return known

    def _fingerprint(self, submission: Submission) -> tuple[str, str]:
        """(fingerprint, time stamp) of the submission's present files."""
        try:
            handed_in = collect(submission, self.limits.notebook)
        except UnreadableError as error:
            return self.mark(submission, nothing(error)), ""
        except OSError:
            return "", ""  # it is tried again when its turn comes, and reported then
        return self.mark(submission, handed_in), handed_in.stamp

    def mark(self, submission: Submission, handed_in: HandedIn) -> str:
        texts = self.texts(submission.assignment)
        return fingerprint.of_submission(
            self.basis, *texts, submission.student, submission.assignment, handed_in
        )

    def texts(self, assignment: str) -> tuple[str, str]:
        """The assignment's notebooks: the instructor's, and the students' that follows from it."""
        if assignment not in self._notebooks:
            file = f"{assignment}/{assignment}.ipynb"
            self._notebooks[assignment] = (
                (self.solutions / file).read_text(encoding="utf-8"),
                (self.released / file).read_text(encoding="utf-8"),
            )
        return self._notebooks[assignment]

    def checks(self, submissions: list[Submission]) -> dict[str, int]:
        """How many graded cells the submissions' assignments have."""
        return {
            name: sum(
                bool(cell["metadata"].get("nbgrader", {}).get("grade"))
                for cell in json.loads(self.texts(name)[1])["cells"]
            )
            for name in {submission.assignment for submission in submissions}
        }


def rests_on(result: Result, mark: str) -> bool:
    """Whether a result is a grade, not a failure of the grader, and rests on just this."""
    return result.fingerprint == mark and result.status != statuses.UNGRADED


def nothing(error: UnreadableError) -> HandedIn:
    """A stand-in, for the fingerprint, of a submission of which nothing was read."""
    return HandedIn(b"", notes=[str(error)])
