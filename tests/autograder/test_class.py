"""A class is graded: once each, in any order, and again only where something has changed."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import random
import shutil
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat import NotebookNode
from traitlets.config import Config

from autograder.__main__ import main
from autograder.book.entries import Entries
from autograder.book.gradebook import ClassBook
from autograder.book.standing import extensions, standings
from autograder.book.store import Store
from autograder.book.table import Row
from autograder.book.work import Work
from autograder.commands import penalties
from autograder.commands.full_disk import of_full_disk
from autograder.commands.grade import _said, _ungraded, _wanted
from autograder.course.config import ROOT, SettingsError, course_config
from autograder.course.kernels import prefer_this_environment
from autograder.course.twin import read_twin
from autograder.outcome import statuses
from autograder.outcome.limits import Limits
from autograder.outcome.result import Exercise, Result
from autograder.report.write import read_class, write_reports
from autograder.run.jobs import LocalWorkers, TaskError
from autograder.run.lock import BusyError, only_one
from autograder.run.progress import Progress
from autograder.run.schedule import Schedule
from autograder.run.session import Course, NotReadyError, Summary, grade_class
from autograder.submission.fingerprint import (
    of_course,
    of_exercise,
    of_library,
    of_shared,
    of_submission,
)
from autograder.submission.intake import HandedIn, Submission, find_submissions
from autograder.submission.own_files import _named, own_files
from autograder.submission.secret import SecretError, course_secret, seed
from course_lib.checks.judge.find import of_assignment
from tests.autograder import marking_double

TOY = Path(__file__).resolve().parents[1] / "toy/solutions/00_toy/00_toy.py"
SECRET = b"0123456789abcdef"
REGISTER = ClassBook.register

prefer_this_environment()
# nbgrader 0.9.6 with SQLAlchemy 2.1: harmless, and the command sends them to its log.
pytestmark = pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning")


class InThisProcess:
    """Workers without processes, for tests that need none: each call is done when it is submitted."""

    count = 1

    def __init__(self) -> None:
        self.calls = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]:
        self.calls += 1
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def shutdown(self) -> None:
        pass

    kill = shutdown


@dataclass
class Class:
    """The toy assignment and a class that hands it in. One that is graded by the double."""

    folder: Path
    grade_one: Callable[..., dict] = marking_double.grade
    said: io.StringIO = field(default_factory=io.StringIO)
    calls: int = 0  # submissions that were graded in the last run

    @property
    def out(self) -> Path:
        return self.folder / "out"

    @property
    def released(self) -> NotebookNode:
        path = self.folder / "solutions/00_toy/00_toy.ipynb"
        return nbformat.read(path, as_version=4)

    def hand_in(self, student: str, one: str = "", two: str = "", stamp: str = "") -> Path:
        """Write a submission with these directives for the double in its two exercises."""
        notebook = self.released
        for cell in notebook.cells:
            if cell["id"] in ("one", "two"):
                cell.source = one if cell["id"] == "one" else two
        folder = self.folder / "class" / student / "00_toy"
        folder.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, folder / "00_toy.ipynb")
        if stamp:
            (folder / "timestamp.txt").write_text(stamp)
        return folder / "00_toy.ipynb"

    def course(self, **changed: Any) -> Course:
        made = Course(self.folder / "solutions", self.out, SECRET, self.grade_one)
        return replace(made, **changed)

    def grade(
        self, workers: Any = None, order: Callable[[list], list] = list, **options: Any
    ) -> Summary:
        again, wanted = options.pop("again", False), options.pop("wanted", lambda _: True)
        strangers = options.pop("strangers", ())
        submissions, _ = find_submissions(self.folder / "class", ["00_toy"])
        used = workers or InThisProcess()
        summary = grade_class(
            order(submissions),
            self.course(**options),
            lambda: used,
            stream=self.said,
            again=again,
            strangers=strangers,
            wanted=wanted,
        )
        self.calls = summary.graded
        return summary

    def scores(self, **options: Any) -> dict[str, float | None]:
        return {row.student: row.score for row in self.grade(**options).rows}

    def table(self) -> list[dict[str, str]]:
        with open(self.out / "grades.csv", newline="") as file:
            return list(csv.DictReader(file))

    def book_scores(self, student: str) -> dict[str, float | None]:
        with ClassBook(self.out, self.folder / "solutions").open() as book:
            grades = book.find_submission("00_toy", student).notebooks[0].grades
            return {grade.name: grade.auto_score for grade in grades}


ALL, HALF, NONE = "# share: 1", "# share: 0.5", "# share: 0"


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy with its gradebook, made once: nbgrader takes a second for it."""
    folder = tmp_path_factory.mktemp("toy")
    source = folder / "solutions/00_toy"
    source.mkdir(parents=True)
    shutil.copy(TOY, source)
    nbformat.write(read_twin(TOY), source / "00_toy.ipynb")
    ClassBook(folder / "out", folder / "solutions").register(["00_toy"])
    return folder


