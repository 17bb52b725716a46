"""Code that graded answers of notebook 01 cannot read."""

REFERENCES = ("course_lib.estimates", "course_lib.facts")
