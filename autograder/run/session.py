"""One run over a class: due submissions go to the workers, and each grade is safe as soon as it is there.

The run may be ended at any moment, by Ctrl-C or by `kill -9`. The next one grades the submissions without a
result that rests on the same files, checks, limits and secret (see `autograder.submission.fingerprint`), and
enters into the gradebook all results that it does not hold yet (see `autograder.book.records`). If nothing
but the check of an exercise has changed, only that exercise is judged again, and the other verdicts stay.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Container, Iterable
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TextIO

from traitlets.config import Config
from traitlets.log import get_logger

from autograder.book.entries import Entries
from autograder.book.gradebook import ClassBook
from autograder.book.records import Records
from autograder.book.table import Row
from autograder.book.work import Done, Work
from autograder.course.scores import one_line
from autograder.outcome import status as statuses
from autograder.outcome.limits import Limits
from autograder.outcome.result import Exercise, Result
from autograder.run.jobs import TaskError, WorkerDiedError
from autograder.run.lock import only_one
from autograder.run.progress import Progress
from autograder.submission import fingerprint
from autograder.submission.intake import (
    HandedIn,
    MissingError,
    Submission,
    UnreadableError,
    collect,
)

REFRESH = 0.5  # seconds between two looks at the clock while nothing happens


class NotReadyError(Exception):
    """The workers cannot grade any submission; the text says why."""


class Workers(Protocol):
    """An executor as the session needs it: see `autograder.run.jobs` and `autograder.run.cluster`."""

    count: int

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]: ...
    def shutdown(self) -> None: ...
    def kill(self) -> None: ...


@dataclass(frozen=True)
class Course:
    """Everything that all submissions have in common.

    grade: called in a worker with a Work, returns `Done.to_json()`. ready: called in a worker before
    anything is touched, with (secret, limits, sandbox, library); it returns the names of the sandbox's
    layers, and its exceptions end the run. page: the feedback page of a submission that never
    reached a worker, from its result and its points. library: the hash that the workers' library must
    have, "" where they are of this machine. config: nbgrader's, for late penalties.
    """

    solutions: Path
    out: Path
    secret: bytes
    grade: Callable[[Work], dict[str, Any]]
    ready: Callable[[bytes, Limits, str, str], list[str]] | None = None
    page: Callable[[Result, float], str] | None = None
    limits: Limits = field(default_factory=Limits)
    sandbox: str = "auto"
    library: str = ""
    config: Config | None = None


@dataclass
class Summary:
    """How a run ended.

    graded: how many were due. changes: sentences on grades that differ from the last complete run's.
    notes: sentences for the person at the terminal.
    """

    rows: list[Row]
    graded: int = 0
    changes: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ungraded(self) -> int:
        return sum(row.status == statuses.UNGRADED for row in self.rows)


def grade_class(
    submissions: list[Submission],
    course: Course,
    workers: Callable[[], Workers],
    *,
    stream: TextIO,
    again: bool = False,
    strangers: Iterable[str] = (),
    wanted: Callable[[Submission], bool] = lambda _: True,
) -> Summary:
    """Grade those of `submissions` that are due, and return the rows of all, in their order.

    workers: makes the executor; called only if something is due. stream: for the progress. again:
    grade everything. strangers: students whose grades are removed unless they are among these: the
    sample class does not stay among real students. wanted: the others are not graded, and their files
    stay, also if they have handed in something else since. BusyError if another run has the folder,
    NotReadyError if the workers cannot grade.
    """
    with only_one(course.out):
        book = ClassBook(course.out, course.solutions)
        begun = book.register(sorted({submission.assignment for submission in submissions}))
        gone = set(strangers) - {submission.student for submission in submissions}
        book.forget(gone)
        with book.open() as opened:
            records = Records(course.out, Entries(opened, course.config))
            for student in gone:
                records.store.forget(student)
            session = Session(course, records, book.released)
            due = session.run(submissions, workers, stream, again, wanted)
            changes = records.changes()
    notes = [begun] if begun else []
    if judged := Counter(name for names in session.judged_again.values() for name in names):
        named = ", ".join(f"{name} ({judged[name]})" for name in sorted(judged))
        notes.append(f"Judged again, since nothing but these checks has changed: {named}.")
    return Summary(list(records.rows.values()), len(due), changes, notes + records.notes)


class Session:
    """One run over a class. released: the folder of the student versions that belong to the book."""

    def __init__(self, course: Course, records: Records, released: Path) -> None:
        self.course, self.records, self.released = course, records, released
        self.basis = fingerprint.of_course(
            fingerprint.of_shared(), course.secret, course.limits, course.sandbox
        )
        # of submissions that keep their other verdicts
        self.judged_again: dict[tuple[str, str], list[str]] = {}
        self._of_exercise = functools.cache(fingerprint.of_exercise)
        self._notebooks: dict[str, tuple[str, str]] = {}
        self._earlier: dict[tuple[str, str], Result] = {}

    def run(
        self,
        submissions: list[Submission],
        workers: Callable[[], Workers],
        stream: TextIO,
        again: bool = False,
        wanted: Callable[[Submission], bool] = lambda _: True,
    ) -> list[Submission]:
        """Grade and return the due submissions. Raises NotReadyError before anything was touched."""
        if not all(map(wanted, submissions)):
            self.records.leave(submissions)
            submissions = [submission for submission in submissions if wanted(submission)]
        kept = {} if again else self.kept(submissions)
        self._earlier = {} if again else self._graded_before(submissions, kept)
        if len(kept) == len(submissions):
            return self.records.begin(submissions, kept)
        executor = workers()
        try:
            self._make_ready(executor, stream)
            due = self.records.begin(submissions, kept)
            self.grade(due, executor, Progress(stream, len(due)))
        except BaseException:  # Ctrl-C too: grades that were finished by then are written
            executor.kill()
            raise
        executor.shutdown()
        return due

    def _make_ready(self, executor: Workers, stream: TextIO) -> None:
        course = self.course
        if course.ready is None:
            return
        asked = (course.secret, course.limits, course.sandbox, course.library)
        try:
            layers = executor.submit(course.ready, *asked).result()
        except (TaskError, WorkerDiedError) as error:
            raise NotReadyError(error.args[0]) from None
        held = ", ".join(layers) or "none: submissions run with the rights of the user who grades"
        print(f"Sandbox: {held}.", file=stream, flush=True)

    # ---- the due submissions

    def kept(self, submissions: list[Submission]) -> dict[tuple[str, str], tuple[Result, str]]:
        """The results that still hold: (result, time stamp) by (student, assignment)."""
        kept: dict[tuple[str, str], tuple[Result, str]] = {}
        for submission in submissions:
            mark, stamp = self._fingerprint(submission)
            result = self.records.store.find(submission.assignment, submission.student)
            if result is not None and rests_on(result, mark) and not self._stale(result):
                kept[submission.student, submission.assignment] = result, stamp
        return kept

    def _graded_before(
        self, submissions: list[Submission], kept: Container[tuple[str, str]]
    ) -> dict[tuple[str, str], Result]:
        """The earlier results of due submissions: some of their verdicts may hold still.

        The results that an interrupted run has set aside are among them.
        """
        earlier: dict[tuple[str, str], Result] = {}
        store = self.records.store
        for submission in submissions:
            key = submission.student, submission.assignment
            if key not in kept:
                result = store.find(submission.assignment, submission.student)
                result = result or store.before(submission.assignment, submission.student)
                if result is not None:
                    earlier[key] = result
        return earlier

    def _stale(self, result: Result) -> list[Exercise]:
        """The exercises whose own checks are not those that judged them."""
        return [
            exercise
            for exercise in result.exercises
            if exercise.check and exercise.rests_on != self._of_exercise(exercise.check)
        ]

    def _known(self, submission: Submission, mark: str) -> list[Exercise]:
        """The verdicts of an earlier grading that hold, if no more has changed than some checks."""
        result = self._earlier.get((submission.student, submission.assignment))
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
            handed_in = collect(submission, self.course.limits.notebook)
        except UnreadableError as error:
            return self._mark(submission, nothing(error)), ""
        except OSError:
            return "", ""  # it is tried again when its turn comes, and reported then
        return self._mark(submission, handed_in), handed_in.stamp

    def _mark(self, submission: Submission, handed_in: HandedIn) -> str:
        texts = self._texts(submission.assignment)
        return fingerprint.of_submission(
            self.basis, *texts, submission.student, submission.assignment, handed_in
        )

    def _texts(self, assignment: str) -> tuple[str, str]:
        """The assignment's notebooks: the instructor's, and the students' that follows from it."""
        if assignment not in self._notebooks:
            file = f"{assignment}/{assignment}.ipynb"
            self._notebooks[assignment] = (
                (self.course.solutions / file).read_text(encoding="utf-8"),
                (self.released / file).read_text(encoding="utf-8"),
            )
        return self._notebooks[assignment]

    # ---- grading

    def grade(self, due: list[Submission], workers: Workers, progress: Progress) -> None:
        """Give the due submissions to the workers, and write each grade when it comes.

        A result that rests on a time limit or on a process that was killed is not believed: its submission
        is graded once more when all others are done, alone, and that result counts. Until then nothing of it
        is written.
        """
        try:
            # one more than can run, so that no worker waits for this process
            doubted = self._grade(due, workers, progress, workers.count + 1, believe=False)
            self._grade(doubted, workers, progress, 1, believe=True)
        finally:
            progress.close()

    def _grade(
        self, due: list[Submission], workers: Workers, progress: Progress, most: int, believe: bool
    ) -> list[Submission]:
        """At most so many at a time. Returns those whose results were not believed, so not written."""
        waiting, doubted = iter(due), []
        running: dict[Future[Any], tuple[Submission, HandedIn, str]] = {}
        while True:
            while len(running) < most and (work := next(waiting, None)):
                progress.started(work.student, work.assignment)
                if isinstance(begun := self._begin(work, workers), Done):
                    progress.finished(self.records.finish(begun, ""), 0.0)
                else:
                    future, handed_in, mark = begun
                    running[future] = work, handed_in, mark
            if not running:
                return doubted
            done, _ = wait(running, timeout=REFRESH, return_when=FIRST_COMPLETED)
            for future in done:
                work, handed_in, mark = running.pop(future)
                outcome = self._outcome(future, work, mark)
                if outcome.result.by_chance and not believe:
                    doubted.append(work)
                    progress.repeated(work.student, work.assignment)
                    continue
                row = self.records.finish(outcome, handed_in.stamp)
                progress.finished(row, outcome.result.seconds)
            progress.refresh()

    def _begin(
        self, submission: Submission, workers: Workers
    ) -> tuple[Future[Any], HandedIn, str] | Done:
        """Read a submission and give it to a worker; a Done if that is impossible."""
        try:
            handed_in = collect(submission, self.course.limits.notebook)
        except UnreadableError as error:
            mark = self._mark(submission, nothing(error))
            missing = isinstance(error, MissingError)
            status = statuses.MISSING if missing else statuses.UNREADABLE
            return self._alone(submission, status, str(error), mark)
        except OSError as error:
            return self._failed(submission, f"it cannot be read: {error}")
        self.records.handed_in(submission, handed_in)
        mark = self._mark(submission, handed_in)
        course = self.course
        work = Work(
            student=submission.student,
            assignment=submission.assignment,
            content=handed_in.content,
            source=self._texts(submission.assignment)[0],
            released=self._texts(submission.assignment)[1],
            limits=course.limits,
            secret=course.secret,
            sandbox=course.sandbox,
            library=course.library,
            notes=handed_in.notes,
            known=self._known(submission, mark),
        )
        return workers.submit(course.grade, work), handed_in, mark

    def _outcome(self, future: Future[Any], submission: Submission, mark: str) -> Done:
        """The worker's answer, or an ungraded result if none came."""
        try:
            done = Done.from_json(future.result())
        except TaskError as error:
            get_logger().error("%s: %s", submission.student, error.args[1])
            return self._failed(submission, error.args[0])
        except (Exception, CancelledError) as error:
            return self._failed(submission, f"{type(error).__name__}: {error}")
        result = done.result
        if (result.student, result.assignment) != (submission.student, submission.assignment):
            return self._failed(submission, "the worker answered for another submission")
        result.fingerprint = mark
        for exercise in result.exercises:
            exercise.rests_on = self._of_exercise(exercise.check) if exercise.check else ""
        return done

    def _failed(self, submission: Submission, why: str) -> Done:
        get_logger().error("%s %s: %s", submission.student, submission.assignment, why)
        reason = one_line(f"the grading failed ({why})")
        return self._alone(submission, statuses.UNGRADED, reason, "")

    def _alone(self, submission: Submission, status: str, reason: str, mark: str) -> Done:
        """A result without a notebook, with a page that says why."""
        result = Result(submission.student, submission.assignment, status, reason, fingerprint=mark)
        result.by_chance = status == statuses.UNGRADED
        maximum = self.records.entries.maximum(submission.assignment)
        return Done(result, page=self.course.page(result, maximum) if self.course.page else "")


def rests_on(result: Result, mark: str) -> bool:
    """Whether a result is a grade, not a failure of the grader, and rests on just this."""
    return result.fingerprint == mark and result.status != statuses.UNGRADED


def nothing(error: UnreadableError) -> HandedIn:
    """A stand-in, for the fingerprint, of a submission of which nothing was read."""
    return HandedIn(b"", notes=[str(error)])
