"""The points that a reader is told before the exercises, in a notebook's head and in the README."""

from __future__ import annotations

import re
from collections import defaultdict

import pytest

from autograder.course import handout
from autograder.course.config import ROOT, SOLUTIONS, assignments
from autograder.course.twin import read_twin
from course_lib import saved

README = (ROOT / "README.md").read_text(encoding="utf-8")
POINTS = re.compile(r"^\| points \| (\d+)(?:, and (\d+) of extra credit)?", re.MULTILINE)
MARKS = re.compile(r"^\| difficulty, importance \| [1-5] and [1-5] of 5 \|$", re.MULTILINE)
SECTION = re.compile(r"^\| (\d+) [^|]*\|[^|]*\| (\d[\d +]*)(?:extra )?\|", re.MULTILINE)


@pytest.mark.parametrize("assignment", assignments())
def test_the_first_cell_says_what_to_do_where_the_course_is_not_installed(assignment: str) -> None:
    """As in Colab, where its import fails: the sentence stands above the error."""
    cells = read_twin(SOLUTIONS / assignment / f"{assignment}.py").cells
    first = next(cell.source for cell in cells if cell.cell_type == "code")
    comment = " ".join(re.findall(r"^# (.+)$", first, re.MULTILINE))
    assert comment.startswith(
        "If Python finds no module named course_lib or torch, or cannot import"
    )
    assert 'Its README says below "Colab" and "Kaggle" what to run in a new cell' in comment
    assert "import torch" in first and "from course_lib" in first


@pytest.mark.parametrize("readme", [README, handout.UPLOADED])
def test_each_readme_says_below_colab_and_kaggle_what_to_run(readme: str) -> None:
    """The repository's, and the one of a folder that is handed out without a repository."""
    for host in ("Colab", "Kaggle"):
        bold = re.search(rf"\*\*[^*]*\b{host}\b[^*]*\*\*", readme)
        assert bold
        below = readme[bold.end() :].partition("```\n")[2].partition("```")[0]
        assert "pip install" in below


def test_the_readme_beside_a_repository_says_that_the_first_cell_installs() -> None:
    assert handout.FETCHED.startswith("**Colab and Kaggle.**")
    assert "first code cell installs the course" in " ".join(handout.FETCHED.split())


@pytest.mark.parametrize("assignment", assignments())
def test_the_head_and_the_readme_have_the_points_of_the_exercises(assignment: str) -> None:
    twin = SOLUTIONS / assignment / f"{assignment}.py"
    head = read_twin(twin).cells[0].source
    exercises = saved.read(twin.with_suffix(".ipynb")).exercises
    whole = sum(exercise.possible for exercise in exercises if not exercise.extra)
    extra = sum(exercise.possible for exercise in exercises if exercise.extra)

    told = POINTS.search(head)
    assert told, f"{twin.name}: the table at its head needs the row | points | {whole:g} |"
    assert (int(told[1]), int(told[2] or 0)) == (whole, extra), (
        f"{twin.name}: its exercises have {whole:g} points and {extra:g} of extra credit; its head has others"
    )
    row = re.search(rf"^\| `{assignment}` \|.*\| (\d+) \|$", README, re.MULTILINE)
    assert row, (
        f"README.md: the table of notebooks needs a row | `{assignment}` | ... | {whole:g} |"
    )
    assert int(row[1]) == whole, f"README.md: the points of {assignment} are {whole:g}"


@pytest.mark.parametrize("assignment", assignments())
def test_the_sections_in_the_head_have_the_points_of_their_exercises(assignment: str) -> None:
    twin = SOLUTIONS / assignment / f"{assignment}.py"
    head = read_twin(twin).cells[0].source
    if "| section |" not in head:
        return
    told = {number: sum(map(int, sums.split("+"))) for number, sums in SECTION.findall(head)}
    points = defaultdict[str, float](float)
    for exercise in saved.read(twin.with_suffix(".ipynb")).exercises:
        points[exercise.section.partition(" ")[0]] += exercise.possible
    other = {number for number in told.keys() | points.keys() if told.get(number) != points[number]}
    assert not other, "\n".join(
        f"{twin.name}, head: section {number} has {points[number]:g} points, and not {told.get(number, 0)}"
        for number in sorted(other)
    )


@pytest.mark.parametrize("assignment", assignments())
def test_a_section_with_exercises_says_how_hard_and_how_important_they_are(assignment: str) -> None:
    cells = read_twin(SOLUTIONS / assignment / f"{assignment}.py").cells
    heads = [cell.source for cell in cells if cell.source.startswith("## ")]
    to_write = [
        head
        for head in heads
        if re.search(r"^\| you will write \| (?!nothing)", head, re.MULTILINE)
    ]
    assert to_write
    without = [head.splitlines()[0] for head in to_write if len(MARKS.findall(head)) != 1]
    assert not without, (
        f"their tables need a row | difficulty, importance | 2 and 4 of 5 |: {without}"
    )
