"""A person's score, typed in formgrader, is in the table and on the student's page after the next grading."""

from __future__ import annotations

import csv
import subprocess
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Page, expect

from tests.browser.server import Server, environment, make

ASSIGNMENT = "00_first_ranks"
EXERCISE = "hello"
ANSWERS = {
    "ann": "def hello():\n    return dist.get_rank(), dist.get_world_size(), str(device())",
    "bob": "def hello():\n    return 0, 0, 'cpu'",
}
BY_HAND = 0.9


@pytest.fixture(scope="module")
def graded(course: Path) -> Path:
    """The copy of the course, with a class of two that is graded."""
    source = course / "notebooks" / ASSIGNMENT / f"{ASSIGNMENT}.ipynb"
    for student, answer in ANSWERS.items():
        notebook = nbformat.read(source, as_version=4)
        (cell,) = [cell for cell in notebook.cells if cell.source.startswith("def hello(")]
        cell.source = answer
        place = course / "class" / student / ASSIGNMENT
        place.mkdir(parents=True)
        nbformat.write(notebook, place / source.name)
    grade(course)
    return course


@pytest.fixture(scope="module")
def instructor(graded: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server that autograder/README.md names for formgrader."""
    started = Server(
        graded, tmp_path_factory.mktemp("server") / "instructor", "--ServerApp.root_dir=."
    )
    yield started
    started.stop()


def grade(course: Path) -> None:
    done = subprocess.run(
        make("grade", SUBMISSIONS="class"),
        cwd=course,
        env=environment(course),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def scores(course: Path) -> dict[str, float]:
    with (course / "autograder" / "out" / "grades.csv").open(newline="", encoding="utf-8") as file:
        return {row["student"]: float(row["score"]) for row in csv.DictReader(file)}


def test_a_score_by_hand_counts(page: Page, graded: Path, instructor: Server) -> None:
    before = scores(graded)
    assert before["ann"] == 1.0 and before["bob"] < BY_HAND
    # As by a person, the token is shown to JupyterLab, which gives the browser its cookie.
    page.goto(f"{instructor.address}lab?token={instructor.token}")
    page.wait_for_function("window.jupyterapp?.restored")
    page.goto(f"{instructor.address}formgrader/manage_students/bob/{ASSIGNMENT}")
    page.get_by_role("link", name=ASSIGNMENT, exact=True).last.click()
    box = page.locator(f"#{EXERCISE}_check.score")
    # The page listens to the box once it has fetched the grades, and then shows the automatic score in it.
    expect(box).to_have_attribute("placeholder", f"{before['bob']}")
    with page.expect_response(
        lambda answer: "/api/grade/" in answer.url and answer.request.method == "PUT"
    ) as saved:
        box.fill(str(BY_HAND))
        box.press("Tab")
    assert saved.value.ok
    grade(graded)
    assert scores(graded) == {"ann": 1.0, "bob": BY_HAND}
    (feedback,) = (graded / "autograder" / "out" / "feedback" / "bob" / ASSIGNMENT).glob("*.html")
    page.goto(feedback.as_uri())
    expect(page.locator("body")).to_contain_text(f"{BY_HAND}")
