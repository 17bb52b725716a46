"""The policy on points: docs/points.md says what each exercise is about, as the checks have it.

python -m tests.checks.test_points        writes the table again
"""

from __future__ import annotations

import argparse
from pathlib import Path

import course_lib.checks
from autograder.course.config import NOTEBOOKS, ROOT, SOLUTIONS, assignments
from autograder.course.exercises import read_assignment
from course_lib.checks.judge.case import Draw
from course_lib.checks.judge.find import find
from course_lib.checks.words import number

PAGE = ROOT / "docs" / "points.md"
BEGIN, END = "<!-- POINTS: begin -->\n", "<!-- POINTS: end -->\n"


def table() -> str:
    """A row for each exercise that says what it is about."""
    rows = ["| exercise | points | is about | without that at most |", "|---|---|---|---|"]
    for assignment in assignments():
        for graded in read_assignment(assignment, SOLUTIONS, NOTEBOOKS).graded.values():
            exercise = None if graded.by_hand else find(graded.check)
            if exercise is not None and exercise.point:
                keeps = f"a quarter, for {exercise.besides}" if exercise.besides else "half"
                points = f"{number(graded.points)}{' extra' if graded.extra else ''}"
                rows.append(f"| `{graded.check}` | {points} | {exercise.point} | {keeps} |")
    return "\n".join(rows) + "\n"


def test_the_page_says_what_the_exercises_are_about() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.partition(BEGIN)[2].partition(END)[0] == table(), (
        "python -m tests.checks.test_points"
    )


def test_lines_of_communication_and_memory_have_values_beside_them() -> None:
    """They count only if the values of the same run are right, so the run must have a line on values."""
    for assignment in assignments():
        for graded in read_assignment(assignment, SOLUTIONS, NOTEBOOKS).graded.values():
            if graded.by_hand:
                continue
            for case in find(graded.check).cases(Draw(1, hidden=True)):
                aspects = {line.aspect for line in case.lines}
                assert aspects & {"value", "shape"}, f"{graded.check}: {case.title}"


def write(path: Path = PAGE) -> None:
    head, _, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    path.write_text(head + BEGIN + table() + END + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    write()


def test_one_module_alone_says_that_a_function_is_not_written() -> None:
    """It tells the function that is judged from another one that it calls; a check's own words would not."""
    checks = Path(course_lib.checks.__file__).parent
    saying = {path.name for path in checks.rglob("*.py") if "is not written" in path.read_text()}
    assert saying == {"unwritten.py", "faults.py"}, "use `unwritten` of checks/judge/unwritten.py"
