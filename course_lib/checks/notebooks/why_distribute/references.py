"""Code that graded answers of notebook 01 cannot read."""

REFERENCES = (
    "course_lib.facts",
    "course_lib.pictures.calculator",
    "course_lib.pictures.memory_figures",
    "course_lib.pictures.plan_figures",
    "course_lib.planning",
)
