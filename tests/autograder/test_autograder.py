"""A class is graded from the folder to the table, with real checks behind real walls."""

from __future__ import annotations

import csv
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from nbgrader.api import Gradebook
from nbgrader.apps.api import NbGraderAPI
from nbgrader.coursedir import CourseDirectory

from autograder.book.entries import Entries
from autograder.book.gradebook import ClassBook
from autograder.book.store import Store
from autograder.book.table import COLUMNS, Row, as_text, write_csv
from autograder.course.config import (
    COURSE_ID,
    NOTEBOOKS,
    ROOT,
    SOLUTIONS,
    assignments,
    course_config,
)
from autograder.course.exercises import read_assignment
from autograder.course.kernels import prefer_this_environment
from autograder.course.scores import one_line, score_cell
from autograder.course.twin import read_twin
from autograder.outcome import statuses
from autograder.outcome.limits import Limits
from autograder.run import grading
from autograder.run.jobs import LocalWorkers
from autograder.run.session import Course, NotReadyError, Summary, grade_class
from autograder.sample.sample_class import EXTRA, OF_MUTANTS, PERFECT, STUDENTS, without_markers
from autograder.submission.intake import find_submissions
from autograder.submission.secret import seed

SMALL = ROOT / "autograder/faults/course/00_selftest/00_selftest.py"
NAME = SMALL.stem
SECRET = b"a secret for the tests"
LIMITS = Limits(cell=20, check=30, submission=60)

prefer_this_environment()
# nbgrader 0.9.6 with SQLAlchemy 2.1: harmless, and the command sends them to its log.
pytestmark = pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning")


# --- a small class, graded by the real thing -----------------------------------------------------


@dataclass
class SmallClass:
    """The small assignment of the self-test, in a temporary folder, and a class that hands it in."""

    folder: Path

    @property
    def out(self) -> Path:
        return self.folder / "out"

    @property
    def solutions(self) -> Path:
        return self.folder / "solutions"

    def hand_in(self, student: str, content: bytes | None = None, **answers: str) -> None:
        """Hand in these bytes, or the reference with other texts in some of the exercises."""
        folder = self.folder / "class" / student / NAME
        folder.mkdir(parents=True)
        notebook = nbformat.read(self.out / f"release/{NAME}/{NAME}.ipynb", as_version=4)
        for cell, reference in zip(notebook.cells, read_twin(SMALL).cells, strict=True):
            if "### BEGIN SOLUTION" in reference.source:
                cell.source = answers.get(cell["id"], without_markers(reference.source))
        path = folder / f"{NAME}.ipynb"
        path.write_bytes(nbformat.writes(notebook).encode() if content is None else content)

    def grade(self, **options: str) -> Summary:
        submissions, _ = find_submissions(self.folder / "class", [NAME])
        course = Course(
            self.solutions,
            self.out,
            SECRET,
            grading.grade,
            ready=grading.layers,
            page=grading.page_without_notebook,
            limits=LIMITS,
            config=course_config(self.solutions, self.out),
            **options,
        )
        return grade_class(submissions, course, lambda: LocalWorkers(1), stream=StringIO())


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallClass]:
    made = SmallClass(tmp_path_factory.mktemp("small"))
    source = made.solutions / NAME
    source.mkdir(parents=True)
    shutil.copy(SMALL, source)
    nbformat.write(read_twin(SMALL), source / f"{NAME}.ipynb")
    ClassBook(made.out, made.solutions).register([NAME])
    with pytest.MonkeyPatch.context() as patch:
        # the library may be edited while its tests run
        patch.setattr("autograder.submission.fingerprint.of_shared", lambda *_: "the library")
        yield made


WRONG_COUNT = """
def exchange_messages(n):
    return n

def ring_shift_messages(n):
    return n if n > 1 else 0
"""


@pytest.fixture(scope="module")
def graded(small: SmallClass) -> dict[str, Row]:
    """The rows of a class of six, by student."""
    small.hand_in("ann")
    small.hand_in("bob", prediction=WRONG_COUNT)
    small.hand_in("cem", circle="import os\nos._exit(3)")
    small.hand_in("dot", b"{")
    small.hand_in("eve", circle="def neighbour_sum(tensor):\n    raise ValueError('no idea')")
    (small.folder / "class/fay" / NAME).mkdir(parents=True)
    return {row.student: row for row in small.grade().rows}


