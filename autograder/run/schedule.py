"""The order in which a class is graded, and how long the rest of it will take.

The longest submissions go first, because one that takes minutes and begins last would keep one worker busy
while the others have nothing left to do. A submission is expected to take as long as others of its assignment
took, in earlier runs and in this one. If an assignment has never been graded, one submission of it goes
before all others, so that its time is soon known. The most checks decide which assignment that is.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from statistics import fmean

from autograder.submission.intake import Submission


class Schedule:
    """The submissions of a run that are `due`, on so many `workers`.

    earlier: the seconds that earlier gradings took, by assignment. Their mean counts like one grading of this
    run, since the machine or the checks may have changed. checks: how many an assignment has. clock: seconds,
    for tests.
    """

    def __init__(
        self,
        due: Iterable[Submission],
        workers: int = 1,
        *,
        earlier: Mapping[str, Collection[float]] | None = None,
        checks: Mapping[str, int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.waiting, self.workers, self.clock = list(due), workers, clock
        self.took = {name: [fmean(seconds)] for name, seconds in (earlier or {}).items()}
        self.checks = checks or {}
        self.begun: set[str] = set()  # assignments
        self.handed_out: list[Submission] = []  # a worker has it, or takes it next
        self.running: dict[Submission, float] = {}  # a worker has it, since when
        self.again: dict[Submission, float] = {}  # to be graded once more, and what it took

    def next(self) -> Submission | None:
        """Hand out the submission that is to be graded next; None if none waits."""
        if not self.waiting:
            return None
        now = self.clock()
        submission = max(self.waiting, key=lambda waiting: self._urgency(waiting, now))
        self.waiting.remove(submission)
        self.begun.add(submission.assignment)
        self.handed_out.append(submission)
        self._start()
        return submission

    def finished(self, submission: Submission, seconds: float = 0.0) -> None:
        """A submission is done. seconds: a worker's, without its start, or 0 if no worker graded it."""
        self._end(submission)
        self.again.pop(submission, None)
        if seconds:
            self.took.setdefault(submission.assignment, []).append(seconds)

    def repeat(self, submission: Submission) -> None:
        """A submission has to be graded once more, alone, when all others are done."""
        self.again[submission] = self._end(submission)

    def alone(self) -> None:
        """All others are done, so the submissions to repeat are due, one at a time."""
        self.waiting, self.workers = list(self.again), 1

    def seconds_left(self) -> float | None:
        """None if no time of a grading is known, or if all waits for a submission that is late."""
        if not self.took:
            return None
        now = self.clock()
        rest = [self._usual(work) + began - now for work, began in self.running.items()]
        # the later a submission is, the longer it is expected to go on
        free = [abs(seconds) for seconds in rest] + [0.0] * (self.workers - len(rest))
        heapq.heapify(free)
        ready = [work for work in self.handed_out if work not in self.running] + self.waiting
        for seconds in sorted((self._seconds(work, now) for work in ready), reverse=True):
            heapq.heapreplace(free, free[0] + seconds)
        if rest and max(free) == -min(rest):
            return None
        here = {*self.waiting, *self.handed_out}
        return max(free) + sum(last for work, last in self.again.items() if work not in here)

    def _urgency(self, submission: Submission, now: float) -> tuple[bool, float, int]:
        name = submission.assignment
        unknown = name not in self.took and name not in self.begun
        return unknown, self._seconds(submission, now), self.checks.get(name, 0)

    def _usual(self, submission: Submission) -> float:
        """How long a submission takes: as the last time, as others of its assignment, or as any others."""
        if submission in self.again:
            return self.again[submission]
        if seconds := self.took.get(submission.assignment):
            return fmean(seconds)
        return fmean(map(fmean, self.took.values())) if self.took else 0.0

    def _seconds(self, submission: Submission, now: float) -> float:
        """The same for one that waits: longer than usual, if the first one of its assignment is late."""
        usual, name = self._usual(submission), submission.assignment
        if submission in self.again or name in self.took:
            return usual
        begun = [began for work, began in self.running.items() if work.assignment == name]
        return max(usual, 2 * (now - min(begun, default=now)) - usual)

    def _start(self) -> None:
        """The workers take what was handed out first, and the rest waits for one of them."""
        for submission in self.handed_out[: self.workers]:
            self.running.setdefault(submission, self.clock())

    def _end(self, submission: Submission) -> float:
        """The seconds that a submission took; its worker takes the next."""
        self.handed_out.remove(submission)
        seconds = self.clock() - self.running.pop(submission, self.clock())
        self._start()
        return seconds
