"""A class is graded: every submission has its row, and one that breaks costs no other anything."""

from __future__ import annotations

import copy
import csv
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from autograder import status
from autograder.build import build
from autograder.config import NOTEBOOKS, ROOT, Limits, assignments, log_to_file
from autograder.grade import grade_class
from autograder.gradebook import ClassBook
from autograder.intake import UnreadableError, find_submissions, read_submission
from autograder.kernels import prefer_this_environment
from autograder.mutants import read_mutants
from autograder.restore import restore
from autograder.sample_class import STUDENTS
from autograder.scores import score_cell
from autograder.table import COLUMNS, Row, as_text, write_csv

TOY = Path(__file__).resolve().parent / "toy"
LIMITS = Limits(cell=4, submission=30)

prefer_this_environment()
# nbgrader 0.9.6 with SQLAlchemy 2.1: harmless, and the command sends them to its log.
pytestmark = pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning")


# --- a toy class: everything that can go wrong beside the ranks ----------------------------------


@dataclass
class Course:
    """The toy assignment, built in a temporary folder, and a class that handed it in."""

    folder: Path

    @property
    def solutions(self) -> Path:
        return self.folder / "solutions"

    @property
    def released(self) -> NotebookNode:
        return nbformat.read(self.folder / "notebooks/00_toy/00_toy.ipynb", as_version=4)

    def hand_in(self, student: str, content: bytes | NotebookNode | None) -> None:
        folder = self.folder / "class" / student / "00_toy"
        folder.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            (folder / "00_toy.ipynb").write_bytes(content)
        elif content is not None:
            nbformat.write(content, folder / "00_toy.ipynb")

    def answers(self, one: str | None = None, two: str | None = None) -> NotebookNode:
        """The student version with these texts in its two exercises."""
        notebook = self.released
        for name, text in (("one", one), ("two", two)):
            if text is not None:
                cell_of(notebook, name).source = text
        return notebook

    def grade(self, *students: str) -> dict[str, Row]:
        """Grade the class, or these students only; the rows by student."""
        submissions, _ = find_submissions(self.folder / "class", ["00_toy"])
        chosen = [s for s in submissions if not students or s.student in students]
        rows = grade_class(chosen, solutions=self.solutions, out=self.folder / "out", limits=LIMITS)
        return {row.student: row for row in rows}


def cell_of(notebook: NotebookNode, name: str) -> NotebookNode:
    return next(cell for cell in notebook.cells if cell["id"] == name)


ONE, TWO = "def one():\n    return []", "def two():\n    return []"


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Course:
    folder = tmp_path_factory.mktemp("course")
    shutil.copytree(TOY / "solutions", folder / "solutions")
    build("00_toy", solutions=folder / "solutions", notebooks=folder / "notebooks")
    log_to_file(folder / "out" / "nbgrader.log")
    return Course(folder)


@pytest.fixture(scope="module")
def toy_rows(course: Course) -> dict[str, Row]:
    hand_in, answers = course.hand_in, course.answers
    hand_in("perfect", answers(ONE, TWO))
    hand_in("partial", answers(ONE, "def two():\n    return ['bytes']"))
    hand_in("blank", answers())
    hand_in("raises", answers("def one():\n    raise ValueError('no idea')", TWO))
    hand_in("no-python", answers("def one(:", TWO))
    hand_in("dies-late", answers(ONE, "import os\nos._exit(3)"))
    hand_in("dies-early", answers("import os\nos._exit(3)", TWO))
    hand_in("hangs", answers("def one():\n    while True:\n        pass", TWO))
    hand_in("hangs-in-a-loop", answers(STUBBORN, TWO))
    hand_in("warns", answers(WARNING, TWO))
    hand_in("too-many-points", answers(f"{ONE}\nReport.points = lambda self, n: 100", TWO))
    hand_in("broken", b"{")
    hand_in("not-utf8", b"\xff\xfe{}")
    hand_in("a-list", b"[1, 2]")
    hand_in("nothing", None)
    hand_in("mangled", mangled(answers(ONE, TWO)))
    hand_in("removed", removed(answers(ONE, TWO)))
    hand_in("old-format", old_format(answers(ONE, TWO)))
    return course.grade()


