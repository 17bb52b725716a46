"""Code that graded answers of notebook 10 cannot read: sections 1 to 4, and functions of numbers."""

REFERENCES = (
    "course_lib.mesh.coordinates",
    "course_lib.mesh.norm",
    "course_lib.mesh.parts",
    "course_lib.mesh.step",
)
OF_NUMBERS = ("course_lib.facts", "course_lib.pictures.strategy_advisor", "course_lib.planning")
