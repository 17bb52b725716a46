"""Extra credit adds to a score and not to its maximum: in grading, in the gradebook, on pages, in exports."""

from __future__ import annotations

import copy
import re
import shutil
from collections import defaultdict
from datetime import datetime
from pathlib import Path
from typing import Any

import nbformat
import pytest
from bs4 import BeautifulSoup
from nbformat import NotebookNode
from nbgrader.utils import determine_grade
from nbgrader.validator import Validator
from traitlets.config import Config

from autograder.book.entries import Entries, Total
from autograder.book.extra_credit import ExtraCredit
from autograder.book.gradebook import ClassBook
from autograder.book.standing import ByHand, Standing, final_maximum, final_score, standings
from autograder.course.build import BuildError, require_full_points
from autograder.course.config import NOTEBOOKS, SOLUTIONS, assignments
from autograder.course.exercises import make_assignment, read_assignment
from autograder.course.kernels import prefer_this_environment
from autograder.course.twin import read_twin
from autograder.outcome import statuses
from autograder.outcome.result import Exercise, Result
from autograder.report.class_page import class_page
from autograder.report.exports import canvas, moodle
from autograder.report.feedback import feedback_page
from autograder.report.gradescope import results_json
from autograder.submission import verdict
from autograder.submission.verdict import LEFT_ALONE
from course_lib import saved
from course_lib.checks import check
from course_lib.checks.judge.find import find
from course_lib.checks.report import Report, ReportLine, refusal
from tests.autograder.test_class import Class, InThisProcess
from tests.autograder.test_marking import NAME, Toy, answers, cell, cell_of, points, preloaded
from tests.autograder.test_marking import toy as notebook_of

assert preloaded  # a fixture
TWIN = Path(__file__).resolve().parents[1] / "toy/solutions/00_toy/00_toy.py"
CHECK = "03_data_parallel/powersgd"  # 4 points of extra credit
EXTRA_CELLS = """

# %% nbgrader={"grade_id": "more", "solution": true}
### BEGIN SOLUTION
more = 1
### END SOLUTION

# %% nbgrader={"grade_id": "more_check", "points": 0}
report = check(more)

# %% nbgrader={"grade_id": "most", "solution": true}
### BEGIN SOLUTION
most = 1
### END SOLUTION

# %% nbgrader={"grade_id": "most_check", "points": 0}
report = check(most)
"""

prefer_this_environment()
# nbgrader 0.9.6 with SQLAlchemy 2.1: harmless, and the commands send them to a log.
pytestmark = pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning")


# --- the instructor's notebook -------------------------------------------------------------------


def with_extra(notebook: NotebookNode, answer: str, nbgrader_points: float = 0) -> NotebookNode:
    """The toy of `test_marking` with an exercise of extra credit at its end."""
    notebook.cells += [
        cell("three", answer, solution=True),
        cell("three_check", f'report = check("{CHECK}", PowerSGD)', points=nbgrader_points),
    ]
    return notebook


STUB = "def PowerSGD():\n    raise NotImplementedError()"
DONE = "def PowerSGD():\n    return []"


def test_the_exercise_says_how_many_points_there_are() -> None:
    source, released = with_extra(notebook_of(True), DONE), with_extra(notebook_of(False), STUB)
    assignment = make_assignment(NAME, source, released)
    one = assignment.graded["three_check"]
    assert (one.extra, one.points, assignment.maximum) == (True, 4.0, 10.0)


def test_points_and_extra_credit_exclude_each_other() -> None:
    notebooks = [with_extra(notebook_of(one), DONE, 4) for one in (True, False)]
    with pytest.raises(BuildError, match='"points": 0, not 4: the 4 that can be earned'):
        make_assignment(NAME, *notebooks)
    notebooks = [notebook_of(one) for one in (True, False)]
    for one in notebooks:
        cell_of(one, "one_check").metadata["nbgrader"]["points"] = 0
    with pytest.raises(BuildError, match="00_first_ranks/hello is not"):
        make_assignment(NAME, *notebooks)


