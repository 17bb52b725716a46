"""What the exercises of notebook 07 may not use: the course's own solutions, and PyTorch's schedules."""

from __future__ import annotations

REFERENCES = (
    "course_lib.facts",
    "course_lib.pipeline.generators",
    "course_lib.pipeline.messages",
    "course_lib.pipeline.plan",
    "course_lib.pipeline.run",
    "course_lib.pipeline.stash",
)
SCHEDULES = {  # all of its schedules are made from this one
    "torch.distributed.pipelining.schedules:_PipelineSchedule": (
        "PyTorch's schedules, which get_schedule_ops writes out as well, are not to be used here: the order "
        "of the actions is what you are to write."
    ),
}
