"""The longest submissions are graded first, and the time left is right if some take much longer."""

from __future__ import annotations

import io
import itertools
from collections.abc import Mapping
from pathlib import Path

import pytest

from autograder.book.store import Store
from autograder.outcome import statuses
from autograder.outcome.result import Result
from autograder.run.progress import Progress
from autograder.run.schedule import Schedule
from autograder.submission.intake import Submission

TOOK = {"02_collectives": 15.0, "04_zero": 20.0, "13_capstone": 250.0}
CHECKS = {"02_collectives": 10, "04_zero": 10, "13_capstone": 12}


def of(student: str, assignment: str) -> Submission:
    return Submission(student, assignment, Path())


CLASS = [of(student, name) for student in ("ann", "bob", "cem") for name in TOOK]


class GradedClass:
    """A class graded on `workers` workers, each submission in the time that `took` gives its assignment.

    order: as the submissions began. ended: the time. said: (time, seconds left) at every second.
    """

    def __init__(
        self, schedule: Schedule, now: list[float], took: Mapping[str, float] = TOOK
    ) -> None:
        self.order: list[Submission] = []
        self.said: list[tuple[float, float | None]] = []
        most = schedule.workers + 1  # as the session does
        while True:
            while len(schedule.handed_out) < most and (submission := schedule.next()):
                self.order.append(submission)
            if not schedule.handed_out:
                break
            self.said.append((now[0], schedule.seconds_left()))
            now[0] += 1.0
            for submission, began in list(schedule.running.items()):
                if (seconds := now[0] - began) >= took[submission.assignment]:
                    schedule.finished(submission, seconds)
        self.ended = now[0]

    def names(self) -> list[str]:
        return [submission.assignment for submission in self.order]


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_longest_go_first_and_the_time_left_is_right(workers: int) -> None:
    """The last submission of a class would be a capstone, in the order in which it was handed in."""
    now = [0.0]
    earlier = {name: [seconds - 1, seconds + 1] for name, seconds in TOOK.items()}
    run = GradedClass(Schedule(CLASS, workers, earlier=earlier, clock=lambda: now[0]), now)
    assert run.names() == ["13_capstone"] * 3 + ["04_zero"] * 3 + ["02_collectives"] * 3
    assert [submission.student for submission in run.order] == ["ann", "bob", "cem"] * 3
    assert run.ended == {1: 855, 2: 500, 4: 250}[workers]
    assert all(left == pytest.approx(run.ended - at, abs=1) for at, left in run.said)


def test_one_of_each_new_assignment_goes_first_by_its_checks() -> None:
    """After that the capstone is known to be long, although no other run has graded one."""
    now = [0.0]
    earlier = {"04_zero": [20.0]}
    run = GradedClass(Schedule(CLASS, earlier=earlier, checks=CHECKS, clock=lambda: now[0]), now)
    assert run.names()[:2] == ["13_capstone", "02_collectives"]
    assert run.names()[2:4] == ["13_capstone", "13_capstone"]
    assert run.ended == 855


def test_a_capstone_that_was_never_graded_does_not_end_in_a_moment() -> None:
    """It has run for minutes, and the other assignments took seconds: "0 s left" would be wrong."""
    now = [0.0]
    class_ = [of("ann", "02_collectives"), of("ann", "04_zero"), of("ann", "13_capstone")]
    run = GradedClass(Schedule(class_, 2, checks=CHECKS, clock=lambda: now[0]), now)
    assert run.names()[0] == "13_capstone" and run.ended == 250
    said = dict(run.said)
    assert said[10] is None, "nothing has been graded yet"
    assert all(said[at] is None for at in range(35, 250)), "how late it will be is not known"


