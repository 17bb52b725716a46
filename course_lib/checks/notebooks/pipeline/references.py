"""Code that the exercises of notebook 07 may not use: the course's own solutions, and PyTorch's schedules."""

from __future__ import annotations

REFERENCES = (
    "course_lib.facts",
    "course_lib.pipeline.checked",
    "course_lib.pipeline.generators",
    "course_lib.pipeline.messages",
    "course_lib.pipeline.plan",
    "course_lib.pipeline.run",
    "course_lib.pipeline.stash",
)
_THEIRS = (
    "Do not use PyTorch's schedules here, nor get_schedule_ops, which writes them out: write the order of "
    "the actions yourself."
)
_BASE = "_PipelineSchedule"  # all of them are made from this one, and each of these knows its order itself
_CLASSES = (
    "ScheduleGPipe",
    "Schedule1F1B",
    "ScheduleInterleaved1F1B",
    "ScheduleInterleavedZeroBubble",
    "ScheduleZBVZeroBubble",
    "ScheduleDualPipeV",
)
SCHEDULES = {f"torch.distributed.pipelining.schedules:{name}": _THEIRS for name in (_BASE, *_CLASSES)}
