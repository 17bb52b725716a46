"""One run over a class: due submissions go to the workers, and each grade is safe as soon as it is there.

The run may be ended at any moment, by Ctrl-C or by `kill -9`. The next one grades the submissions without a
result that rests on the same files, checks, limits and secret (see `autograder.submission.fingerprint`), and
enters into the gradebook all results that it does not hold yet (see `autograder.book.records`). If nothing
but the check of an exercise has changed, only that exercise is judged again, and the other verdicts stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TextIO

from traitlets.config import Config
from traitlets.log import get_logger

from autograder.book.entries import Entries
from autograder.book.gradebook import ClassBook
from autograder.book.leftover import CURE, left_over, said
from autograder.book.records import Records
from autograder.book.table import Row
from autograder.book.work import Done, Work
from autograder.course.scores import one_line
from autograder.outcome import statuses
from autograder.outcome.limits import Limits
from autograder.outcome.result import Result
from autograder.run.earlier import Earlier, nothing
from autograder.run.jobs import TaskError, WorkerDiedError
from autograder.run.lock import only_one
from autograder.run.progress import Progress
from autograder.run.schedule import Schedule
from autograder.submission import fingerprint
from autograder.submission.intake import (
    HandedIn,
    MissingError,
    Submission,
    UnreadableError,
    collect,
)

STAYS = f"The exports and `report` go on counting it, as they must for another section. {CURE}"
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
    grade everything. strangers: students who are removed from all files unless they are among these: so
    the sample class, which older versions graded into the folder of a real one, does not stay there.
    wanted: the others are not graded, and their files stay, also if they have handed in something else
    since. BusyError if another run has the folder, NotReadyError if the workers cannot grade.
    """
    with only_one(course.out):
        book = ClassBook(course.out, course.solutions)
        begun = book.register(sorted({submission.assignment for submission in submissions}))
        gone = set(strangers) - {submission.student for submission in submissions}
        kept = book.forget(gone)
        with book.open() as opened:
            records = Records(course.out, Entries(opened, course.config))
            for student in gone:
                records.forget(student)
            session = Session(course, records, book.released)
            due = session.run(submissions, workers, stream, again, wanted)
            changes = records.changes()
            untimed = records.untimed()
            beside = left_over(
                records.store, {(work.student, work.assignment) for work in submissions}
            )
    notes = [*(note for note in (begun, kept) if note), *untimed]
    notes += said(beside, f"from an earlier run and handed in nothing in this folder. {STAYS}")
    if judged := Counter(name for names in session.earlier.judged_again.values() for name in names):
        named = ", ".join(f"{name} ({judged[name]})" for name in sorted(judged))
        notes.append(f"Judged again, since nothing but these checks has changed: {named}.")
    return Summary(list(records.rows.values()), len(due), changes, notes + records.notes)


class Session:
    """One run over a class. released: the folder of the student versions that belong to the book."""

    def __init__(self, course: Course, records: Records, released: Path) -> None:
        self.course, self.records = course, records
        basis = fingerprint.of_course(
            fingerprint.of_shared(), course.secret, course.limits, course.sandbox
        )
        self.earlier = Earlier(records.store, course.solutions, released, course.limits, basis)

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
        kept = {} if again else self.earlier.kept(submissions)
        if not again:
            self.earlier.look_at(submissions, kept)
        if len(kept) == len(submissions):
            return self.records.begin(submissions, kept)
        executor = workers()
        try:
            self._make_ready(executor, stream)
            earlier = self.records.store.seconds()
            due = self.records.begin(submissions, kept)
            checks = self.earlier.checks(due)
            schedule = Schedule(due, executor.count, earlier=earlier, checks=checks)
            self.grade(executor, Progress(stream, schedule))
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

    def grade(self, workers: Workers, progress: Progress) -> None:
        """Give the due submissions to the workers, and write each grade when it comes.

        A result that rests on a time limit or on a process that was killed is not believed: its submission
        is graded once more when all others are done, alone, and that result counts. Until then nothing of it
        is written.
        """
        try:
            # one more than can run, so that no worker waits for this process
            self._grade(workers, progress, workers.count + 1, believe=False)
            progress.schedule.alone()
            self._grade(workers, progress, 1, believe=True)
        finally:
            progress.close()

    def _grade(self, workers: Workers, progress: Progress, most: int, believe: bool) -> None:
        """At most so many at a time. If a result is not believed, its submission is to be repeated."""
        schedule = progress.schedule
        running: dict[Future[Any], tuple[Submission, HandedIn, str]] = {}
        while True:
            while len(running) < most and (submission := schedule.next()):
                progress.refresh()
                if isinstance(begun := self._begin(submission, workers), Done):
                    schedule.finished(submission)
                    progress.finished(self.records.finish(begun, ""), 0.0)
                else:
                    future, handed_in, mark = begun
                    running[future] = submission, handed_in, mark
            if not running:
                return
            done, _ = wait(running, timeout=REFRESH, return_when=FIRST_COMPLETED)
            for future in done:
                submission, handed_in, mark = running.pop(future)
                outcome = self._outcome(future, submission, mark)
                if outcome.result.by_chance and not believe:
                    schedule.repeat(submission)
                    progress.repeated(submission.student, submission.assignment)
                    continue
                schedule.finished(submission, outcome.result.seconds)
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
            mark = self.earlier.mark(submission, nothing(error))
            missing = isinstance(error, MissingError)
            status = statuses.MISSING if missing else statuses.UNREADABLE
            return self._alone(submission, status, str(error), mark)
        except OSError as error:
            return self._failed(submission, f"it cannot be read: {error}")
        self.records.handed_in(submission, handed_in)
        mark = self.earlier.mark(submission, handed_in)
        course = self.course
        work = Work(
            student=submission.student,
            assignment=submission.assignment,
            content=handed_in.content,
            source=self.earlier.texts(submission.assignment)[0],
            released=self.earlier.texts(submission.assignment)[1],
            limits=course.limits,
            secret=course.secret,
            sandbox=course.sandbox,
            library=course.library,
            notes=handed_in.notes,
            known=self.earlier.known(submission, mark),
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
            exercise.rests_on = self.earlier.of_exercise(exercise.check) if exercise.check else ""
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
