"""One pass through a submission's notebook: cells are run, exercises are handed in and judged.

When the notebook's process dies, a new one runs the earlier cells again that came to an end of their own,
and goes on behind the cell that was fatal. Verdicts that were given stay.
"""

from __future__ import annotations

import linecache
import re
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import nbformat
from nbformat import NotebookNode

from autograder.course.exercises import Assignment, Graded
from autograder.course.twin import SKIP_TAG, grade_id
from autograder.outcome import sentences, statuses
from autograder.outcome.limits import Limits
from autograder.outcome.result import Exercise
from autograder.sandbox.child import Start
from autograder.sandbox.execution import ERROR, OK, CellRun, Executor, Refusal
from autograder.submission import verdict
from autograder.submission.recognise import defined_names
from course_lib.checks.words import listing
from course_lib.runtime import wire

# (exercise, payload, seed, seconds) -> the data of a report; JudgeFailureError if it could not judge
Judge = Callable[[str, Sequence[wire.Buffer], int, float], dict]

AGAIN = (OK, ERROR, statuses.TOO_MUCH_OUTPUT)  # outcomes of cells that a new process runs again
# processes and files of such a cell would be in the way of the next ones
RESTART = (statuses.TOO_MANY_PROCESSES, statuses.TOO_MANY_FILES)
NOT_RUN = "not run"


class JudgeFailureError(Exception):
    """The judge itself failed: the submission has no grade. The text says how."""


@dataclass(frozen=True)
class Means:
    """The functions that a pass needs from outside.

    start: starts a process for the notebook; judge: judges its objects; seed: of an exercise.
    """

    start: Start
    judge: Judge
    seed: Callable[[str], int]
    limits: Limits


@dataclass(frozen=True)
class Event:
    """A limit that was reached: its cell, and the sentence about it."""

    status: str
    where: str
    sentence: str

    @property
    def by_chance(self) -> bool:
        """Whether the clock or a kill from outside was the cause, so that it need not come again."""
        killed = self.status == statuses.KERNEL_DIED and "SIGKILL" in self.sentence
        return self.status == statuses.TIMED_OUT or killed

    def __str__(self) -> str:
        return f"{self.where}: {self.sentence}" if self.where else self.sentence


@dataclass(frozen=True)
class Past:
    """A cell that was run."""

    source: str
    number: int
    where: str