STUBBORN = """
def one():
    while True:
        try:
            while True:
                pass
        except BaseException:
            pass
"""

WARNING = """
import os, sys, warnings
def one():
    warnings.warn("careful")
    print("to stderr", file=sys.stderr)
    os.write(2, b"from C code\\n")
    return []
"""


def mangled(notebook: NotebookNode) -> NotebookNode:
    """Retyped, retagged, edited, duplicated and renamed cells."""
    notebook.cells.append(copy.deepcopy(cell_of(notebook, "two_check")))
    cell_of(notebook, "one_check").cell_type = "markdown"
    cell_of(notebook, "one").metadata = {"tags": ["skip-in-grading", "skip-execution"]}
    cell_of(notebook, "two_check").source = "6"
    cell_of(notebook, "two").metadata.nbgrader["grade_id"] = "renamed"
    return notebook


def removed(notebook: NotebookNode) -> NotebookNode:
    """Without the first exercise, its check, and the second's check."""
    gone = {"one", "one_check", "two_check"}
    notebook.cells = [cell for cell in notebook.cells if cell["id"] not in gone]
    return notebook


def old_format(notebook: NotebookNode) -> bytes:
    """As an old editor writes it: nbformat 4.0, without cell ids."""
    for cell in notebook.cells:
        del cell["id"]
    notebook.nbformat_minor = 0
    return nbformat.v4.writes(notebook).encode()


EXPECTED = {
    "perfect": (10, status.GRADED, ""),
    "partial": (8.5, status.GRADED, "two: bytes: the bytes is wrong"),
    "blank": (0, status.BLANK, "nothing was written"),
    "raises": (6, status.GRADED, "one: ValueError: no idea"),
    "no-python": (6, status.GRADED, "one: NameError: name 'one' is not defined"),
    "dies-late": (4, status.KERNEL_DIED, "the kernel died in cell 'two'"),
    "dies-early": (0, status.KERNEL_DIED, "the kernel died in cell 'one'"),
    "hangs": (6, status.TIMED_OUT, "one: the cell ran longer than its time limit of 4 s"),
    "hangs-in-a-loop": (0, status.TIMED_OUT, "4 s and could not be interrupted"),
    "warns": (10, status.GRADED, ""),
    "too-many-points": (0, status.GRADED, "the check's result is '100'"),
    "broken": (0, status.UNREADABLE, "not valid JSON"),
    "not-utf8": (0, status.UNREADABLE, "not UTF-8"),
    "a-list": (0, status.UNREADABLE, "no notebook"),
    "nothing": (0, status.MISSING, "00_toy.ipynb was not handed in"),
    "mangled": (10, status.GRADED, ""),
    "removed": (6, status.GRADED, "one: value: the value is wrong"),
    "old-format": (10, status.GRADED, ""),
}


@pytest.mark.parametrize("student", EXPECTED)
def test_each_submission_gets_its_row(toy_rows: dict[str, Row], student: str) -> None:
    score, expected, said = EXPECTED[student]
    row = toy_rows[student]
    assert (row.score, row.max_score, row.status) == (score, 10, expected), row
    assert said in row.reason
    assert bool(row.reason) == bool(said), row


def test_the_gradebook_says_the_same(course: Course, toy_rows: dict[str, Row]) -> None:
    book = ClassBook(course.folder / "out", course.solutions)
    for student, row in toy_rows.items():
        assert book.total(student, "00_toy") == (row.score, row.max_score)


def test_there_is_feedback_for_everybody(course: Course, toy_rows: dict[str, Row]) -> None:
    for student, row in toy_rows.items():
        page = course.folder / "out/feedback" / student / "00_toy" / "00_toy.html"
        text = page.read_text()
        assert "00_toy" in text
        if row.status in (status.UNREADABLE, status.MISSING):
            assert row.status in text


