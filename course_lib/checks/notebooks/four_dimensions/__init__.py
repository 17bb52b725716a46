"""The checks of notebook 10: how are the axes combined?"""

from course_lib.checks.notebooks.four_dimensions.places import coordinates
from course_lib.checks.notebooks.four_dimensions.reading import my_part

__all__ = ["coordinates", "my_part"]