def test_the_time_left_is_told_until_all_wait_for_one_that_is_late() -> None:
    """One of ten hangs on one of two workers, and the other worker grades one in 15 s."""
    now = [0.0]
    class_ = [of(student, "02_collectives") for student in "abcdefghij"]
    schedule = Schedule(class_, 2, earlier={"02_collectives": [15.0]}, clock=lambda: now[0])
    schedule.next()
    said = []
    while (other := schedule.next()) is not None:
        said.append(schedule.seconds_left())
        now[0] += 15
        schedule.finished(other, 15.0)
    assert said == [75, 60, 60, 60, 60, *[None] * 4]


def test_submissions_of_an_assignment_keep_their_order() -> None:
    """The clock goes on while one is chosen, and a new assignment counts as long as it has been running."""
    ticks = itertools.count()
    of_zero = [of(student, "04_zero") for student in "abcd"]
    schedule = Schedule(of_zero, clock=lambda: float(next(ticks)))
    assert [schedule.next() for _ in of_zero] == of_zero


def test_earlier_times_count_like_one_of_this_run() -> None:
    now = [0.0]
    schedule = Schedule(
        [of(student, "04_zero") for student in "abcd"],
        earlier={"04_zero": [90.0, 110.0, 100.0]},
        clock=lambda: now[0],
    )
    assert schedule.seconds_left() == 400
    first = schedule.next()
    assert first is not None
    now[0] = 25.0  # the worker started for 5 s
    schedule.finished(first, 20.0)
    assert schedule.seconds_left() == 3 * (100 + 20) / 2


def test_a_submission_that_no_worker_graded_says_nothing_of_others() -> None:
    now = [0.0]
    schedule = Schedule(CLASS, earlier={"04_zero": [20.0]}, clock=lambda: now[0])
    before, unreadable = schedule.seconds_left(), schedule.next()
    assert before == 9 * 20 and unreadable is not None
    schedule.finished(unreadable)
    assert schedule.seconds_left() == 8 * 20


def test_what_is_graded_once_more_is_counted_once_more() -> None:
    """Alone, and as long as it took before."""
    now = [0.0]
    two = [of("ann", "02_collectives"), of("bob", "02_collectives")]
    schedule = Schedule(two, 2, earlier={"02_collectives": [15.0]}, clock=lambda: now[0])
    ann, bob = schedule.next(), schedule.next()
    assert ann is not None and bob is not None
    now[0] = 120.0
    schedule.repeat(ann)
    now[0] = 130.0
    schedule.repeat(bob)
    assert schedule.seconds_left() == 250
    schedule.alone()
    assert schedule.seconds_left() == 250
    assert schedule.next() is bob
    now[0] = 140.0
    assert schedule.seconds_left() == 240
    schedule.finished(bob, 140.0)
    assert schedule.seconds_left() == 120


def test_a_submission_that_waits_for_a_worker_does_not_run_yet() -> None:
    """One more than can run is handed out, so that no worker waits."""
    now = [0.0]
    schedule = Schedule(CLASS[:2], earlier={name: [20.0] for name in TOOK}, clock=lambda: now[0])
    progress = Progress(io.StringIO(), schedule)
    ann, bob = schedule.next(), schedule.next()
    assert ann is not None and bob is not None
    now[0] = 20.0
    assert progress.line() == "0 of 2 graded · 1 running · 20 s left · ann 02_collectives for 20 s"
    schedule.finished(ann, 20.0)
    now[0] = 25.0
    assert schedule.running == {bob: 20.0} and schedule.seconds_left() == 15


def test_the_store_knows_how_long_gradings_took(tmp_path: Path) -> None:
    """Also of results that were set aside, but not of notebooks that no worker could read."""
    store = Store(tmp_path)
    for student, seconds in (("ann", 12.5), ("bob", 7.5), ("cem", 0.0)):
        store.write(Result(student, "04_zero", statuses.GRADED, seconds=seconds))
    assert store.seconds() == {"04_zero": [12.5, 7.5]}
    store.set_aside("04_zero", "ann")
    store.set_aside("04_zero", "bob")
    store.write(Result("bob", "04_zero", statuses.GRADED, seconds=9.0))
    assert sorted(store.seconds()["04_zero"]) == [7.5, 9.0, 12.5]