def test_a_cell_that_does_not_count_is_not_run(course: Course, toy_rows: dict[str, Row]) -> None:
    path = course.folder / "out/autograded/perfect/00_toy/00_toy.ipynb"
    notebook = nbformat.read(path, as_version=4)
    assert cell_of(notebook, "start-3").execution_count is None
    assert cell_of(notebook, "one_check-1").execution_count is not None


def test_a_better_submission_replaces_the_old_score(
    course: Course, toy_rows: dict[str, Row]
) -> None:
    course.hand_in("partial", course.answers(ONE, TWO))
    assert course.grade("partial")["partial"].score == 10
    course.hand_in("partial", b"{")
    row = course.grade("partial")["partial"]
    assert (row.score, row.status) == (0, status.UNREADABLE)
    book = ClassBook(course.folder / "out", course.solutions)
    assert book.total("partial", "00_toy") == (0, 10)
    assert book.total("perfect", "00_toy") == (10, 10)


def test_a_failure_of_the_grading_leaves_no_score(
    course: Course, toy_rows: dict[str, Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("autograder.preprocessors.grading.SaveScores.preprocess", fail)
    row = course.grade("perfect")["perfect"]
    assert (row.score, row.status) == (None, status.UNGRADED)
    assert "no space left on device" in row.reason
    with ClassBook(course.folder / "out", course.solutions).open() as book:
        grades = book.find_submission("00_toy", "perfect").notebooks[0].grades
        assert [grade.auto_score for grade in grades] == [None, None]


def test_the_submission_has_a_time_limit(course: Course, toy_rows: dict[str, Row]) -> None:
    slow = "import time\ntime.sleep(3)\n"
    course.hand_in("slow", course.answers(slow + ONE, slow + TWO))
    submissions, _ = find_submissions(course.folder / "class", ["00_toy"])
    (row,) = grade_class(
        [submission for submission in submissions if submission.student == "slow"],
        solutions=course.solutions,
        out=course.folder / "out",
        limits=Limits(cell=10, submission=5),
    )
    assert (row.score, row.status) == (4, status.TIMED_OUT)
    assert "the submission's time limit of 5 s was reached" in row.reason


def test_changed_exercises_begin_a_new_gradebook(course: Course, tmp_path: Path) -> None:
    shutil.copytree(course.solutions, tmp_path / "solutions")
    book = ClassBook(tmp_path / "out", tmp_path / "solutions")
    assert book.register(["00_toy"]) == ""
    book.clear("somebody", "00_toy", score=1.0)
    assert book.register(["00_toy"]) == ""
    twin = tmp_path / "solutions/00_toy/00_toy.py"
    twin.write_text(twin.read_text().replace('"two', '"second'))
    build("00_toy", solutions=tmp_path / "solutions", notebooks=tmp_path / "notebooks")
    assert "a new gradebook is begun" in book.register(["00_toy"])
    assert len(list((tmp_path / "out").glob("gradebook-until-*.db"))) == 1
    assert book.maximum("00_toy") == 10


def test_students_of_the_sample_do_not_stay_among_real_ones(course: Course) -> None:
    book = ClassBook(course.folder / "out", course.solutions)
    book.register(["00_toy"])
    book.clear("sample-perfect", "00_toy", score=4.0)
    book.forget(STUDENTS)
    with book.open() as opened:
        assert "sample-perfect" not in {student.id for student in opened.students}


# --- the parts -----------------------------------------------------------------------------------


def graded_cell(source: str, *outputs: NotebookNode, points: float = 4) -> NotebookNode:
    cell = nbformat.v4.new_code_cell(source, execution_count=1, outputs=list(outputs))
    cell.metadata["nbgrader"] = {"grade": True, "grade_id": "a", "points": points}
    return cell


def result(text: str) -> NotebookNode:
    return nbformat.v4.new_output("execute_result", data={"text/plain": text}, execution_count=1)


SCORES: dict[str, tuple[NotebookNode, float]] = {
    "a number": (graded_cell("report.points(4)", result("2.5")), 2.5),
    "the last number": (graded_cell("x", result("4"), result("1")), 1),
    "no number and none expected": (graded_cell("assert x == 1"), 4),
    "no number where one is expected": (graded_cell("report.points(4)"), 0),
    "another thing": (graded_cell("x", result("'4 points'")), 0),
    "not finite": (graded_cell("x", result("nan")), 0),
    "negative": (graded_cell("x", result("-1")), 0),
    "an error": (
        graded_cell("x", nbformat.v4.new_output("error", ename="E", evalue="", traceback=[])),
        0,
    ),
    "a warning": (
        graded_cell(
            "report.points(4)",
            nbformat.v4.new_output("stream", name="stderr", text="careful"),
            result("4.0"),
        ),
        4,
    ),
}


@pytest.mark.parametrize(("cell", "points"), SCORES.values(), ids=SCORES.keys())
def test_the_score_of_a_cell(cell: NotebookNode, points: float) -> None:
    score = score_cell(cell)
    assert score.points == points
    assert bool(score.reason) == (points < 4)


def test_the_reason_is_the_first_failing_case() -> None:
    report = (
        "ring_all_reduce                                     9.6 of 12\n"
        "  ✓ 2 ranks\n"
        "  ✗ 3 ranks, 7 elements               (the same cause)\n"
        "      rank 1 holds the sum of 1.5 and 2\n"
        "      in elements 3 to 6. It skips the\n"
        "      last round.\n"
        "  ✗ bytes sent\n"
    )
    printed = nbformat.v4.new_output("stream", name="stdout", text=report)
    assert score_cell(graded_cell("report.points(4)", printed, result("3.2"))).reason == (
        "3 ranks, 7 elements: rank 1 holds the sum of 1.5 and 2 in elements 3 to 6."
    )


def test_restoring_keeps_what_the_student_added(course: Course) -> None:
    submission = course.answers(ONE, TWO)
    submission.cells.insert(3, nbformat.v4.new_code_cell("helper = 1"))
    cell_of(submission, "two_check").source = "6"
    changes = restore(submission, course.released)
    assert changes == ["cell 'two_check' had been changed"]
    assert "helper = 1" in [cell.source for cell in submission.cells]
    assert cell_of(submission, "one").source == ONE


def test_a_folder_that_is_no_submission_is_named(tmp_path: Path) -> None:
    (tmp_path / "ann" / "00_toy").mkdir(parents=True)
    (tmp_path / "ann" / "99_other").mkdir()
    (tmp_path / "bob").mkdir()
    submissions, notes = find_submissions(tmp_path, ["00_toy"])
    assert [(one.student, one.assignment) for one in submissions] == [("ann", "00_toy")]
    assert "no assignment '99_other'" in notes[0]
    assert "bob holds no assignment" in notes[1]


def test_a_notebook_under_another_name_is_named(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"00_toy ({number}).ipynb").write_text("{}")
    with pytest.raises(UnreadableError, match=r"holds 00_toy \(1\).ipynb, 00_toy \(2\).ipynb"):
        read_submission(tmp_path / "00_toy.ipynb")


def test_the_table_wraps_long_reasons() -> None:
    rows = [Row("ann", "00_toy", 2.5, 10, "graded", "word " * 30), Row("b", "x", None, 1, "u", "")]
    lines = as_text(rows, width=80).splitlines()
    assert lines[0].split() == ["student", "assignment", "score", "status", "reason"]
    assert all(len(line) <= 80 for line in lines)
    assert lines[2].split()[:4] == ["ann", "00_toy", "2.5/10", "graded"]
    assert lines[-1].split() == ["b", "x", "-/1", "u"]


def test_the_csv_has_the_promised_columns(tmp_path: Path) -> None:
    rows = [
        Row("ann", "00_toy", 2.5, 10, "graded", 'a "quoted", reason'),
        Row("b", "x", None, 1, "u", ""),
    ]
    write_csv(rows, tmp_path / "grades.csv")
    with open(tmp_path / "grades.csv", newline="") as file:
        read = list(csv.DictReader(file))
    assert (
        tuple(read[0])
        == COLUMNS
        == (
            "student",
            "assignment",
            "score",
            "max_score",
            "status",
            "reason",
        )
    )
    assert read[0]["reason"] == 'a "quoted", reason'
    assert [row["score"] for row in read] == ["2.5", ""]


def test_mutants_are_read(tmp_path: Path) -> None:
    path = tmp_path / "ring.py"
    path.write_text(
        "# %% wrong: twice the bytes\n# says: twice\ndef ring(): ...\n\n# %% right: other\nring = 1\n"
    )
    wrong, right = read_mutants(path)
    assert (wrong.exercise, wrong.right, wrong.title) == ("ring", False, "twice the bytes")
    assert wrong.text == "def ring(): ..."
    assert (right.right, right.text) == (True, "ring = 1")


# --- the command, on the sample class ------------------------------------------------------------


def run(*command: str, seconds: float = 600) -> subprocess.CompletedProcess[str]:
    """A command in the repository's folder, with this environment's programs."""
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "120"},
        capture_output=True,
        text=True,
        timeout=seconds,
    )


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, list[dict[str, str]]]:
    """What `make grade` does: (the output folder, what was printed, the rows of grades.csv)."""
    out = tmp_path_factory.mktemp("sample") / "out"
    done = run("autograder", "grade", "--out", str(out), seconds=1500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    with open(out / "grades.csv", newline="") as file:
        return out, done.stdout, list(csv.DictReader(file))


SAMPLE_REASONS = {
    "sample-perfect": r"^$",
    "sample-partial": r".",
    "sample-deadlock": r"[Dd]eadlock",
    "sample-twice-the-bytes": r"bytes|twice|whole",
    "sample-built-in": r"was called",
    "sample-dead-rank": r"died",
    "sample-blank": r"nothing was written",
}


def test_the_sample_class_is_complete(sample: tuple[Path, str, list[dict[str, str]]]) -> None:
    graded = [(row["student"], row["assignment"]) for row in sample[2]]
    assert graded == [(student, name) for student in sorted(STUDENTS) for name in assignments()]


@pytest.mark.parametrize("student", STUDENTS)
def test_a_sample_student_gets_what_is_due(
    sample: tuple[Path, str, list[dict[str, str]]], student: str
) -> None:
    for row in (row for row in sample[2] if row["student"] == student):
        score, maximum = float(row["score"]), float(row["max_score"])
        expected = status.BLANK if student == "sample-blank" else status.GRADED
        assert row["status"] == expected, row
        assert re.search(SAMPLE_REASONS[student], row["reason"]), row
        if student == "sample-perfect":
            assert score == maximum, row
        elif student == "sample-blank":
            assert score == 0, row
        else:
            assert 0 < score < maximum, row


def test_one_table_is_printed(sample: tuple[Path, str, list[dict[str, str]]]) -> None:
    out, printed, rows = sample
    lines = printed.splitlines()
    heads = [line for line in lines if line.split()[:2] == ["student", "assignment"]]
    assert len(heads) == 1
    table = lines[lines.index(heads[0]) :]
    for row in rows:
        begin = [row["student"], row["assignment"], f"{row['score']}/{row['max_score']}"]
        assert sum(line.split()[:3] == begin for line in table) == 1
    assert f"[{len(rows)}/{len(rows)}]" in printed
    assert (out / "gradebook.db").is_file()
    for row in rows:
        name = row["assignment"]
        assert (out / "feedback" / row["student"] / name / f"{name}.html").is_file()


def test_what_is_no_class_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path / "nowhere", tmp_path):
        done = run(
            "autograder", "grade", "--submissions", str(folder), "--out", str(tmp_path / "out")
        )
        assert done.returncode == 2
        assert "A class is laid out as FOLDER/<student>/<assignment>" in done.stderr


def test_nbgrader_itself_finds_its_configuration(tmp_path: Path) -> None:
    name = assignments()[0]
    done = run(
        *("nbgrader", "generate_assignment", name, "--db", f"sqlite:///{tmp_path}/gradebook.db"),
        f"--CourseDirectory.release_directory={tmp_path}",
    )
    assert done.returncode == 0, done.stderr
    made = nbformat.read(tmp_path / name / f"{name}.ipynb", as_version=4)
    assert made == nbformat.read(NOTEBOOKS / name / f"{name}.ipynb", as_version=4)
