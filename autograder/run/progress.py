"""The progress of grading a class: a line rewritten on a terminal, else one for each, and one a minute."""

from __future__ import annotations

import shutil
from typing import TextIO

from autograder.book.table import Row
from autograder.outcome import statuses
from autograder.outcome.wording import shown
from autograder.run.schedule import Schedule

ERASE = "\r\x1b[K"
SILENCE = 60  # seconds without a line


class Progress:
    """Writes to `stream` how many submissions of a schedule are done, running and left."""

    def __init__(self, stream: TextIO, schedule: Schedule) -> None:
        self.stream, self.schedule = stream, schedule
        self.total = len(schedule.waiting)
        self.live = stream.isatty()
        self.done = self.failed = 0
        self.spoke = schedule.clock()

    def finished(self, row: Row, seconds: float) -> None:
        """A submission has its row; grading it took so many seconds."""
        self.done += 1
        self.failed += row.status == statuses.UNGRADED
        if not self.live:
            points = f"{shown(row.score)} of {shown(row.max_score)}"
            seconds_left = self.schedule.seconds_left() if self.done < self.total else None
            left = "" if seconds_left is None else f"; {_duration(seconds_left)} left"
            self.say(
                f"[{self.done}/{self.total}] {row.student} {row.assignment}: {points}, "
                f"{row.status} ({seconds:.1f} s{left})"
            )
        self.refresh()

    def repeated(self, student: str, assignment: str) -> None:
        """A submission ran into a time limit, or lost a process: it is not done yet."""
        if not self.live:
            self.say(
                f"[-/{self.total}] {student} {assignment}: ran out of time or lost a process; it is graded "
                "once more, alone, when the others are done"
            )
        self.refresh()

    def say(self, text: str) -> None:
        """A line of its own, above the one that is rewritten."""
        self.spoke = self.schedule.clock()
        erase = ERASE if self.live else ""
        self.stream.write(f"{erase}{text}\n")
        self.stream.flush()
        self.refresh()

    def refresh(self) -> None:
        """Rewrite the line. If lines cannot be rewritten, write one when there has been none for a minute."""
        if self.live and self.done < self.total:
            width = shutil.get_terminal_size((80, 24)).columns - 1
            self.stream.write(ERASE + self.line()[:width])
            self.stream.flush()
        elif (
            not self.live
            and self.schedule.running
            and self.schedule.clock() - self.spoke >= SILENCE
        ):
            self.say(self.line())

    def close(self) -> None:
        """Leave the terminal with an empty line to write on."""
        if self.live:
            self.stream.write(ERASE)
            self.stream.flush()

    def line(self) -> str:
        parts = [f"{self.done} of {self.total} graded", f"{len(self.schedule.running)} running"]
        if self.failed:
            parts.append(f"{self.failed} failed")
        if (left := self.schedule.seconds_left()) is not None:
            parts.append(f"{_duration(left)} left")
        for submission, began in list(self.schedule.running.items())[:1]:  # the oldest
            seconds = self.schedule.clock() - began
            parts.append(f"{submission.student} {submission.assignment} for {_duration(seconds)}")
        return " · ".join(parts)


def _duration(seconds: float) -> str:
    """75.2 -> "1 min 15 s"."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
