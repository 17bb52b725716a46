"""Notebooks for people who learn alone: a folded solution below each check, and nothing else is changed."""

from __future__ import annotations

import re
from pathlib import Path

import make_site
import nbformat
import pytest
from nbformat import NotebookNode

from autograder.__main__ import main
from autograder.course.config import NOTEBOOKS, SOLUTIONS, assignments
from autograder.course.handout import page
from autograder.course.self_study import OWN, WHY, add_solutions, folded, without_dots
from autograder.course.twin import SOLUTION_MARKERS, grade_id
from course_lib import saved
from tests.project.test_docs import HEADLESS, IS_NO, sentences

CODE = re.compile(r"\n(`{3,})python\n(.*)\n\1\n", re.DOTALL)


def of(folder: Path, name: str) -> NotebookNode:
    return nbformat.read(folder / name / f"{name}.ipynb", as_version=4)


@pytest.mark.parametrize("name", assignments())
def test_below_each_check_is_the_solution_of_its_exercise(name: str) -> None:
    student, source = of(NOTEBOOKS, name), of(SOLUTIONS, name)
    alone = NotebookNode(student.copy())
    add_solutions(alone, source)
    nbformat.validate(alone)
    assert [cell for cell in alone.cells if cell in student.cells] == student.cells
    solved = {
        str(grade_id(cell)): cell for cell in source.cells if SOLUTION_MARKERS[0] in cell.source
    }
    added = {cell["id"]: k for k, cell in enumerate(alone.cells) if cell not in student.cells}
    assert sorted(added) == sorted(f"{exercise}-solution" for exercise in solved)
    for exercise, cell in solved.items():
        place = added[f"{exercise}-solution"]
        (code,) = [match[2] for match in CODE.finditer(alone.cells[place].source)]
        compile(code, exercise, "exec")
        kept = [line for line in cell.source.splitlines() if line.strip() not in SOLUTION_MARKERS]
        written = "\n".join(kept).strip("\n")
        answers = written != code
        assert code == (without_dots(written) if answers else written)
        assert answers == (" = ..." in written or ": ..." in written), "dots are not an answer"
        above = [each for each in alone.cells[:place] if each.cell_type == "code"]
        assert above[-1].metadata["nbgrader"]["locked"] and "check(" in above[-1].source


def test_a_fence_is_longer_than_those_in_the_code() -> None:
    text = folded("f", 'x = 1\n### BEGIN SOLUTION\nx = """```"""\n### END SOLUTION').source
    assert '\n````python\nx = 1\nx = """```"""\n````\n' in text


def test_answers_are_shown_without_the_dots_that_they_replace() -> None:
    stub = "# Replace the dots.\na = ...  # GB\n# how often\nb, c = ..., {\n    0: ...,\n}\nd = x[..., 0]\n"
    answers = "### BEGIN SOLUTION\na = 1  # GB\nb = 2\nc = {0: 3}\n### END SOLUTION"
    text = folded("questions", stub + answers).source
    assert "python\nd = x[..., 0]\na = 1  # GB\nb = 2\nc = {0: 3}\n```\n" in text
    assert WHY in text and OWN not in text
    assert OWN in folded("f", "x = ...\ny = 1").source, "no other answer"


def test_a_release_for_people_who_learn_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    name = assignments()[0]
    assert main(["release", name, "--self-study", "--into", str(tmp_path)]) == 0
    made = of(tmp_path, name)
    assert any("Stuck for 20 minutes?" in cell.source for cell in made.cells)
    exercises = saved.read(tmp_path / name / f"{name}.ipynb").exercises
    assert {exercise.state for exercise in exercises} == {saved.UNWRITTEN}
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "instructor" not in text and "submit" not in text and "for 20" in text
    assert not [each for each in sentences(text) if HEADLESS.search(each) or IS_NO.search(each)]
    capsys.readouterr()


def test_a_class_gets_no_solutions() -> None:
    for name in assignments():
        assert not any("Stuck for 20" in cell.source for cell in of(NOTEBOOKS, name).cells)
    texts = {name: (NOTEBOOKS / name / f"{name}.ipynb").read_bytes() for name in assignments()}
    assert "solution" not in page(texts, "course_lib-0.1.0-py3-none-any.whl", None)


def test_the_site_shows_them_if_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = assignments()[0]
    monkeypatch.setattr(make_site, "assignments", lambda: [name])
    for self_study in (True, False):
        folder = tmp_path / str(self_study)
        make_site.prepare(folder, None, self_study)
        for path in (f"notebooks/{name}.ipynb", f"extra/downloads/{name}.ipynb"):
            cells = nbformat.read(folder / path, as_version=4).cells
            assert any("Stuck for 20 minutes?" in cell.source for cell in cells) is self_study
        first = nbformat.read(folder / f"notebooks/{name}.ipynb", as_version=4).cells[0].source
        assert ("does not show the solutions" in first) is not self_study