EXPECTED = {
    "ann": (6, statuses.GRADED, ""),
    "cem": (3, statuses.KERNEL_DIED, "cell 'circle'"),
    "dot": (0, statuses.UNREADABLE, "not valid JSON"),
    "eve": (3, statuses.GRADED, "neighbour_sum"),
    "fay": (0, statuses.MISSING, "was not handed in"),
}


@pytest.mark.parametrize("student", EXPECTED)
def test_each_submission_gets_what_is_due(graded: dict[str, Row], student: str) -> None:
    score, expected, said = EXPECTED[student]
    row = graded[student]
    assert (row.score, row.max_score, row.status) == (score, 6, expected), row
    assert said in row.reason
    assert bool(row.reason) == bool(said), row


def test_partial_credit_is_the_judges(graded: dict[str, Row]) -> None:
    row = graded["bob"]
    assert row.score is not None and 4 <= row.score < 6
    assert row.status == statuses.GRADED
    assert row.reason.startswith("message_prediction: ")


def test_the_gradebook_and_the_table_say_the_same(
    small: SmallClass, graded: dict[str, Row]
) -> None:
    with open(small.out / "grades.csv", newline="") as file:
        table = {row["student"]: float(row["score"]) for row in csv.DictReader(file)}
    assert table == {student: row.score for student, row in graded.items()}
    with ClassBook(small.out, small.solutions).open() as book:
        entries = Entries(book)
        assert {name: entries.total(name, NAME).score for name in graded} == table


def test_there_is_a_page_for_everybody_and_a_notebook_for_formgrader(
    small: SmallClass, graded: dict[str, Row]
) -> None:
    for student, row in graded.items():
        page = (small.out / f"feedback/{student}/{NAME}/{NAME}.html").read_text()
        assert NAME in page and "Content-Security-Policy" in page
        notebook = small.out / f"autograded/{student}/{NAME}/{NAME}.ipynb"
        assert notebook.exists() == (row.status not in (statuses.UNREADABLE, statuses.MISSING))
    nbformat.validate(nbformat.read(small.out / f"autograded/ann/{NAME}/{NAME}.ipynb", 4))


def test_the_seed_of_the_hidden_cases_is_told_to_nobody(
    small: SmallClass, graded: dict[str, Row]
) -> None:
    drawn = str(seed(SECRET, "bob", "00_first_ranks/message_prediction"))
    told = [path for path in small.out.rglob("*") if path.is_file() and "bob" in str(path)]
    assert len(told) >= 4  # result, page, both notebooks
    assert not [path for path in told if drawn in path.read_text()]


def test_a_second_run_grades_nothing_and_a_grade_is_the_same_again(
    small: SmallClass, graded: dict[str, Row]
) -> None:
    before = [(one.student, one.exercises) for one in Store(small.out).all()]
    summary = small.grade()
    assert summary.graded == 0
    assert {row.student: row for row in summary.rows} == graded
    (small.out / "results" / NAME / "bob.json").unlink()
    assert small.grade().graded == 1
    assert [(one.student, one.exercises) for one in Store(small.out).all()] == before


def test_a_sandbox_that_is_no_mode_touches_nothing(
    small: SmallClass, graded: dict[str, Row]
) -> None:
    with pytest.raises(NotReadyError, match="the sandbox is one of auto, require, off"):
        small.grade(sandbox="a bucket")
    assert small.grade().graded == 0


def test_changed_exercises_begin_a_new_gradebook(small: SmallClass, tmp_path: Path) -> None:
    shutil.copytree(small.solutions, tmp_path / "solutions")
    book = ClassBook(tmp_path / "out", tmp_path / "solutions")
    assert book.register([NAME]) == ""
    with book.open() as opened:
        opened.update_or_create_student("ann")
        opened.update_or_create_submission(NAME, "ann")
    assert book.register([NAME]) == ""
    twin = tmp_path / f"solutions/{NAME}/{NAME}.py"
    twin.write_text(twin.read_text().replace('"circle', '"round'))
    nbformat.write(read_twin(twin), twin.with_suffix(".ipynb"))
    assert "a new gradebook is begun" in book.register([NAME])
    assert len(list((tmp_path / "out").glob("gradebook-until-*.db"))) == 1
    with book.open() as opened:
        assert Entries(opened).maximum(NAME) == 6


