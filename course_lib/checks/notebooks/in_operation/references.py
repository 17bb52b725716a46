"""Code that graded answers of notebook 12 cannot read."""

REFERENCES = (
    "course_lib.operation.behind",
    "course_lib.operation.bits",
    "course_lib.operation.intervals",
    "course_lib.operation.lateness",
    "course_lib.operation.levers",
    "course_lib.operation.metrics",
    "course_lib.operation.local",
    "course_lib.operation.plans",
    "course_lib.operation.profiles",
    "course_lib.operation.protocol",
    "course_lib.operation.recording",
    "course_lib.operation.remember",
    "course_lib.operation.shards",
    "course_lib.operation.shares",
    "course_lib.operation.symptoms",
    "course_lib.operation.training",
)