@pytest.mark.parametrize("name", assignments())
def test_the_course_announces_its_extra_credit(name: str) -> None:
    assignment = read_assignment(name, SOLUTIONS, NOTEBOOKS)
    text = "\n".join(one.source for one in assignment.released.cells)
    extra = [one for one in assignment.graded.values() if one.extra]
    for one in extra:
        shown = cell_of(assignment.released, one.grade_id).source
        assert shown.startswith(f"# Extra credit, {one.points:g} points\n")
        assert ".points(" not in shown, (
            "nbgrader's Validate takes no number above the cell's points"
        )
    earned = defaultdict[str, float](float)
    for one in saved.read(SOLUTIONS / name / f"{name}.ipynb").exercises:
        earned[one.section] += one.possible * one.extra
    for section, most in earned.items():
        own = text.partition(f"## {section}\n")[2].partition("\n## ")[0]
        assert not most or re.search(rf"\b{most:g} points[\w ]*, on top of the", own), section
    if extra:
        assert f"and {sum(one.points for one in extra):g} of extra credit |" in text
    assert assignment.maximum == sum(
        find(one.check).points for one in assignment.graded.values() if not one.extra
    )


def test_a_solution_that_fails_its_own_extra_check_is_not_built() -> None:
    notebook = with_extra(notebook_of(True), DONE)
    shown = cell_of(notebook, "three_check")
    notebook.cells = [shown]
    shown.execution_count = 1
    for text, said in (
        ("  ✓ bytes\n", ""),
        ("  ✗ bytes\n      too many.\n", "too many"),
        ("", "some"),
    ):
        shown.outputs = [nbformat.v4.new_output("stream", name="stdout", text=text)]
        if not said:
            require_full_points(notebook)
            continue
        with pytest.raises(BuildError, match=said):
            require_full_points(notebook)


# --- grading a submission ------------------------------------------------------------------------


@pytest.fixture
def course(preloaded) -> Toy:
    notebooks = with_extra(notebook_of(True), DONE), with_extra(notebook_of(False), STUB)
    return Toy(preloaded, make_assignment(NAME, *notebooks))


def test_extra_credit_comes_on_top(course: Toy) -> None:
    result = course.grade(with_extra(answers(), DONE))
    assert (points(result), result.score, result.reason) == ([4, 6, 4], 14, "")
    assert [one.extra for one in result.exercises] == [False, False, True]
    assert Result.from_json(result.to_json()) == result


def test_a_part_of_it_is_no_reason_why_points_are_missing(course: Toy) -> None:
    result = course.grade(with_extra(answers(), DONE.replace("[]", "['bytes', 'order']")))
    assert (points(result), result.score) == ([4, 6, 2], 12)
    assert (result.status, result.reason) == (statuses.GRADED, "")


def test_left_alone_it_is_not_judged_and_costs_nothing(course: Toy) -> None:
    result = course.grade(with_extra(answers(), STUB))
    one = result.exercises[-1]
    assert (result.score, result.reason, one.reason, one.report) == (10, "", LEFT_ALONE, None)
    assert CHECK not in course.seeds and not one.attempted
    (said,) = course.outputs("three_check")
    assert said.text == "Extra credit: not attempted.\n"


def test_what_is_written_in_a_cell_of_ones_own_is_an_attempt(course: Toy) -> None:
    notebook = with_extra(answers(), STUB)
    notebook.cells.insert(-1, nbformat.v4.new_code_cell("PowerSGD = lambda: ['bytes']", id="own"))
    result = course.grade(notebook)
    assert result.exercises[-1].attempted and result.exercises[-1].points == 3


def test_nbgraders_rule_and_its_validate_accept_the_cell(course: Toy) -> None:
    course.grade(with_extra(answers(), DONE))
    assert course.notebook is not None
    graded = cell_of(course.notebook, "three_check")
    assert "Extra credit: 4 of 4." in graded.outputs[-1].text
    assert determine_grade(graded) == (0, 0)
    assert Validator()._get_failed_cells(course.notebook) == []
    nbformat.validate(course.notebook)