@dataclass
class Walk:
    """A pass. Give it the cells in their order, then `close` it; it never raises for errors of cells.

    JudgeFailureError and LaunchError are failures of grading itself. known: verdicts that still hold, by
    `grade_id`: these exercises are handed in like the others, and not judged again.
    """

    assignment: Assignment
    means: Means
    known: Mapping[str, Exercise] = field(default_factory=dict)
    exercises: list[Exercise] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.limits = self.means.limits
        self.deadline = time.monotonic() + self.limits.submission
        self.executor: Executor | None = None
        self.again: list[Past] = []
        self.released = {cell.source for cell in self.assignment.released.cells}
        self.stubs = {
            name: cell.source for cell in self.assignment.released.cells if (name := grade_id(cell))
        }
        self.answers: dict[str, str] = {}  # the student's code in the cells of exercises
        self.written: list[str] = []  # code that was not handed out
        # cells that did not come to a good end: why, and the status of a limit that they reached
        self.trouble: list[tuple[Past, str, str]] = []
        self.number = 0
        self.spent: dict[str, float] = defaultdict(
            float
        )  # seconds, by the cell or the check that took them

    def visit(self, cell: NotebookNode) -> None:
        """Run the cell, or hand in and judge its exercise; outputs come into the cell."""
        own = cell.metadata.get("nbgrader", {})
        graded = self.assignment.graded.get(grade_id(cell) or "") if own.get("grade") else None
        if graded is not None and graded.by_hand:
            self.exercises.append(verdict.by_hand(graded))
        if cell.cell_type != "code" or _skipped(cell) or not cell.source.strip():
            return
        if cell.source not in self.released:
            self.written.append(cell.source)
            if own.get("solution"):
                self.answers[grade_id(cell) or ""] = cell.source
        self.number += 1
        cell["execution_count"] = self.number
        past = Past(
            cell.source, self.number, sentences.of_cell(grade_id(cell), self.number, cell.source)
        )
        if graded is None or graded.by_hand:
            self._run(cell, past)
        else:
            self._examine(cell, graded, past)

    def close(self) -> None:
        """End the notebook's process and everything that it started."""
        if self.executor is not None:
            self.executor.close()
            self.executor = None
        for past in self._sources:
            linecache.cache.pop(past, None)

    # ---- cells that are run

    def _run(self, cell: NotebookNode, past: Past) -> None:
        executor = self._ready()
        if executor is None:
            cell.outputs = [verdict.note(NOT_RUN, f"the cell was not run: {self._over()}")]
            return
        ran = self._attempt(executor, past)
        cell.outputs = [nbformat.from_dict(output) for output in ran.outputs]
        if ran.kind in AGAIN and ran.finished:
            self.again.append(past)
            if ran.kind == ERROR:
                why = f"it ended with {sentences.quoted(ran.error, ran.outputs)}"
                self.trouble.append((past, ran.sentence or why, ""))
        if ran.kind in statuses.LIMITS:
            if not (ran.kind == statuses.TOO_MUCH_OUTPUT and ran.finished):
                cell.outputs.append(verdict.note(ran.kind, ran.sentence))
            self._happened(ran.kind, past, ran.sentence)

    def _attempt(self, executor: Executor, past: Past) -> CellRun:
        """Run a cell in the time that is left to it."""
        self._show_source(past)
        seconds = min(self.limits.cell, self._left())
        began = time.monotonic()
        ran = executor.run(past.source, past.number, seconds)
        self.spent[past.where] += time.monotonic() - began
        if ran.kind == statuses.TIMED_OUT and seconds < self.limits.cell:
            ran = CellRun(ran.kind, ran.outputs, self._over(), finished=False, alive=ran.alive)
        if ran.kind in RESTART:
            executor.close()
        return ran

    def _ready(self) -> Executor | None:
        """A process that has run the earlier cells; None if the time is over."""
        while self._left() > 0:
            if self.executor is not None and self.executor.alive:
                return self.executor
            if self.executor is not None:
                self.executor.close()
            self.executor = Executor(self.means.start, self.limits)
            self._repeat(self.executor)
        return None

    def _repeat(self, executor: Executor) -> None:
        """Run the earlier cells again. One that does not end well now is not tried once more."""
        for past in list(self.again):
            if not executor.alive or self._left() <= 0:
                return
            ran = self._attempt(executor, past)
            if ran.kind not in AGAIN or not ran.finished:
                self.again.remove(past)
                self._happened(ran.kind, past, f"{ran.sentence}, when it was run again")

    def _happened(self, kind: str, past: Past, sentence: str) -> None:
        self.events.append(Event(kind, past.where, sentence))
        self.trouble.append((past, sentence, kind))

    # ---- exercises

    def _examine(self, cell: NotebookNode, graded: Graded, past: Past) -> None:
        if self._left_alone(graded):
            exercise = verdict.left_alone(graded)
        elif (executor := self._ready()) is None:
            sentence = f"it was not judged: {self._over()}"
            exercise = verdict.of_refusal(graded, sentence, statuses.TIMED_OUT)
        else:
            exercise = self._judged(executor, graded, past)
        self.exercises.append(exercise)
        cell.outputs = verdict.outputs(exercise, past.number)

    def _left_alone(self, graded: Graded) -> bool:
        """Whether it is extra credit that the student's own code does not mention."""
        names = [name for text in graded.expressions for name in re.findall(r"[^\W\d]\w*", text)]
        word = re.compile(rf"\b({'|'.join(names)})\b")
        return graded.extra and not any(word.search(source) for source in self.written)

    def _judged(self, executor: Executor, graded: Graded, past: Past) -> Exercise:
        seconds = min(self.limits.check, self._left())
        began = time.monotonic()
        payload = executor.submit(graded.expressions, seconds, graded.functions)
        if isinstance(payload, Refusal):
            if payload.kind == ERROR:
                why, limit = self._because(payload)
                return verdict.of_refusal(graded, payload.sentence + why, limit)
            self._happened(payload.kind, past, payload.sentence)
            if payload.kind in RESTART:
                executor.close()
            return verdict.of_refusal(graded, payload.sentence, payload.kind)
        if graded.grade_id in self.known:
            return self.known[graded.grade_id]
        seed = self.means.seed(graded.check)
        left = max(0.0, seconds - (time.monotonic() - began))
        exercise = verdict.of_report(graded, self.means.judge(graded.check, payload, seed, left))
        self.spent[f"the check of {graded.name}"] += time.monotonic() - began
        if time.monotonic() - began >= seconds and exercise.points < exercise.maximum:
            exercise.limit = statuses.TIMED_OUT
            sentence = f"its check took longer than its time limit of {self.limits.check:g} s"
            said = sentence if seconds == self.limits.check else self._over()
            self.events.append(Event(statuses.TIMED_OUT, graded.name, said))
        elif exercise.limit:
            said = sentences.of_limit(exercise.limit, self.limits, whose=sentences.RANKS)
            self.events.append(Event(exercise.limit, graded.name, said))
        return exercise

    def _because(self, refusal: Refusal) -> tuple[str, str]:
        """The reason for a missing name: a cell that did not come to a good end, or another name in its cell.

        Returns the rest of the sentence, and the status of the limit that the cell reached, or "".
        """
        match = re.match(r"(\w+) is not defined\.", refusal.sentence)
        if match is None:
            return "", ""
        for past, why, limit in reversed(self.trouble):
            if re.search(rf"\b{match[1]}\b", f"{past.where}\n{past.source}"):
                return f" It stands in {past.where}: {why}.", limit
        for cell, answer in self.answers.items():
            asked = defined_names(self.stubs.get(cell, ""))
            if match[1] in asked and (others := sorted(defined_names(answer) - asked)):
                return (
                    f" Its cell defines {listing(others)}, and the check looks for {match[1]}.",
                    "",
                )
        return "", ""

    # ---- time and names

    def _left(self) -> float:
        return self.deadline - time.monotonic()

    def _over(self) -> str:
        sentence = f"the submission's time limit of {self.limits.submission:g} s was reached"
        if self.spent:
            slowest, seconds = max(self.spent.items(), key=lambda pair: pair[1])
            sentence += f", {seconds:.0f} s of them in {slowest}"
        if not any(event.where == "" for event in self.events):
            self.events.append(Event(statuses.TIMED_OUT, "", sentence))
        return sentence

    @property
    def _sources(self) -> list[str]:
        return [f"Cell In[{number}]" for number in range(1, self.number + 1)]

    def _show_source(self, past: Past) -> None:
        """Let sentences of the judge quote the line: ranks only know its place."""
        name, lines = f"Cell In[{past.number}]", past.source.splitlines(keepends=True)
        linecache.cache[name] = (len(past.source), None, lines, name)


def _skipped(cell: NotebookNode) -> bool:
    """Whether the cell does not matter for grading; the exercises' cells always do."""
    return SKIP_TAG in cell.metadata.get("tags", []) and "nbgrader" not in cell.metadata
