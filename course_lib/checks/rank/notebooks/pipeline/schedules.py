"""Recipe (see `harness`): call a function that writes a schedule, and tell its actions as plain numbers."""

from __future__ import annotations

from typing import Any

from course_lib.checks.rank.harness import LONGEST, describe, plain
from course_lib.pipeline.actions import Action, Pair

SHOWN = 40  # characters of what is no action


def write_schedules(
    objects: list, tensors: dict, groups: list, instructions: dict
) -> tuple[dict, dict[str, Any]]:
    """Call the first object once for each of instructions["calls"], [arguments, keyword arguments].

    "answers" holds for each call {"rows": a list for each rank}, {"error": [type, text, place]} or
    {"other": what came that is no list}. A row is a list of actions [stage, kind, microbatch], of pairs
    {"pair": [forward, backward]} and of {"other": what it is}, or {"other": type} where it is no list.
    A stub's NotImplementedError is not caught at the first call.
    """
    answers: list[dict] = []
    for arguments, named in instructions["calls"]:
        try:
            answers.append(schedule(objects[0](*arguments, **named)))
        except Exception as error:
            if isinstance(error, NotImplementedError) and not answers:
                raise
            answers.append({"error": describe(error)})
    return {"answers": answers}, {}


def schedule(value: Any) -> dict:
    if not isinstance(value, list | tuple) or isinstance(value, Action | Pair):
        return {"other": type(value).__name__}
    return {"rows": [row(one) for one in value[:LONGEST]]}


def row(value: Any) -> Any:
    if not isinstance(value, list | tuple) or isinstance(value, Action | Pair):
        return {"other": type(value).__name__}
    return [entry(one) for one in value[:LONGEST]]


def entry(value: Any) -> Any:
    if isinstance(value, Action):
        return [plain(part, 0) for part in value]
    if isinstance(value, Pair):
        return {"pair": [entry(part) for part in value]}
    return {"other": repr(value)[:SHOWN]}
