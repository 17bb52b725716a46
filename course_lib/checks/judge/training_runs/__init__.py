"""A training run: its values against one process's (`single`), its messages and their times, its memory."""

from course_lib.checks.judge.training_runs.memory import held_line, megabytes, peak_line
from course_lib.checks.judge.training_runs.runs import (
    IN_A_GROUP,
    OPTIMIZERS,
    group_trouble,
    members,
    outputs,
    training_case,
)
from course_lib.checks.judge.training_runs.traffic import begun_at, last_backwards, volume_line, within
from course_lib.checks.judge.training_runs.values import (
    TOLERANCE,
    Mistake,
    common,
    differing,
    first,
    kind,
    only,
    same_as_one_process,
    usual_cause,
    whole_world,
)

__all__ = [
    "IN_A_GROUP",
    "OPTIMIZERS",
    "TOLERANCE",
    "Mistake",
    "begun_at",
    "common",
    "differing",
    "first",
    "group_trouble",
    "held_line",
    "kind",
    "last_backwards",
    "megabytes",
    "members",
    "only",
    "outputs",
    "peak_line",
    "same_as_one_process",
    "training_case",
    "usual_cause",
    "volume_line",
    "whole_world",
    "within",
]
