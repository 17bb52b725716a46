"""The student's side of a check: from objects to bytes, or a sentence that says why that failed."""

from __future__ import annotations

from course_lib.checks import words
from course_lib.checks.judge.case import Exercise
from course_lib.checks.judge.find import UnknownExercise, find
from course_lib.checks.judge.judge import judge
from course_lib.checks.report import Report, refusal
from course_lib.runtime import wire
from course_lib.runtime.errors import LaunchError
from course_lib.runtime.pickling import explain


def submit(name: str, objects: tuple, seed: int, cases: str) -> Report:
    """Pickle `objects`, have them judged, and return the report."""
    try:
        exercise = find(name)
    except UnknownExercise as unknown:
        return refusal(str(name), str(unknown))
    if (complaint := unfit(name, exercise, objects, cases)) is not None:
        return refused(name, exercise, complaint)
    try:
        payload = wire.dumps(objects)
    except Exception as error:
        return refused(name, exercise, why(exercise, objects, error))
    try:
        return Report.from_json(judge(name, payload, seed, cases))
    except LaunchError as error:
        return refused(name, exercise, f"the ranks could not be started: {error}")


def refused(name: str, exercise: Exercise, sentence: str) -> Report:
    """The report of a call that cannot be judged, with the exercise's points."""
    return refusal(name, sentence, possible=exercise.points, extra=exercise.extra)


def unfit(name: str, exercise: Exercise, objects: tuple, cases: str) -> str | None:
    """The fault in the call of `check` itself; None if there is none."""
    if cases not in ("visible", "hidden"):
        return f'cases is "visible" or "hidden", not {cases!r}.'
    if len(objects) != len(exercise.objects):
        return (
            f"{name} takes {words.counted(len(exercise.objects), 'object')}: "
            f'check("{name}", {", ".join(exercise.objects)}); you passed {len(objects)}.'
        )
    for wanted, submitted in zip(exercise.objects, objects, strict=True):
        if not exercise.constants and not callable(submitted):
            kind = type(submitted).__name__
            return f"{wanted} must be a function, but you passed an object of type {kind}."
    return None


def why(exercise: Exercise, objects: tuple, error: Exception) -> str:
    """The object that cannot be pickled, and the reason."""
    for wanted, submitted in zip(exercise.objects, objects, strict=True):
        try:
            wire.dumps(submitted)
        except Exception as reason:
            if callable(submitted):
                return explain(submitted, (), {}, reason)
            kind = type(submitted).__name__
            return f"{wanted} is a {kind}, which cannot be copied to another process ({reason})."
    return f"the objects cannot be copied to another process: {error}"