def contents(file: Path) -> tuple[list[tuple], list[tuple]]:
    """All tables and indices of a gradebook, and the version of its tables."""
    with closing(sqlite3.connect(file)) as book:
        made = book.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
        return sorted(made, key=str), book.execute("SELECT * FROM alembic_version").fetchall()


def test_a_new_gradebook_is_the_one_that_nbgrader_would_make(tmp_path: Path) -> None:
    """Ours has its version without a start of the program `alembic`."""
    with Gradebook(f"sqlite:///{tmp_path / 'theirs.db'}", COURSE_ID):
        theirs = contents(tmp_path / "theirs.db")
    book = ClassBook(tmp_path / "out", tmp_path / "solutions")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", "")
        for _ in range(2):
            with book.open():
                assert contents(book.file) == theirs
    assert len(theirs[1]) == 1


def test_students_of_the_sample_do_not_stay_among_real_ones(small: SmallClass) -> None:
    book = ClassBook(small.out, small.solutions)
    with book.open() as opened:
        opened.update_or_create_student("sample-perfect")
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


def test_a_terminal_obeys_nothing_in_a_reason() -> None:
    """A visible case tells the text of a student's exception."""
    assert one_line("a\x1b[31m red\x1b[0m\n\x1b]0;title\x07\x9b2J\x08\u202ec") == (
        r"a red \x1b]0;title\x07\x9b2J\x08\u202ec"
    )
    assert one_line("ann\u00e9e \u2192 \U0001f600") == "ann\u00e9e \u2192 \U0001f600"


def test_a_folder_that_is_no_submission_is_named(tmp_path: Path) -> None:
    (tmp_path / "ann" / "00_toy").mkdir(parents=True)
    (tmp_path / "ann" / "99_other").mkdir()
    (tmp_path / "bob").mkdir()
    submissions, notes = find_submissions(tmp_path, ["00_toy"])
    assert [(one.student, one.assignment) for one in submissions] == [("ann", "00_toy")]
    assert "no assignment '99_other'" in notes[0]
    assert "bob holds no assignment" in notes[1]


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