# --- the gradebook -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy with two exercises of extra credit, and its gradebook."""
    folder = tmp_path_factory.mktemp("extra")
    source = folder / "solutions/00_toy"
    source.mkdir(parents=True)
    twin = source / "00_toy.py"
    twin.write_text(TWIN.read_text() + EXTRA_CELLS)
    nbformat.write(read_twin(twin), source / "00_toy.ipynb")
    ClassBook(folder / "out", folder / "solutions").register(["00_toy"])
    return folder


@pytest.fixture
def toy(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Class:
    folder = tmp_path / "toy"
    shutil.copytree(template, folder)
    (folder / "class").mkdir()
    monkeypatch.setattr(ClassBook, "register", lambda self, names: "")
    monkeypatch.setattr("autograder.run.session.fingerprint.of_shared", lambda *_: "the library")
    return Class(folder)


def result(more: float | None = 4.0, most: float | None = None, one: float = 4) -> Result:
    """ann's result; None: she left the exercise alone."""
    report = Report("toy/more", 1.0, [ReportLine("4 ranks", True)], seed=-1).to_json()
    exercises = [Exercise("one_check", "one", one, 4), Exercise("two_check", "two", 5, 6)]
    for name, got, maximum in (("more", more, 4), ("most", most, 3)):
        kept = None if got is None else report
        exercises.append(
            Exercise(f"{name}_check", name, got or 0.0, maximum, report=kept, extra=True)
        )
    return Result("ann", "00_toy", statuses.GRADED, exercises=exercises)


@pytest.fixture
def entries(toy: Class):
    with ClassBook(toy.out, toy.folder / "solutions").open() as book:
        yield Entries(book)


def extra_credit(entries: Entries) -> dict[str, float | None]:
    entries.db.expire_all()
    grades = entries.book.find_submission("00_toy", "ann").notebooks[0].grades
    return {
        one.name: one.extra_credit for one in grades if one.name in ("more_check", "most_check")
    }


def test_nbgrader_books_it_beside_the_points(entries: Entries) -> None:
    assert entries.enter(result()) == Total(13, 0, 10)
    assert extra_credit(entries) == {"more_check": 4.0, "most_check": None}
    submission = entries.book.find_submission("00_toy", "ann")
    assert (submission.score, submission.max_score) == (13, 10)
    assert not submission.needs_manual_grade
    for name in ("more_check", "most_check"):  # formgrader shows these
        shown = entries.book.find_grade(name, "00_toy", "00_toy", "ann").to_dict()
        assert (shown["auto_score"], shown["max_score"], shown["failed_tests"]) == (0, 0, False)
        assert shown["extra_credit"] == (4.0 if name == "more_check" else None)
    assert entries.holds(result())


def test_grading_again_replaces_it(entries: Entries) -> None:
    entries.enter(result(4.0, 2.0))
    entries.clear([("ann", "00_toy")])
    assert extra_credit(entries) == {"more_check": None, "most_check": None}
    assert entries.enter(result(1.5, None)) == Total(10.5, 0, 10)
    assert extra_credit(entries) == {"more_check": 1.5, "most_check": None}
    entries.enter(Result("ann", "00_toy", statuses.UNGRADED))
    assert extra_credit(entries) == {"more_check": None, "most_check": None}


def test_a_persons_word_stays_until_then(entries: Entries) -> None:
    entries.enter(result(4.0))
    for name, credit in (("more_check", 1.0), ("one_check", 0.5)):
        entries.book.find_grade(name, "00_toy", "00_toy", "ann").extra_credit = credit
    entries.db.commit()
    assert entries.enter(result(4.0), fresh=False).score == 10.5
    entries.clear([("ann", "00_toy")])
    assert entries.enter(result(4.0), fresh=False).score == 13.5  # the run was interrupted
    entries.book.find_grade("more_check", "00_toy", "00_toy", "ann").extra_credit = 1.0
    entries.db.commit()
    assert entries.enter(result(4.0)).score == 13.5


@pytest.mark.parametrize(
    ("most", "counted"),
    [(0.0, (0, 0)), (2.5, (2.5, 0)), (5.0, (4, 1)), (-1.0, (0, 0)), (99.0, (4, 3))],
)
def test_an_instructor_can_limit_it(
    entries: Entries, most: float, counted: tuple[float, float]
) -> None:
    limited = Entries(entries.book, Config({"ExtraCredit": {"most": most}}))
    assert limited.enter(result(4.0, 3.0)).score == 9 + sum(counted)
    assert tuple(extra_credit(entries).values()) == counted


def test_without_a_limit_all_of_it_counts() -> None:
    assert ExtraCredit().earned(result(4.0, None)) == {"more_check": 4.0, "most_check": None}


def test_a_late_penalty_takes_it_too(entries: Entries) -> None:
    entries.book.update_or_create_assignment("00_toy", duedate=datetime(2026, 11, 20))
    config = Config({"LateSubmissionPlugin": {"penalty_method": "zero"}})
    late = Entries(entries.book, config).enter(result(4.0), stamp="2026-11-21 10:00:00 UTC")
    assert (late.penalty, late.score) == (13, 0)


def test_the_table_of_a_class_shows_more_than_the_maximum(toy: Class) -> None:
    def grade(work) -> dict:
        done = {"result": {**result(3.5).to_json(), "student": work.student}, "notebook": ""}
        return {**done, "page": "", "untouched": []}

    toy.hand_in("ann")
    toy.grade_one = grade
    for _ in range(2):  # graded, and kept
        (row,) = toy.grade(InThisProcess()).rows
        assert (row.score, row.max_score, row.reason) == (12.5, 10, "")
    (line,) = toy.table()
    assert (line["score"], line["max_score"]) == ("12.5", "10")
    with ClassBook(toy.out, toy.folder / "solutions").open() as book:
        book.find_grade("more_check", "00_toy", "00_toy", "ann").extra_credit = 0.0
        book.db.commit()
    assert toy.scores() == {"ann": 9.0}
    assert toy.scores(again=True) == {"ann": 12.5}


# --- pages ---------------------------------------------------------------------------------------


def text_of(page: str) -> str:
    return " ".join(BeautifulSoup(page, "html.parser").get_text(" ").split())


def test_the_feedback_page_says_what_was_earned() -> None:
    text = text_of(feedback_page(result(3.5), None))
    assert "12.5 of 10" in text and "more extra credit: 3.5 of 4" in text
    assert "most extra credit, 3 points: not attempted" in text
    notebook = with_extra(notebook_of(False), DONE)
    shown = copy.deepcopy(result(3.5))
    shown.exercises[2].grade_id, shown.exercises[3].grade_id = "three_check", "none_check"
    assert "more: extra credit: 3.5 of 4 points" in text_of(feedback_page(shown, notebook))


def test_the_page_tells_what_counts_where_that_is_something_else(entries: Entries) -> None:
    booked = standings(Path(entries.book.db.get_bind().url.database), "00_toy")
    assert booked == {}
    entries.enter(result(3.5))
    booked = standings(Path(entries.book.db.get_bind().url.database), "00_toy")
    assert final_score(result(3.5), booked["ann"]) == 12.5
    assert final_maximum(result(3.5), booked["ann"]) == 10
    assert "data-added" not in feedback_page(result(3.5), None, standing=booked["ann"])
    Entries(entries.book, Config({"ExtraCredit": {"most": 2}})).enter(result(3.5))
    booked = standings(Path(entries.book.db.get_bind().url.database), "00_toy")
    page = feedback_page(result(3.5), None, standing=booked["ann"])
    assert "data-added" in page and "extra credit: 3.5 of 4, of which 2 count" in text_of(page)
    assert "11 of 10" in text_of(page)
    given = Standing({"most_check": ByHand(None, 0.0, "Nice try.", 1.0)})
    page = text_of(feedback_page(result(3.5), None, standing=given))
    assert "13.5 of 10" in page and "extra credit: 1 of 3 count" in page and "Nice try." in page


def test_the_class_page_counts_who_tried() -> None:
    others = [result(None), result(2.0)]
    others[0].student, others[1].student = "ben", "carla"
    others[1].exercises[2].report = Report(
        "toy/more",
        0.5,
        [ReportLine("4 ranks", False, sentences=["Off."], general=["Off."])],
        seed=-1,
    ).to_json()
    page: Any = BeautifulSoup(class_page([result(4.0), *others]), "html.parser")
    rows = {row("td")[2].text for row in page.find(id="submissions").tbody("tr")}
    assert rows == {"13 / 10", "9 / 10", "11 / 10"}
    table = page.find("h2", string="00_toy").find_next("table")
    shown = {row("td")[0].text: [cell.text for cell in row("td")[1:4]] for row in table.tbody("tr")}
    assert shown["more (extra credit, tried by 2)"] == ["75%", "1", "0"]
    assert not any(name.startswith("most") for name in shown)
    mistakes = page.find("h3", string="Most frequent mistakes").find_next("table")
    assert "Off." in mistakes.text and LEFT_ALONE not in mistakes.text


# --- other people's gradebooks -------------------------------------------------------------------


def test_gradescope_gets_the_whole_score_and_no_failed_test_for_what_was_left_alone() -> None:
    data = results_json(result(3.5))
    assert data["score"] == 12.5
    *_, extra = data["tests"]
    assert [one["name"] for one in data["tests"]] == ["one", "two", "more (extra credit)"]
    assert (extra["score"], extra["max_score"]) == (3.5, 4)
    given = Standing({"most_check": ByHand(None, 0.0, "", 1.0)})
    data = results_json(result(3.5), given)
    assert data["score"] == 13.5 and data["tests"][-1]["score"] == 1.0


def test_canvas_takes_more_than_the_points_possible() -> None:
    roster = (
        "Student,ID,SIS User ID,SIS Login ID,Section,00_toy (11)\n"
        "    Points Possible,,,,,10\nNg,1,s1,ann,A,\n"
    )
    text, notes = canvas({"00_toy": {"ann": 12.5}}, {"00_toy": 10.0}, roster)
    assert text.splitlines()[1:] == ["    Points Possible,,,,,10", "Ng,1,s1,ann,A,12.5"]
    assert [note for note in notes if "found in the roster" not in note] == []


def test_moodle_gets_no_more_than_it_takes() -> None:
    head = "Identifier,Email address,Grade,Maximum Grade,Last modified (grade)"
    worksheet = f"{head}\r\nP1,ann,,10.00,-\r\nP2,ben,,10.00,-\r\nP3,cem,,10.00,-\r\n"
    scores = {"ann": 12.5, "ben": 10.0, "cem": 10.25}
    text, notes = moodle(scores, 10.0, worksheet)
    assert [line.split(",")[2] for line in text.splitlines()[1:]] == ["10", "10", "10"]
    by_address, note = notes
    assert by_address == "The students' folders have the names in the column 'Email address'."
    assert "ann (12.5), cem (10.25)" in note and "ben" not in note and "so 10 is written" in note


def test_the_table_of_a_check_says_extra_credit() -> None:
    assert str(check(CHECK, 3)).startswith("powersgd (extra credit) ")
    assert str(refusal("a/b", "why", extra=True)).startswith("b (extra credit) ")
    assert str(refusal("a/b", "why")).startswith("b  ")


def test_a_verdict_of_extra_credit_keeps_its_kind() -> None:
    graded = make_assignment(
        NAME, with_extra(notebook_of(True), DONE), with_extra(notebook_of(False), STUB)
    ).graded["three_check"]
    refused = verdict.of_refusal(graded, "PowerSGD is not defined.")
    assert refused.report is not None and refused.report["extra"]
    assert (refused.extra, refused.points, refused.maximum, refused.attempted) == (True, 0, 4, True)
