"""Lines that are judged from a training run: its values, what was sent and when, and what memory held."""

from course_lib.checks.engine.training.lines.memory import held_line, megabytes, peak_line
from course_lib.checks.engine.training.lines.runs import (
    IN_A_GROUP,
    OPTIMIZERS,
    case,
    group_trouble,
    members,
    outputs,
)
from course_lib.checks.engine.training.lines.traffic import (
    at_the_first_block,
    counts,
    during_backward_line,
    volume_line,
    within,
)
from course_lib.checks.engine.training.lines.values import (
    TOLERANCE,
    Mistake,
    common,
    differing,
    first,
    kind,
    only,
    same_as_one_process,
    told,
    whole_world,
)

__all__ = [
    "IN_A_GROUP",
    "OPTIMIZERS",
    "TOLERANCE",
    "Mistake",
    "at_the_first_block",
    "case",
    "common",
    "counts",
    "differing",
    "during_backward_line",
    "first",
    "group_trouble",
    "held_line",
    "kind",
    "megabytes",
    "members",
    "only",
    "outputs",
    "peak_line",
    "same_as_one_process",
    "told",
    "volume_line",
    "whole_world",
    "within",
]
