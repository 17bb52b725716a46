"""Code that graded answers of notebook 00 cannot read."""

REFERENCE = ("course_lib.first_ranks",)