@pytest.fixture
def toy(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Class:
    folder = tmp_path / "toy"
    shutil.copytree(template, folder)
    (folder / "class").mkdir()
    # The gradebook has been made; its own test lets it be made again.
    monkeypatch.setattr(ClassBook, "register", lambda self, names: "")
    # The library may be edited while its tests run.
    monkeypatch.setattr("autograder.run.session.fingerprint.of_shared", lambda *_: "the library")
    return Class(folder)


@pytest.fixture(scope="module")
def two_workers() -> Iterator[LocalWorkers]:
    with LocalWorkers(2) as workers:
        yield workers


class Lent:
    """Workers that serve several runs: a run that ends leaves them running."""

    def __init__(self, workers: LocalWorkers) -> None:
        self.workers, self.count, self.submit = workers, workers.count, workers.submit

    def shutdown(self) -> None:
        pass

    kill = shutdown


# ---- each student's grade


def test_each_submission_gets_its_row_and_everything_that_belongs_to_it(toy: Class) -> None:
    toy.hand_in("ann", ALL, HALF)
    toy.hand_in("bob", ALL, ALL)
    toy.hand_in("cem").write_bytes(b"{")
    toy.hand_in("dot").unlink()
    (toy.folder / "class/dot/00_toy/other.txt").write_text("left lying about")
    rows = {row.student: row for row in toy.grade().rows}
    assert [(row.score, row.max_score, row.status) for row in rows.values()] == [
        *((7, 10, statuses.GRADED), (10, 10, statuses.GRADED)),
        *((0, 10, statuses.UNREADABLE), (0, 10, statuses.MISSING)),
    ]
    assert rows["ann"].reason == "two_check: a share of 0.5"
    assert "not valid JSON" in rows["cem"].reason
    assert [(row["student"], row["score"]) for row in toy.table()] == [
        *(("ann", "7"), ("bob", "10"), ("cem", "0"), ("dot", "0")),
    ]
    assert toy.book_scores("ann") == {"one_check": 4, "two_check": 3}
    assert toy.book_scores("dot") == {"one_check": 0, "two_check": 0}
    assert (toy.out / "feedback/ann/00_toy/00_toy.html").read_text() == "7.0 points for ann"
    autograded = nbformat.read(toy.out / "autograded/ann/00_toy/00_toy.ipynb", as_version=4)
    assert HALF in [cell.source for cell in autograded.cells]
    assert not list(toy.out.rglob("other.txt"))


def test_the_gradebook_and_the_timestamp_of_a_submission_are_not_believed(toy: Class) -> None:
    folder = toy.hand_in("eve", NONE, NONE).parent
    shutil.copy(toy.out / "gradebook.db", folder / "gradebook.db")
    (folder / "timestamp.txt").write_text("the day before; DROP TABLE grade")
    assert toy.scores() == {"eve": 0}
    assert "timestamp.txt holds no date" in str(Store(toy.out).find("00_toy", "eve"))


def test_grades_do_not_depend_on_order_or_number(
    toy: Class, two_workers: LocalWorkers, seed: int
) -> None:
    draw = random.Random(seed)
    for number in range(8):
        toy.hand_in(f"student-{number}", f"# share: {draw.random():.3f}", HALF)
    alone = toy.scores()
    results = [one.to_json() for one in Store(toy.out).all()]
    for workers in (InThisProcess(), Lent(two_workers)):
        shuffled = toy.grade(workers, lambda all: draw.sample(all, len(all)), again=True)
        assert {row.student: row.score for row in shuffled.rows} == alone
        assert [one.to_json() for one in Store(toy.out).all()] == results
    assert toy.calls == 8


def test_the_longest_assignment_goes_first_and_the_table_keeps_its_order(toy: Class) -> None:
    """The times are those of the first run. In the first one, each assignment has its turn first."""
    took, order = {"00_toy": 1.0, "01_long": 100.0}, []
    shutil.copytree(toy.folder / "solutions/00_toy", toy.folder / "solutions/01_long")
    for path in (toy.folder / "solutions/01_long").iterdir():
        path.rename(path.with_name(path.name.replace("00_toy", "01_long")))
    REGISTER(ClassBook(toy.out, toy.folder / "solutions"), list(took))
    for student in ("ann", "bob", "cem"):
        path = toy.hand_in(student, ALL, HALF)
        folder = path.parents[1] / "01_long"
        folder.mkdir()
        shutil.copy(path, folder / "01_long.ipynb")

    def grade(work: Work) -> dict[str, Any]:
        order.append((work.student, work.assignment))
        done = marking_double.grade(work)
        return done | {"result": done["result"] | {"seconds": took[work.assignment]}}

    submissions, _ = find_submissions(toy.folder / "class", list(took))
    handed_in = [(submission.student, submission.assignment) for submission in submissions]
    assert handed_in == [(student, name) for student in ("ann", "bob", "cem") for name in took]
    tables = []
    for again in (False, True):
        summary = grade_class(
            submissions, toy.course(grade=grade), InThisProcess, stream=toy.said, again=again
        )
        assert [(row.student, row.assignment) for row in summary.rows] == handed_in
        tables.append((toy.out / "grades.csv").read_bytes())
    first, second = order[:6], order[6:]
    assert first[:2] == [("ann", "00_toy"), ("ann", "01_long")]
    assert [name for _, name in second] == ["01_long"] * 3 + ["00_toy"] * 3
    assert sorted(second) == sorted(first) == handed_in and tables[0] == tables[1]


# ---- submissions that are graded again


def test_only_what_has_changed_is_graded_again(toy: Class) -> None:
    for student in ("ann", "bob"):
        toy.hand_in(student, ALL, HALF)
    before = toy.scores()
    assert toy.calls == 2
    table = toy.table()
    assert (toy.scores(), toy.calls) == (before, 0)
    assert toy.table() == table
    toy.hand_in("bob", ALL, ALL)
    summary = toy.grade()
    assert toy.calls == 1
    assert summary.changes == ["bob 00_toy: 7 points before, 10 points now"]
    assert (toy.out / "results/last-changes").read_text().splitlines() == summary.changes
    assert toy.grade().changes == []


CHANGES: dict[str, Callable[[Class], dict[str, Any]]] = {
    "a limit": lambda toy: {"limits": Limits(cell=7)},
    "the secret": lambda toy: {"secret": b"another secret of the course"},
    "the sandbox": lambda toy: {"sandbox": "off"},
    "everything again": lambda toy: {"again": True},
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_grade_depends_on_makes_it_due(toy: Class, change: str) -> None:
    toy.hand_in("ann", ALL, ALL)
    toy.grade()
    toy.grade(**CHANGES[change](toy))
    assert toy.calls == 1


def test_a_time_stamp_or_a_remark_makes_a_grade_due(toy: Class) -> None:
    path = toy.hand_in("ann", ALL, ALL)
    toy.grade()
    (path.parent / "timestamp.txt").write_text("2026-11-21 10:00:00 UTC")
    toy.grade()
    assert toy.calls == 1
    path.rename(path.with_name("renamed.ipynb"))
    toy.grade()
    assert toy.calls == 1
    assert "handed in as renamed.ipynb" in str(Store(toy.out).find("00_toy", "ann"))


def test_the_source_makes_all_grades_due(toy: Class) -> None:
    toy.hand_in("ann", ALL, ALL)
    toy.grade()
    source = toy.folder / "solutions/00_toy/00_toy.ipynb"
    source.write_text(source.read_text().replace("A toy assignment", "A toy"))
    toy.grade()
    assert toy.calls == 1


def with_reports(work: Work) -> dict:
    """The double's grading, as if a check had judged each exercise; known exercises are not judged again."""
    done = marking_double.grade(work)
    known = {one.grade_id: asdict(one) for one in work.known}
    for one in done["result"]["exercises"]:
        one["report"] = {"name": one["name"], "by_chance": False}
    done["result"]["exercises"] = [
        known.get(one["grade_id"], one) for one in done["result"]["exercises"]
    ]
    return done


def test_a_change_of_one_check_lets_that_exercise_be_judged_again(
    toy: Class, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = {"00_toy/one_check": "a", "00_toy/two_check": "b"}
    monkeypatch.setattr(
        "autograder.run.session.fingerprint.of_exercise", lambda check: marks[check]
    )
    given: list[list[str]] = []

    def grade(work: Work) -> dict:
        given.append([one.grade_id for one in work.known])
        return with_reports(work)

    toy.grade_one = grade
    toy.hand_in("ann", ALL, HALF)
    toy.hand_in("bob", NONE, HALF)
    before = toy.scores()
    assert given == [[], []]
    assert toy.scores() == before
    assert toy.calls == 0
    marks["00_toy/two_check"] = "c"
    given.clear()
    summary = toy.grade()
    assert given == [["one_check"], ["one_check"]]
    assert {row.student: row.score for row in summary.rows} == before
    assert (
        "Judged again, since nothing but these checks has changed: 00_toy/two_check (2)."
        in summary.notes
    )
    given.clear()
    toy.hand_in("bob", NONE, ALL)  # something else has changed too: everything is judged
    marks["00_toy/one_check"] = "d"
    toy.grade()
    assert given == [["two_check"], []]
    given.clear()
    toy.grade(again=True)
    assert given == [[], []]


def test_verdicts_that_an_interrupted_run_set_aside_are_known(
    toy: Class, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = {"00_toy/one_check": "a", "00_toy/two_check": "b"}
    monkeypatch.setattr(
        "autograder.run.session.fingerprint.of_exercise", lambda check: marks[check]
    )
    given: list[list[str]] = []

    def grade(work: Work) -> dict:
        given.append([one.grade_id for one in work.known])
        if len(given) == 2:
            raise KeyboardInterrupt
        return with_reports(work)

    toy.grade_one = grade
    toy.hand_in("ann", ALL, HALF)
    before = toy.scores()
    marks["00_toy/one_check"] = "c"
    with pytest.raises(KeyboardInterrupt):
        toy.grade()
    assert Store(toy.out).find("00_toy", "ann") is None
    assert toy.scores() == before
    assert given == [[], ["two_check"], ["two_check"]]


def test_what_rests_on_a_limit_is_judged_again_with_the_others(
    toy: Class, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = {"00_toy/one_check": "a", "00_toy/two_check": "b"}
    monkeypatch.setattr(
        "autograder.run.session.fingerprint.of_exercise", lambda check: marks[check]
    )
    given: list[list[str]] = []

    def grade(work: Work) -> dict:
        given.append([one.grade_id for one in work.known])
        done = with_reports(work)
        done["result"]["exercises"][0]["limit"] = statuses.TIMED_OUT
        return done

    toy.grade_one = grade
    toy.hand_in("ann", ALL, HALF)
    toy.grade()
    marks["00_toy/two_check"] = "c"
    toy.grade()
    assert given == [[], []]


def test_an_exercise_rests_on_its_own_files_and_all_rest_on_the_others(tmp_path: Path) -> None:
    checks = tmp_path / "course_lib/checks"
    for file, text in {
        "judge/case.py": "",
        "notebooks/toy/__init__.py": "from course_lib.checks.notebooks.toy.one import first\n"
        "from course_lib.checks.notebooks.toy.two import second\n",
        "notebooks/toy/one.py": "from course_lib.checks.judge import case\n",
        "notebooks/toy/two.py": "def cases():\n    from course_lib.checks.notebooks.toy import words\n",
        "notebooks/toy/words.py": "import course_lib.checks.notebooks.other.deep\n",
        "notebooks/other/__init__.py": "",
        "notebooks/other/deep.py": "",
    }.items():
        (checks / file).parent.mkdir(parents=True, exist_ok=True)
        (checks / file).write_text(text)

    def own(check: str) -> list[str]:
        return [str(file.relative_to("course_lib/checks")) for file in own_files(check, tmp_path)]

    assert own("00_toy/first") == ["notebooks/toy/one.py"]
    assert own("00_toy/second") == [
        "notebooks/other/deep.py",
        "notebooks/toy/two.py",
        "notebooks/toy/words.py",
    ]
    assert len(own("00_toy/third")) == 6  # cannot be found: all exercises' files
    (tmp_path / "autograder").mkdir()

    def marks() -> list[str]:
        checks = [of_exercise(f"00_toy/{one}", tmp_path) for one in ("first", "second")]
        return [of_shared(tmp_path), *checks]

    before = marks()
    for file, differs in {
        "judge/case.py": [True, False, False],
        "notebooks/toy/one.py": [False, True, False],
        "notebooks/toy/words.py": [False, False, True],
    }.items():
        with (checks / file).open("a") as changed:
            changed.write("# changed\n")
        after = marks()
        assert [one != other for one, other in zip(before, after, strict=True)] == differs
        before = after


LOADED = """
import importlib, json, sys, types
from pathlib import Path
import course_lib.checks.notebooks as notebooks
from course_lib.checks.judge.find import find
root = Path(notebooks.__path__[0])
topics = [one.name for one in root.iterdir() if one.is_dir() and one.name[0] != "_"]

def ours():
    homes = tuple(f"{notebooks.__name__}.{topic}" for topic in topics)
    return [one for one in sys.modules if one.startswith(homes)]

found = {}
for name in json.loads(sys.argv[1]):
    for one in ours():
        del sys.modules[one]
    home = find(name).cases.__module__
    for one in ours():
        del sys.modules[one]
    for topic in topics:  # packages that import nothing of what they hold
        package = types.ModuleType(f"course_lib.checks.notebooks.{topic}")
        package.__path__ = [str(root / topic)]
        sys.modules[package.__name__] = package
    importlib.import_module(home)
    found[name] = sorted(sys.modules[one].__file__ for one in ours() if hasattr(sys.modules[one], "__file__"))
print(json.dumps(found))
"""


def test_own_files_are_those_that_are_loaded_for_an_exercise() -> None:
    known = [
        f"{folder.name}/{name}"
        for folder in sorted((ROOT / "tests/mutants").iterdir())
        if folder.is_dir()
        for name in of_assignment(folder.name)
    ]
    ran = subprocess.run(
        [sys.executable, "-c", LOADED, json.dumps(known)],
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    loaded = json.loads(ran.stdout)
    assert set(loaded) == set(known)
    for check, files in loaded.items():
        assert set(files) <= {str(ROOT / one) for one in own_files(check, ROOT)}, check
    everything = {one for check in known for one in own_files(check, ROOT)}
    assert all(len(own_files(check, ROOT)) < len(everything) / 3 for check in known)


@pytest.mark.parametrize(
    "assignment", sorted(path.name for path in (ROOT / "notebooks").glob("[0-9]*"))
)
def test_a_changed_check_leaves_other_verdicts_of_its_notebook(assignment: str) -> None:
    """Things that all checks of a notebook share are in a file that checks no exercise."""
    own = {name: own_files(f"{assignment}/{name}", ROOT) for name in of_assignment(assignment)}
    folder = Path("course_lib", "checks", "notebooks", assignment.partition("_")[2])
    homes = {name: next(iter(_named(folder, name, ROOT))) for name in own}
    assert all(home in own[name] for name, home in homes.items())
    shared = [home for home in homes.values() if all(home in files for files in own.values())]
    assert not shared


def test_every_field_counts_in_a_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "course_lib").mkdir()
    (tmp_path / "autograder/out").mkdir(parents=True)
    (tmp_path / "course_lib/a.py").write_text("a")
    library = of_library(tmp_path)
    (tmp_path / "autograder/out/grades.csv").write_text("made by grading")
    (tmp_path / "course_lib/__pycache__").mkdir()
    (tmp_path / "course_lib/__pycache__/a.pyc").write_text("made by Python")
    assert of_library(tmp_path) == library
    (tmp_path / "course_lib/a.py").write_text("b")
    assert of_library(tmp_path) != library
    course = of_course(library, SECRET, Limits(), "auto")
    base: list[Any] = [course, "source", "released", "ann", "00_toy", HandedIn(b"text", "", ["x"])]
    others = [
        *([*base[:index], base[index] + "+", *base[index + 1 :]] for index in range(5)),
        [*base[:5], HandedIn(b"text+", "", ["x"])],
        [*base[:5], HandedIn(b"text", "+", ["x"])],
        [*base[:5], HandedIn(b"text", "", ["x+"])],
        [*base[:5], HandedIn(b"text", "", ["x", ""])],
        [course, "sourcer", "eleased", *base[3:]],
    ]
    assert len({of_submission(*fields) for fields in [base, *others]}) == 1 + len(others)


# ---- failures of the grader


def test_a_failure_of_the_grader_is_ungraded_and_tried_again(
    toy: Class, two_workers: LocalWorkers
) -> None:
    toy.hand_in("ann", ALL, ALL)
    toy.grade()
    toy.hand_in("ann", "# raise", ALL)
    toy.hand_in("bob", ALL, ALL)
    toy.hand_in("cem", "# die", ALL)
    summary = toy.grade(Lent(two_workers))
    ann, bob, cem = summary.rows
    assert (ann.score, ann.status) == (None, statuses.UNGRADED)
    assert "the grading failed (ValueError: the grader has a fault)" in ann.reason
    assert (bob.score, bob.status) == (10, statuses.GRADED)
    assert (cem.score, cem.status) == (None, statuses.UNGRADED)
    assert "exit code 9" in cem.reason
    assert summary.ungraded == 2
    assert toy.book_scores("ann") == {"one_check": None, "two_check": None}
    assert not (toy.out / "feedback/ann/00_toy/00_toy.html").exists()
    assert [row["score"] for row in toy.table()] == ["", "10", ""]
    toy.hand_in("ann", HALF, ALL)
    assert toy.scores(workers=Lent(two_workers)) == {"ann": 8, "bob": 10, "cem": None}
    assert toy.calls == 2  # cem is tried again in every run, bob is not


def test_a_worker_that_dies_once_costs_nobody_anything(
    toy: Class, two_workers: LocalWorkers
) -> None:
    toy.hand_in("ann", f"# die once: {toy.folder / 'flag'}\n{ALL}", ALL)
    toy.hand_in("bob", ALL, ALL)
    assert toy.scores(workers=Lent(two_workers)) == {"ann": 10, "bob": 10}


def test_of_those_who_are_not_wanted_nothing_changes(toy: Class) -> None:
    for student in ("ann", "bob", "cem"):
        toy.hand_in(student, HALF, ALL)
    toy.grade(wanted=lambda one: one.student != "cem")
    assert [row["score"] for row in toy.table()] == ["8", "8", ""]
    for student in ("ann", "bob"):
        toy.hand_in(student, ALL, ALL)
    summary = toy.grade(wanted=lambda one: one.student == "bob")
    assert summary.graded == 1
    assert [(row.student, row.score) for row in summary.rows] == [
        ("ann", 8),
        ("bob", 10),
        ("cem", None),
    ]
    assert [row["score"] for row in toy.table()] == ["8", "10", ""]
    assert (toy.out / "feedback/ann/00_toy/00_toy.html").read_text() == "8.0 points for ann"
    assert toy.book_scores("ann") == {"one_check": 2, "two_check": 6}
    assert toy.scores() == {"ann": 10, "bob": 10, "cem": 8}
    assert toy.calls == 2, "bob has not changed since"


@pytest.mark.parametrize(
    ("student", "assignment", "wanted", "said"),
    [
        (None, None, ["ann 00_a", "ann 02_b", "bob 00_a"], ""),
        (["bob"], None, ["bob 00_a"], ""),
        (["ann", "bob"], ["02"], ["ann 02_b"], ""),
        (None, ["00_a", "02"], ["ann 00_a", "ann 02_b", "bob 00_a"], ""),
        (
            ["ben"],
            None,
            [],
            "No student and no assignment of this class is called ben. The students are ann, bob. "
            "The assignments are 00_a, 02_b.",
        ),
        (
            ["ann"],
            ["03", "02"],
            [],
            "No student and no assignment of this class is called 03. The students are ann, bob. "
            "The assignments are 00_a, 02_b.",
        ),
        (["bob"], ["02"], [], "None of these students handed in one of these assignments."),
    ],
)
def test_students_and_assignments_are_chosen_by_name(
    student: list | None, assignment: list | None, wanted: list, said: str,
    capsys: pytest.CaptureFixture,
) -> None:  # fmt: skip
    there = [
        Submission(*one, Path()) for one in (("ann", "00_a"), ("ann", "02_b"), ("bob", "00_a"))
    ]
    found = _wanted(there, Namespace(student=student, assignment=assignment))
    assert sorted(f"{one.student} {one.assignment}" for one in found) == wanted
    assert capsys.readouterr().err.strip() == said


def test_what_nobody_asked_for_is_no_failure() -> None:
    """Of a class that is graded for the first time, one assignment alone: the command ends well."""
    there = {Submission("ann", "00_a", Path()), Submission("bob", "00_a", Path())}
    rows = [
        Row("ann", "00_a", 8, 10, statuses.GRADED, ""),
        Row("bob", "00_a", 9, 10, statuses.GRADED, ""),
        Row("ann", "02_b", None, 60, statuses.UNGRADED, "not graded yet"),
    ]
    summary = Summary(rows, graded=2)
    assert _ungraded(summary, there) == 0
    said = _said(summary, there, Path("out"))
    assert said[0] == "Left as they were: 1; without a grade so far: 1."
    assert not any("got no grade" in line for line in said)
    everybody = there | {Submission("ann", "02_b", Path())}
    assert _ungraded(summary, everybody) == 1
    assert _said(summary, everybody, Path("out"))[-1].startswith("1 of 3 submissions got no grade")


def test_what_ran_out_of_time_is_graded_once_more_when_all_others_are_done(
    toy: Class, two_workers: LocalWorkers
) -> None:
    log = toy.folder / "log"
    toy.hand_in("ann", f"# late: {toy.folder / 'ann'}\n# log: {log}\n{ALL}", ALL)
    toy.hand_in("bob", f"# late: {toy.folder / 'bob'}\n# log: {log}\n# sleep: 0.3\n{ALL}", ALL)
    for student in ("cem", "dan", "eve"):
        toy.hand_in(student, f"# log: {log}\n{ALL}", ALL)
    assert set(toy.scores(workers=Lent(two_workers)).values()) == {10}
    order = log.read_text().split()
    assert sorted(order[:5]) == ["ann", "bob", "cem", "dan", "eve"]
    assert sorted(order[5:]) == ["ann", "bob"], "once more, behind everybody, and not for ever"
    assert toy.said.getvalue().count("it is graded once more, alone") == 2
    assert [row["status"] for row in toy.table()][:2] == [statuses.TIMED_OUT] * 2
    assert toy.calls == 5 and toy.grade().graded == 0, "the verdict of a run alone is believed"


def test_nothing_is_written_of_what_is_not_believed_yet(toy: Class) -> None:
    """The run after an interrupted one grades such a submission again."""
    toy.hand_in("ann", f"# late: {toy.folder / 'ann'}\n{ALL}", ALL)
    workers = InThisProcess()
    submit = workers.submit

    def once(fn: Callable[..., Any], /, *args: Any) -> Future[Any]:
        if workers.calls:
            raise KeyboardInterrupt
        return submit(fn, *args)

    workers.submit = once
    with pytest.raises(KeyboardInterrupt):
        toy.grade(workers)
    assert not list(toy.out.rglob("*ann*.json"))
    assert toy.scores() == {"ann": 10}


def test_what_cannot_be_read_on_this_machine_is_ungraded(
    toy: Class, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy.hand_in("ann", ALL, ALL)
    toy.grade()

    def fail(*_: Any) -> None:
        raise OSError(5, "Input/output error")

    for reader in ("session", "earlier"):
        monkeypatch.setattr(f"autograder.run.{reader}.collect", fail)
    (row,) = toy.grade().rows
    assert (row.score, row.status) == (None, statuses.UNGRADED)
    assert "Input/output error" in row.reason
    monkeypatch.undo()


def test_a_run_that_is_stopped_loses_nothing_and_is_carried_on(toy: Class) -> None:
    for number in range(4):
        toy.hand_in(f"student-{number}", ALL, ALL)
    toy.grade()
    for number in range(4):
        toy.hand_in(f"student-{number}", HALF, HALF)

    class Interrupted(InThisProcess):
        def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]:
            if self.calls == 3:
                raise KeyboardInterrupt
            return super().submit(fn, *args)

    with pytest.raises(KeyboardInterrupt):
        toy.grade(Interrupted())
    seen = [row["score"] for row in toy.table()]
    assert sorted(set(seen)) in (["", "5"], [""])  # a new score or none, never the old one
    for number, score in enumerate(seen):
        held = toy.book_scores(f"student-{number}")
        assert held["one_check"] == (2 if score else None)
    summary = toy.grade()
    assert {row.score for row in summary.rows} == {5}
    assert summary.graded == seen.count("")
    assert len(summary.changes) == 4  # against the last complete run


def test_only_one_run_writes_into_a_folder(toy: Class) -> None:
    toy.hand_in("ann", ALL, ALL)
    with only_one(toy.out), pytest.raises(BusyError, match="another run"):
        toy.grade()
    assert toy.scores() == {"ann": 10}


def test_workers_that_cannot_grade_touch_nothing(toy: Class) -> None:
    toy.hand_in("ann", ALL, ALL)
    toy.grade()
    toy.hand_in("ann", HALF, HALF)

    def not_ready(*_: Any) -> list[str]:
        raise TaskError("SandboxError: none is to be had", "its traceback")

    with pytest.raises(NotReadyError, match="none is to be had"):
        toy.grade(ready=not_ready)
    assert [row["score"] for row in toy.table()] == ["10"]
    assert toy.scores(ready=lambda *_: ["user", "net"]) == {"ann": 5}
    assert "Sandbox: user, net." in toy.said.getvalue()


# ---- the gradebook


def entered(toy: Class, config: Config | None = None) -> Any:
    return Entries(ClassBook(toy.out, toy.folder / "solutions").open().__enter__(), config)


def result(one: float, two: float, what: str = statuses.GRADED) -> Result:
    exercises = [Exercise("one_check", "", one, 4), Exercise("two_check", "", two, 6)]
    return Result("ann", "00_toy", what, exercises=exercises if what == statuses.GRADED else [])


def rows_of(entries: Entries) -> list[Any]:
    """The gradebook's rows of grades, submissions and comments."""
    tables = ("grade", "comment", "submitted_assignment", "submitted_notebook", "student")
    from sqlalchemy import text

    return [sorted(map(str, entries.db.execute(text(f"SELECT * FROM {one}")))) for one in tables]


def test_entering_twice_changes_nothing(toy: Class) -> None:
    entries = entered(toy)
    total = entries.enter(result(4, 3), stamp="2026-11-21 10:00:00 UTC", untouched=["two"])
    assert (total.score, total.maximum) == (7, 10)
    before = rows_of(entries)
    assert entries.enter(result(4, 3), stamp="2026-11-21 10:00:00 UTC", untouched=["two"]) == total
    assert rows_of(entries) == before
    assert entries.holds(result(4, 3)) and not entries.holds(result(4, 4))
    comments = entries.book.find_submission("00_toy", "ann").notebooks[0].comments
    assert {one.name: one.auto_comment for one in comments} == {"one": None, "two": "No response."}


def test_scores_by_hand_and_comments_stay(toy: Class) -> None:
    entries = entered(toy)
    entries.enter(result(0, 3), stamp="")
    grade = entries.book.find_grade("one_check", "00_toy", "00_toy", "ann")
    grade.manual_score, grade.extra_credit, grade.needs_manual_grade = 3.0, 0.5, False
    comment = entries.book.find_comment("one", "00_toy", "00_toy", "ann")
    comment.manual_comment = "Nearly."
    entries.db.commit()
    assert entries.enter(result(0, 3)).score == 6.5
    entries.clear([("ann", "00_toy")])
    assert entries.total("ann", "00_toy").score == 3.5
    assert entries.enter(result(4, 6), untouched=["one"]).score == 9.5
    entries.db.expire_all()
    assert (grade.auto_score, grade.manual_score, grade.needs_manual_grade) == (4, 3, True)
    assert comment.comment == "Nearly."


def type_a_score(toy: Class, student: str, points: float) -> None:
    """As a person does in formgrader."""
    with ClassBook(toy.out, toy.folder / "solutions").open() as book:
        book.find_grade("one_check", "00_toy", "00_toy", student).manual_score = points
        book.db.commit()


def test_points_by_hand_of_an_earlier_submission_are_listed_for_eyes(toy: Class) -> None:
    toy.hand_in("ann", HALF, HALF)
    toy.grade()
    type_a_score(toy, "ann", 3)
    toy.grade(again=True)
    assert Store(toy.out).find("00_toy", "ann").eyes == [], "the checks give what they gave then"
    toy.hand_in("ann", ALL, HALF)
    said = "the 3 points by hand are of an earlier submission; the checks now give 4 of 4"
    for _ in range(2):  # and again, until a person changes them
        toy.grade(again=True)
        (eye,) = Store(toy.out).find("00_toy", "ann").eyes
        assert eye.endswith(said)
    type_a_score(toy, "ann", 4)
    toy.grade(again=True)
    assert Store(toy.out).find("00_toy", "ann").eyes == []


def test_the_sample_leaves_a_folder_into_which_it_was_mixed(toy: Class) -> None:
    """An older version graded both into one folder. Scores that were typed there are kept in a copy."""
    toy.hand_in("sample-perfect", ALL, ALL)
    toy.grade()
    type_a_score(toy, "sample-perfect", 3.0)
    for name in ("feedback", "gradescope"):
        (toy.out / name / "sample-perfect/00_toy").mkdir(parents=True, exist_ok=True)
    (toy.out / "results/09_only_of_the_sample").mkdir()
    (toy.out / "results/09_only_of_the_sample/sample-perfect.json").write_text("{}")
    shutil.rmtree(toy.folder / "class/sample-perfect")
    toy.hand_in("ann", ALL, HALF)
    summary = toy.grade(strangers=["sample-perfect"])
    assert [row.student for row in summary.rows] == ["ann"]
    left = [path for path in toy.out.rglob("*") if "sample" in str(path.relative_to(toy.out))]
    assert left == []
    (kept,) = toy.out.glob("gradebook-until-*.db")
    assert summary.notes == [
        f"A copy of the gradebook holds your entries for sample-perfect: {kept}."
    ]
    assert standings(kept, "00_toy")["sample-perfect"].by_hand["one_check"].points == 3.0
    assert set(standings(toy.out / "gradebook.db", "00_toy")) == {"ann"}


def moved(toy: Class) -> Path:
    """ann was graded, with a score, extra credit and a name of a person; then the work was moved."""
    notebook = toy.hand_in("ann", ALL, HALF)
    toy.hand_in("bob", ALL, ALL)
    toy.grade()
    with ClassBook(toy.out, toy.folder / "solutions").open() as book:
        grade = book.find_grade("one_check", "00_toy", "00_toy", "ann")
        grade.manual_score, grade.extra_credit = 3.0, 1.5
        book.find_student("ann").first_name = "Ann"
        book.db.commit()
    (toy.folder / "class/ann").rename(toy.folder / "class/dupont")
    return notebook


def test_a_changed_grade_with_points_by_hand_is_told_with_what_the_table_says(toy: Class) -> None:
    toy.hand_in("ann", ALL, HALF)
    toy.grade()
    type_a_score(toy, "ann", 3.0)
    toy.hand_in("ann", ALL, ALL)
    summary = toy.grade()
    own = summary.rows[0].score
    assert own is not None and own < 10
    assert summary.changes == [
        f"ann 00_toy: 7 points before, 10 points now ({own:g} points in the table, with what was entered "
        "in the gradebook)"
    ]


def test_a_grade_without_work_in_this_folder_is_named(toy: Class) -> None:
    moved(toy)
    (note,) = toy.grade().notes
    assert note.startswith("ann has a grade in 00_toy from an earlier run and handed in nothing in")
    assert "for another section" in note and "python -m autograder forget NAME" in note
    assert Store(toy.out).find("00_toy", "ann") is not None


@pytest.mark.parametrize("which", [[], ["--assignment", "00"]], ids=["all", "one"])
def test_a_student_is_forgotten_after_a_question(
    toy: Class,
    which: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    moved(toy)
    toy.grade()
    line = ["forget", "ann", *which, "--out", str(toy.out)]
    for answer, code in (("no\n", 1), ("forget\n", 0)):
        assert (toy.out / "submitted/ann/00_toy/00_toy.ipynb").is_file()
        terminal = io.StringIO(answer)
        monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
        monkeypatch.setattr("sys.stdin", terminal)
        assert main(line) == code
    said = capsys.readouterr().out
    names = "" if which else " and names or addresses of 1 student"
    joined = (
        "1 score, extra credit for 1 exercise"
        if names
        else "1 score and extra credit for 1 exercise"
    )
    assert f"With them go {joined}{names} that people entered in the gradebook." in said
    assert sorted(standings(toy.out / "gradebook.db", "00_toy")) == ["bob", "dupont"]
    (kept,) = toy.out.glob("gradebook-until-*.db")
    assert standings(kept, "00_toy")["ann"].by_hand["one_check"].extra == 1.5
    assert Store(toy.out).find("00_toy", "ann") is None
    assert not (toy.out / "feedback/ann").exists() and not (toy.out / "submitted/ann").exists()
    assert len(list((toy.out / "forgotten").glob("ann-*/00_toy/00_toy.ipynb"))) == 1
    assert (toy.folder / "class/dupont/00_toy/00_toy.ipynb").is_file()
    assert [row["student"] for row in toy.table()] == ["bob", "dupont"]
    assert "ann" not in (toy.out / "exercises.csv").read_text()
    assert toy.grade().notes == []
    assert main(line) == 2
    assert "holds no grade of ann. It has grades of bob, dupont." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("what", "scores"),
    [(statuses.UNGRADED, None), (statuses.MISSING, 0.0), (statuses.UNREADABLE, 0.0)],
)
def test_without_exercises_the_old_scores_go(toy: Class, what: str, scores: float | None) -> None:
    entries = entered(toy)
    entries.enter(result(4, 6))
    entries.enter(result(0, 0, what))
    entries.db.expire_all()
    grades = entries.book.find_submission("00_toy", "ann").notebooks[0].grades
    assert {grade.auto_score for grade in grades} == {scores}
    assert {grade.needs_manual_grade for grade in grades} == {scores is None}


@pytest.mark.parametrize("points", [float("nan"), float("inf"), -1.0, 99.0])
def test_points_beyond_what_there_is_are_not_believed(toy: Class, points: float) -> None:
    total = entered(toy).enter(result(points, 0))
    assert total.score == (4 if points == 99 else 0)


def test_an_entry_that_fails_changes_nothing(toy: Class, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = entered(toy)
    entries.enter(result(4, 6))
    before = rows_of(entries)

    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(entries, "_set_penalty", fail)
    with pytest.raises(KeyboardInterrupt):
        entries.enter(result(0, 0), stamp="2026-11-21 10:00:00 UTC")
    assert rows_of(entries) == before


def test_late_penalties_are_nbgraders_own(toy: Class) -> None:
    config = Config({"LateSubmissionPlugin": {"penalty_method": "zero"}})
    entries = entered(toy, config)
    entries.book.update_or_create_assignment("00_toy", duedate=datetime(2026, 11, 20))
    entries = Entries(entries.book, config)
    in_time, late = "2026-11-19 10:00:00 UTC", "2026-11-21 10:00:00 UTC"
    assert entries.enter(result(4, 3), stamp=in_time).score == 7
    assert entries.enter(result(4, 3), stamp=late).score == 0
    assert entries.total("ann", "00_toy").penalty == 7
    assert entries.enter(result(4, 6)).penalty == 10  # the time stamp is still there
    entries.book.grant_extension("00_toy", "ann", days=3)
    assert entries.enter(result(4, 6)).score == 10
    assert Entries(entries.book).enter(result(4, 6), stamp=late).penalty == 0  # the default: none


def test_a_penalty_shows_in_the_table(toy: Class) -> None:
    entries = entered(toy)
    entries.book.update_or_create_assignment("00_toy", duedate=datetime(2026, 11, 20))
    toy.hand_in("ann", ALL, ALL, stamp="2026-11-21 10:00:00 UTC")
    config = Config({"LateSubmissionPlugin": {"penalty_method": "zero"}})
    for _ in range(2):  # when it is graded, and when its grade is kept
        (row,) = toy.grade(config=config).rows
        assert (row.score, row.reason) == (0, "10 taken off for being late.")
    write_reports(read_class(toy.out, Store(toy.out).all()), notebooks=toy.folder / "notebooks")
    assert "10 taken off for being late." in (toy.out / "class.html").read_text()


def test_work_without_a_time_stamp_is_named_if_it_is_due_at_a_time(toy: Class) -> None:
    """In the table and on the class page, also without a penalty, since a person may want to know."""
    said = "No time stamp says whether it was late."
    toy.hand_in("ann", ALL, ALL, stamp="2026-11-21 10:00:00 UTC")
    toy.hand_in("ben", HALF, ALL)
    (toy.folder / "class/cai/00_toy").mkdir(parents=True)  # handed in nothing
    assert not any(said in row.reason for row in toy.grade().rows), "it is not due at any time"
    entered(toy).book.update_or_create_assignment("00_toy", duedate=datetime(2026, 11, 20))
    for again in (False, True):  # its grade is kept, or it is graded
        rows = {row.student: row for row in toy.grade(again=again).rows}
        assert rows["ben"].reason.startswith(f"{said} ") and len(rows["ben"].reason) > len(said)
        assert said not in rows["ann"].reason + rows["cai"].reason
    write_reports(read_class(toy.out, Store(toy.out).all()), notebooks=toy.folder / "notebooks")
    page = (toy.out / "class.html").read_text()
    assert page.count(said) == 1
    assert (
        "1 submission has no time stamp, so no points can be taken off for being late: ben." in page
    )


def test_a_penalty_and_points_by_hand_are_changes_though_nothing_is_graded_again(
    toy: Class,
) -> None:
    entries = entered(toy)
    entries.book.update_or_create_assignment("00_toy", duedate=datetime(2026, 11, 20))
    toy.hand_in("ann", ALL, ALL, stamp="2026-11-21 10:00:00 UTC")
    toy.hand_in("ben", "# share: 0.25", NONE)
    assert toy.grade().changes == []
    type_a_score(toy, "ben", 5)
    config = Config({"LateSubmissionPlugin": {"penalty_method": "zero"}})
    summary = toy.grade(config=config)
    why = "because points by hand, a time stamp, a due date, an extension or a penalty changed"
    assert summary.graded == 0 and summary.changes == [
        f"ann 00_toy: 10 points before, 0 points now, {why}",
        f"ben 00_toy: 1 point before, 5 points now, {why}",
    ]
    (untimed,) = [note for note in summary.notes if "time stamp" in note]
    assert untimed.startswith("00_toy: 1 submission without a time stamp.")
    assert toy.grade(config=config).changes == []
    Store(toy.out).forget("ann")
    assert "ann" not in (toy.out / "results/last-scores").read_text()


CANVAS = """Student,ID,SIS User ID,SIS Login ID,Section,00_toy (7)
"Ng, Ann",1,,ann,A,
"""


@pytest.fixture
def late(toy: Class, monkeypatch: pytest.MonkeyPatch) -> Class:
    """ann has lost all her points for being late, and then got one more by hand."""
    config = Config({"LateSubmissionPlugin": {"penalty_method": "zero"}})
    entered(toy).book.update_or_create_assignment("00_toy", duedate=datetime(2026, 11, 20))
    toy.hand_in("ann", HALF, HALF, stamp="2026-11-21 10:00:00 UTC")
    toy.hand_in("bob", HALF, HALF)
    assert toy.scores(config=config) == {"ann": 0, "bob": 5}
    type_a_score(toy, "ann", 3)
    monkeypatch.setattr(penalties, "course_config", lambda *_: config)
    return toy


def test_report_takes_the_penalty_from_the_points_that_there_are_now(
    late: Class, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the last run's penalty, work that should have no points would have the new ones."""
    assert main(["report", "--out", str(late.out)]) == 0
    assert [row["score"] for row in late.table()] == ["0", "5"]
    assert "6 taken off for being late." in (late.out / "class.html").read_text()
    monkeypatch.setattr(penalties, "course_config", lambda *_: Config())  # it was taken back
    assert main(["report", "--out", str(late.out)]) == 0
    assert [row["score"] for row in late.table()] == ["6", "5"]


def test_an_export_and_a_run_over_others_do_so_too(late: Class) -> None:
    roster = late.folder / "roster.csv"
    roster.write_text(CANVAS)
    assert main(["export", "canvas", str(roster), "--out", str(late.out)]) == 0
    assert '"Ng, Ann",1,,ann,A,0' in (late.out / "canvas-00_toy.csv").read_text()
    only_bob = late.grade(config=Config(), wanted=lambda submission: submission.student == "bob")
    assert {row.student: row.score for row in only_bob.rows} == {"ann": 6, "bob": 5}


def test_extensions_and_due_dates_are_told_before_they_are_deleted(
    late: Class, capsys: pytest.CaptureFixture[str]
) -> None:
    with ClassBook(late.out, late.folder / "solutions").open() as book:
        book.grant_extension("00_toy", "bob", days=2)  # as autograder/README.md says
    assert main(["clean", "--out", str(late.out)]) == 2  # there is no terminal to ask in
    lost = (
        "Lost for good: 1 score, 1 extension and 1 due date that people entered in the gradebook."
    )
    assert lost in capsys.readouterr().out
    assert main(["forget", "bob", "--out", str(late.out), "--yes"]) == 0
    told = "With them go 1 extension that people entered in the gradebook. A copy of the gradebook keeps"
    assert told in capsys.readouterr().out
    (kept,) = late.out.glob("gradebook-until-*.db")
    assert extensions(kept, ["00_toy"]) == ["bob"]
    assert extensions(late.out / "gradebook.db", ["00_toy"]) == []


def test_penalties_that_cannot_be_settled_are_a_sentence(
    late: Class, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with only_one(late.out):  # a run that is under way settles them itself
        assert penalties.settle_penalties(late.out, ["00_toy"]) == []
    assert entered(late).total("ann", "00_toy").score == 1

    typo = Config({"LateSubmissionPlugin": {"penalty_method": "zro"}})
    monkeypatch.setattr(penalties, "course_config", lambda *_: typo)
    assert main(["report", "--out", str(late.out)]) == 0
    said = capsys.readouterr().out
    assert "stay as the last run left them, because a setting in class_config.py or" in said
    assert "not the str 'zro'" in said


OWN_SETTINGS = [
    ('c.LateSubmissionPlugin.penalty_method = "zero"', ""),
    ("c.LateSubmissionPlugin.penalty_method = zero", "NameError: name 'zero' is not defined"),
    ('c.LateSubmissionPlugin.penalty_method = "zro"', "not the str 'zro'"),
    ('c.ExtraCredit.most = "five"', "ExtraCredit"),
    ('c.LateSubmisionPlugin.penalty_method = "zero"', "did you mean LateSubmissionPlugin"),
    ('c.LateSubmissionPlugin.penalty_methode = "zero"', "there is penalty_method"),
]


@pytest.mark.parametrize(("line", "wrong"), OWN_SETTINGS)
def test_an_instructors_own_settings_stand_in_a_file_of_their_own(
    toy: Class, line: str, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a tracked file each `git pull` could meet them."""
    root = toy.folder / "course"
    root.mkdir()
    shutil.copy(ROOT / "nbgrader_config.py", root)
    (root / "class_config.py").write_text(f"{line}\n")
    monkeypatch.setattr("autograder.course.config.ROOT", root)
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert "class_config.py" in ignored
    if wrong:
        with pytest.raises(SettingsError, match=wrong):
            entered(toy, course_config(toy.folder / "solutions", toy.out))
    else:
        made = entered(toy, course_config(toy.folder / "solutions", toy.out))
        assert made.lateness.penalty_method == "zero"


def test_a_setting_that_cannot_be_used_is_a_sentence(
    toy: Class, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: Any) -> Course:
        raise SettingsError(NameError("name 'zero' is not defined"))

    monkeypatch.setattr("autograder.commands.grade.course_of", fail)
    folder = toy.folder / "class/ann/00_first_ranks"
    folder.mkdir(parents=True)
    line = ["grade", "--submissions", str(toy.folder / "class"), "--out", str(toy.out)]
    assert main(line) == 2
    assert "Nothing was graded: a setting in class_config.py or" in capsys.readouterr().err


def test_a_grade_that_the_book_lost_is_entered_again(toy: Class) -> None:
    toy.hand_in("ann", ALL, HALF)
    toy.grade()
    entered(toy).clear([("ann", "00_toy")])
    toy.grade()
    assert toy.calls == 0
    assert toy.book_scores("ann") == {"one_check": 4, "two_check": 3}


def test_a_new_gradebook_gets_the_old_grades(
    toy: Class, template: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy.hand_in("ann", ALL, HALF)
    toy.grade()
    shutil.copy(template / "out/gradebook.db", toy.out / "gradebook.db")
    assert toy.scores() == {"ann": 7}
    assert toy.calls == 0
    assert toy.book_scores("ann") == {"one_check": 4, "two_check": 3}


# ---- the secret


def test_the_secret_is_made_once_and_is_its_owners(tmp_path: Path) -> None:
    made = course_secret(tmp_path)
    assert course_secret(tmp_path) == made and len(made) == 64
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


def test_a_secret_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_SECRET", "from the environment")
    assert course_secret(tmp_path / "out") == b"from the environment"
    (tmp_path / "file").write_text("from the file, which comes first\n")
    assert course_secret(tmp_path / "out", tmp_path / "file") == b"from the file, which comes first"
    assert not (tmp_path / "out").exists()
    (tmp_path / "file").write_text("short")
    with pytest.raises(SecretError, match="has 5 characters; it needs 16"):
        course_secret(tmp_path, tmp_path / "file")
    with pytest.raises(SecretError, match="cannot be read"):
        course_secret(tmp_path, tmp_path / "nowhere")


def test_seeds_differ_by_student_exercise_and_secret() -> None:
    seeds = {
        seed(secret, student, exercise)
        for secret in (SECRET, SECRET + b"x")
        for student in ("ann", "bob")
        for exercise in ("a/b", "a/c")
    }
    assert len(seeds) == 8
    assert all(0 <= one < 2**63 for one in seeds)
    assert seed(SECRET, "ann", "a/b") == seed(SECRET, "ann", "a/b")


# ---- progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def schedule_of(*students: str, clock: Callable[[], float]) -> Schedule:
    return Schedule([Submission(name, "00_toy", Path()) for name in students], clock=clock)


def test_progress_is_one_line_on_a_terminal() -> None:
    now = [0.0]
    stream = Terminal()
    schedule = schedule_of("ann", "bob", "cem", clock=lambda: now[0])
    progress = Progress(stream, schedule)
    ann = schedule.next()
    assert ann is not None
    now[0] = 30.0
    assert progress.line() == "0 of 3 graded · 1 running · ann 00_toy for 30 s"
    schedule.finished(ann, 30.0)
    progress.finished(Row("ann", "00_toy", None, 10, statuses.UNGRADED, ""), 30.0)
    assert progress.line() == "1 of 3 graded · 0 running · 1 failed · 1 min 00 s left"
    progress.close()
    assert "\n" not in stream.getvalue()
    assert stream.getvalue().endswith("\r\x1b[K")


def test_progress_is_plain_lines_elsewhere() -> None:
    now = [0.0]
    stream = io.StringIO()
    schedule = schedule_of("ann", "bob", clock=lambda: now[0])
    progress = Progress(stream, schedule)
    ann = schedule.next()
    assert ann is not None
    now[0] = 80.0
    schedule.finished(ann, 80.0)
    progress.finished(Row("ann", "00_toy", 2.5, 10, statuses.GRADED, ""), 1.25)
    progress.say("a note")
    progress.finished(Row("bob", "00_toy", 10, 10, statuses.GRADED, ""), 3)
    progress.close()
    assert stream.getvalue().splitlines() == [
        "[1/2] ann 00_toy: 2.5 of 10, graded (1.2 s; 1 min 20 s left)",
        "a note",
        "[2/2] bob 00_toy: 10 of 10, graded (3.0 s)",
    ]


def test_a_long_submission_is_named_once_a_minute_elsewhere() -> None:
    now = [0.0]
    stream = io.StringIO()
    schedule = schedule_of("ann", "bob", clock=lambda: now[0])
    progress = Progress(stream, schedule)
    schedule.next()
    for seconds in range(0, 130):
        now[0] = seconds
        progress.refresh()
    lines = stream.getvalue().splitlines()
    assert [line.rpartition(" for ")[2] for line in lines] == ["1 min 00 s", "2 min 00 s"]
    assert "0 of 2 graded · 1 running" in lines[0] and "ann 00_toy" in lines[0]


def test_no_file_is_left_half_written(toy: Class) -> None:
    toy.hand_in("ann", ALL, ALL)
    toy.grade()
    left = [path.name for path in toy.out.rglob("*.new")]
    assert left == []
    assert os.stat(toy.out / "results/00_toy/ann.json").st_size > 0


def test_a_full_disk_is_a_sentence() -> None:
    """SQLite and SQLAlchemy wrap the system's error, or say it in words of their own."""
    full = OSError(errno.ENOSPC, "No space left on device")
    wrapped = RuntimeError("could not be written")
    wrapped.__cause__ = full
    for error in (full, wrapped, ValueError("(sqlite3.OperationalError) database or disk is full")):
        assert of_full_disk(error)
    assert not of_full_disk(OSError(errno.EACCES, "Permission denied"))


def test_a_full_disk_ends_every_command_with_a_sentence(
    toy: Class, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    toy.hand_in("ann", ALL, ALL)
    toy.grade()
    monkeypatch.setattr("autograder.outcome.result.os.fsync", full)
    assert main(["report", "--out", str(toy.out)]) == 2
    assert "a disk has no space left" in capsys.readouterr().err
    assert list(toy.out.rglob("*.new")) == []
