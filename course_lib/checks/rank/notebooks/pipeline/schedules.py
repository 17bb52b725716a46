"""Recipe (see `harness`): call a function that writes a schedule, and tell its actions as plain numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from course_lib.checks.rank.harness import LONGEST, describe, plain
from course_lib.checks.wire import Instructions, Place
from course_lib.pipeline.actions import Action, Pair

SHOWN = 40  # characters of an object that is not an action


@dataclass
class Answer:
    """The outcome of a call.

    rows: for each rank a list of actions [stage, kind, microbatch], of pairs {"pair": [forward, backward]}
    and, for anything else, of {"other": its text}; a row that is not a list is {"other": type}. None if the
    function returned no list: other is its type then.
    """

    rows: list[Any] | None = None
    other: str = ""
    error: Place | None = None


@dataclass
class Answers:
    answers: list[Answer]


@dataclass(frozen=True)
class WritingInstructions(Instructions):
    """calls: [arguments, keyword arguments] each."""

    calls: list[Any]

    def answers(self) -> int:
        return len(self.calls)


def write_schedules(
    objects: list, tensors: dict, groups: list, instructions: WritingInstructions
) -> tuple[Answers, dict[str, Any]]:
    """Call the first object once for each of the calls.

    A stub's NotImplementedError is not caught at the first call.
    """
    answers: list[Answer] = []
    for arguments, named in instructions.calls:
        try:
            answers.append(schedule(objects[0](*arguments, **named)))
        except Exception as error:
            if isinstance(error, NotImplementedError) and not answers:
                raise
            answers.append(Answer(error=describe(error)))
    return Answers(answers), {}


def schedule(value: Any) -> Answer:
    if not isinstance(value, list | tuple) or isinstance(value, Action | Pair):
        return Answer(other=type(value).__name__)
    return Answer([row(actions) for actions in value[:LONGEST]])


def row(value: Any) -> Any:
    if not isinstance(value, list | tuple) or isinstance(value, Action | Pair):
        return {"other": type(value).__name__}
    return [entry(action) for action in value[:LONGEST]]


def entry(value: Any) -> Any:
    if isinstance(value, Action):
        return [plain(part, 0) for part in value]
    if isinstance(value, Pair):
        return {"pair": [entry(part) for part in value]}
    text = repr(value)
    return {"other": text if len(text) <= SHOWN else f"{text[:SHOWN]}..."}
