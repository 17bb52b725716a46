"""Code that the exercises of notebook 11 may not use: the course's own solutions."""

from __future__ import annotations

REFERENCES = (
    "course_lib.experts.balance",
    "course_lib.experts.exchange",
    "course_lib.experts.gpt",
    "course_lib.experts.modules",
    "course_lib.experts.moe",
    "course_lib.experts.nodes",
    "course_lib.experts.parallel",
    "course_lib.experts.queues",
    "course_lib.experts.routing",
    "course_lib.facts",
)