@pytest.mark.parametrize("name", ["=cmd|' /C calc'!A0", "@SUM(1)", "+1+1", "-2+3", "\t=1+1"])
def test_a_spreadsheet_computes_nothing_of_the_csv(name: str, tmp_path: Path) -> None:
    write_csv([Row(name, "00_toy", -0.5, 10, "graded", name)], tmp_path / "grades.csv")
    with open(tmp_path / "grades.csv", newline="") as file:
        row = next(csv.DictReader(file))
    assert row["student"] == row["reason"] == f"'{name}"
    assert row["score"] == "-0.5"  # a number stays one


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
    """The results of `make grade`: (the output folder, what was printed, the rows of grades.csv)."""
    out = tmp_path_factory.mktemp("sample") / "out"
    done = run("autograder", "grade", "--out", str(out), seconds=1500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    with open(out / "grades.csv", newline="") as file:
        return out, done.stdout, list(csv.DictReader(file))


SAMPLE_REASONS = {
    "sample-perfect": r"^$",
    "sample-extra-credit": r"^$",
    "sample-partial": r".",
    "sample-deadlock": r"run_schedule: .*(deadlock|waits for)",
    "sample-twice-the-bytes": r"reduce_scatter: bytes sent: .* times as many",
    "sample-built-in": r"naive_data_parallel: .* DistributedDataParallel",
    "sample-dead-rank": r"died",
    "sample-blank": r"nothing was written",
    "sample-broken-file": r"not valid JSON",
    "sample-forged-checks": r"NotImplementedError|not answered|not written",
    "sample-kernel-dies": r"os\._exit|exit code",
}
SAMPLE_STATUS = {
    "sample-blank": statuses.BLANK,
    "sample-broken-file": statuses.UNREADABLE,
    "sample-kernel-dies": statuses.KERNEL_DIED,
}
NOTHING = ("sample-blank", "sample-broken-file", "sample-forged-checks")
EVERYTHING = ("sample-perfect", "sample-kernel-dies")  # a dead process costs no exercise its points


def extra_points(name: str) -> float:
    """The extra credit of an assignment of the course."""
    graded = read_assignment(name, SOLUTIONS, NOTEBOOKS).graded.values()
    return sum(one.points for one in graded if one.extra)


def test_the_sample_class_is_complete(sample: tuple[Path, str, list[dict[str, str]]]) -> None:
    graded = [(row["student"], row["assignment"]) for row in sample[2]]
    assert len(set(graded)) == len(graded)
    known = assignments()
    others = set(STUDENTS) - {PERFECT, EXTRA, *OF_MUTANTS}
    extra = {name for name in known if extra_points(name)}
    assert extra >= {"03_data_parallel", "04_zero"}
    expected = {(EXTRA if name in extra else PERFECT, name) for name in known}
    expected |= {(student, known[0]) for student in others}
    assert expected <= set(graded)
    shown = set(graded) - expected
    assert sorted(student for student, _ in shown) == sorted(OF_MUTANTS)
    assert len({name for _, name in shown}) == len(OF_MUTANTS), "each in another assignment"


@pytest.mark.parametrize("student", STUDENTS)
def test_a_sample_student_gets_what_is_due(
    sample: tuple[Path, str, list[dict[str, str]]], student: str
) -> None:
    for row in (row for row in sample[2] if row["student"] == student):
        score, maximum = float(row["score"]), float(row["max_score"])
        assert row["status"] == SAMPLE_STATUS.get(student, statuses.GRADED), row
        assert re.search(SAMPLE_REASONS[student], row["reason"]), row
        if student in EVERYTHING:
            assert score == maximum, row
        elif student == EXTRA:
            assert score == maximum + extra_points(row["assignment"]) > maximum, row
        elif student in NOTHING:
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


def test_nbgrader_does_not_autograde_behind_our_back(small: SmallClass, tmp_path: Path) -> None:
    config = course_config(small.solutions, tmp_path)
    ran = tmp_path / "ran"
    folder = tmp_path / "submitted" / "ann" / NAME
    folder.mkdir(parents=True)
    code = nbformat.v4.new_code_cell(f"open({str(ran)!r}, 'w')")
    nbformat.write(nbformat.v4.new_notebook(cells=[code]), folder / f"{NAME}.ipynb")
    graded = tmp_path / "autograded" / "ann" / NAME / f"{NAME}.ipynb"
    graded.parent.mkdir(parents=True)
    graded.write_text("what grading made")
    ClassBook(tmp_path, small.solutions).register([NAME])
    directory = CourseDirectory(config=config)
    api = NbGraderAPI(directory, config=config)
    for force in (True, False):  # formgrader's button forces it
        answer = api.autograde(NAME, "ann", force=force)
        assert not answer["success"] and "make grade SUBMISSIONS=folder" in answer["error"]
    assert graded.read_text() == "what grading made"
    assert not ran.exists()


def test_nbgraders_own_feedback_does_not_replace_the_pages(
    small: SmallClass, tmp_path: Path
) -> None:
    """Formgrader's button forces it, for all students of an assignment or for one."""
    config = course_config(small.solutions, tmp_path)
    graded = tmp_path / "autograded" / "ann" / NAME / f"{NAME}.ipynb"
    page = tmp_path / "feedback" / "ann" / NAME / f"{NAME}.html"
    for path in (graded, page):
        path.parent.mkdir(parents=True)
    nbformat.write(nbformat.v4.new_notebook(), graded)
    page.write_text("what grading made")
    ClassBook(tmp_path, small.solutions).register([NAME])
    api = NbGraderAPI(CourseDirectory(config=config), config=config)
    for student in (None, "ann"):
        answer = api.generate_feedback(NAME, student, force=True)
        assert not answer["success"] and "python -m autograder report" in answer["error"]
    assert page.read_text() == "what grading made"


def test_nbgrader_itself_finds_its_configuration(tmp_path: Path) -> None:
    name = assignments()[0]
    done = run(
        *("nbgrader", "generate_assignment", name, "--db", f"sqlite:///{tmp_path}/gradebook.db"),
        f"--CourseDirectory.release_directory={tmp_path}",
    )
    assert done.returncode == 0, done.stderr
    made = nbformat.read(tmp_path / name / f"{name}.ipynb", as_version=4)
    assert made == nbformat.read(NOTEBOOKS / name / f"{name}.ipynb", as_version=4)
