"""Code that graded answers about recomputation cannot read."""

REFERENCES = (
    "course_lib.facts",
    "course_lib.recompute.checkpointing",
    "course_lib.recompute.chunks",
    "course_lib.recompute.lazy",
    "course_lib.recompute.segments",
)
