"""Code that graded answers of notebook 04 cannot read."""

REFERENCE = ("course_lib.zero",)
FORMULAS = (*REFERENCE, "course_lib.facts")
