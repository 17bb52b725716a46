"""Student versions: nbgrader's `generate_assignment` on this layout."""

from __future__ import annotations

from pathlib import Path

from nbgrader.converters import GenerateAssignment
from nbgrader.coursedir import CourseDirectory

from autograder.config import SOLUTIONS, base_config


def generate(
    assignment: str, into: Path, *, solutions: Path = SOLUTIONS, gradebook: bool = False
) -> Path:
    """Write the student version of `assignment` to `into/<assignment>/` and return its path.

    With `gradebook` the assignment is also entered into `into/../gradebook.db`, which must be done
    before submissions of it are graded. What was in the folder before is removed. Raises
    nbgrader's NbGraderException where the source is not what nbgrader understands.
    """
    config = base_config(solutions, into.parent)
    config.CourseDirectory.release_directory = str(into)
    config.CourseDirectory.assignment_id = assignment
    config.GenerateAssignment.no_database = not gradebook
    config.SaveCells.enabled = gradebook
    config.GenerateAssignment.force = True
    GenerateAssignment(coursedir=CourseDirectory(config=config), config=config).start()
    return into / assignment / f"{assignment}.ipynb"
