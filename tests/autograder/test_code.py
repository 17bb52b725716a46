"""`export code`: the answers of a class as files, for programs that look for copied work."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from autograder.__main__ import main
from autograder.book.store import Store
from autograder.course.config import NOTEBOOKS, SOLUTIONS
from autograder.course.twin import answers, grade_id
from autograder.outcome import statuses
from autograder.outcome.result import Result
from autograder.report.code import safe, write_code
from autograder.report.write import read_class

NAME = "00_first_ranks"
HOSTILE = "../ann\n$(x):"


def released() -> NotebookNode:
    return nbformat.read(NOTEBOOKS / NAME / f"{NAME}.ipynb", as_version=4)


EXERCISES = sorted(answers(released()))


def answered(changes: dict[str, str] | None = None, without: str = "") -> NotebookNode:
    """A graded notebook with `changes` in its exercises, and without the cell of one of them."""
    notebook = released()
    for cell in notebook.cells:
        cell.source = (changes or {}).get(grade_id(cell) or "", cell.source)
    notebook.cells = [cell for cell in notebook.cells if not without or grade_id(cell) != without]
    return notebook


def grade(out: Path, student: str, notebook: NotebookNode | str | None, **fields: str) -> None:
    """A submission as grading leaves it behind in `out`."""
    Store(out).write(Result(student, NAME, **{"status": statuses.GRADED, **fields}))
    path = out / "autograded" / student / NAME / f"{NAME}.ipynb"
    if notebook is not None:
        path.parent.mkdir(parents=True)
        text = notebook if isinstance(notebook, str) else nbformat.writes(notebook)
        path.write_text(text, encoding="utf-8")


def files_of(folder: Path) -> dict[str, str]:
    """The texts of all files below, by their paths."""
    return {
        path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8")
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Ann did two exercises, ben one and lost the cell of the other."""
    first, second, *_ = EXERCISES
    folder = tmp_path / "out"
    grade(folder, "ann", answered({first: "def one():\n    return 'é'", second: "two = 2"}))
    grade(folder, "ben", answered({first: "one = 1"}, without=second))
    return folder


def test_each_answer_is_a_file(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, *_ = EXERCISES
    folder = tmp_path / "made" / "code"
    line = ["export", "code", str(folder), "--assignment", "00", "--out", str(out)]
    assert main(line) == 0
    assert f"{folder} holds 3 files of students' code" in capsys.readouterr().out
    files = files_of(folder)
    assert {name: text for name, text in files.items() if name.startswith(NAME)} == {
        f"{NAME}/ann/{first}.py": "def one():\n    return 'é'\n",
        f"{NAME}/ann/{second}.py": "two = 2\n",
        f"{NAME}/ben/{first}.py": "one = 1\n",
    }


def test_stubs_and_the_courses_own_answers_lie_beside_them(out: Path, tmp_path: Path) -> None:
    write_code(read_class(out, Store(out).all()), [NAME], tmp_path / "code")
    files = files_of(tmp_path / "code")
    own = answers(nbformat.read(SOLUTIONS / NAME / f"{NAME}.ipynb", as_version=4))
    for name, stub in answers(released()).items():
        assert files[f"handed-out/{NAME}/{name}.py"] == f"{stub.rstrip()}\n"
        solution = files[f"solutions/{NAME}/course/{name}.py"]
        assert "### BEGIN" in own[name] and "### " not in solution and solution.strip() != stub


def test_who_has_no_file_is_named(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grade(out, "cem", answered())
    grade(out, "dov", "{")
    grade(out, "eva", '{"cells": [{"cell_type": "code"}], "metadata": {}, "nbformat": 4}')
    grade(out, "fay", None, status=statuses.MISSING)
    assert main(["export", "code", str(tmp_path / "code"), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    for line in (
        f"cem has no files in {NAME}: every exercise is as it was handed out.",
        f"dov has no files in {NAME}: the graded notebook cannot be read (NotJSONError).",
        f"eva has no files in {NAME}: the graded notebook cannot be read (",
        f"fay has no files in {NAME}: there is no graded notebook, since the submission is 'missing'.",
    ):
        assert line in said
    assert sorted(path.name for path in (tmp_path / "code" / NAME).iterdir()) == ["ann", "ben"]


@pytest.mark.parametrize(
    "name", [HOSTILE, "..", ".", "-bc", "a/b", "C:\\x", "a.", " a", "a\u202eb", "\ud800", "*"]
)
def test_a_name_stays_inside_the_folder(name: str) -> None:
    made = safe(name)
    assert made != name and "/" not in made and "\\" not in made and made.isprintable()
    assert made[0] not in ".- " and made[-1] not in ". " and len(made) <= len(name) + 13
    assert safe(f"{name}x") != made


@pytest.mark.parametrize("name", ["ann", "Jörg Müller", "o.b-1_x+y@z", "山田"])
def test_a_usual_name_stays_as_it_is(name: str) -> None:
    assert safe(name) == name


def test_a_hostile_name_is_written_in_another_way(tmp_path: Path) -> None:
    (first, *_), out = EXERCISES, tmp_path / "out"
    name = "-o $(x): é"
    grade(out, name, answered({first: "one = 1"}))
    count, notes = write_code(read_class(out, Store(out).all()), [NAME], tmp_path / "code")
    assert (count, notes) == (1, [f"{name!r} is written as {safe(name)!r}."])
    assert f"{NAME}/{safe(name)}/{first}.py" in files_of(tmp_path / "code")


def test_text_that_no_file_can_hold_is_written_without_it(out: Path, tmp_path: Path) -> None:
    first = EXERCISES[0]
    text = nbformat.writes(answered({first: "one = 'MARK'"})).replace("MARK", "\\ud800")
    grade(out, "gus", text)
    write_code(read_class(out, Store(out).all()), [NAME], tmp_path / "code")
    assert files_of(tmp_path / "code")[f"{NAME}/gus/{first}.py"] == "one = '?'\n"


def test_a_folder_that_holds_something_stays_as_it_is(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "code"
    (folder / NAME / "ann").mkdir(parents=True)
    typed = folder / NAME / "ann" / f"{EXERCISES[0]}.py"
    typed.write_text("a person typed this")
    assert main(["export", "code", str(folder), "--out", str(out)]) == 2
    said = capsys.readouterr().err
    assert f"{folder} is not empty: it holds {NAME}." in said and "Name a new folder" in said
    assert files_of(folder) == {f"{NAME}/ann/{EXERCISES[0]}.py": "a person typed this"}


def test_an_empty_folder_is_filled_once(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "code").mkdir()
    line = ["export", "code", str(tmp_path / "code"), "--out", str(out)]
    assert (main(line), main(line)) == (0, 2)
    assert "is not empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("file", "cannot be written: it is a file."),
        ("file/below", "cannot be written: Not a directory."),
        pytest.param(
            "locked", "cannot be written: it is not yours to write.",
            marks=pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere"),
        ),
    ],
)  # fmt: skip
def test_a_folder_that_cannot_be_written_is_a_sentence(
    place: str, says: str, out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "locked").mkdir(mode=0o500)
    assert main(["export", "code", str(tmp_path / place), "--out", str(out)]) == 2
    assert f"{tmp_path / place} {says}" in capsys.readouterr().err


def test_a_full_disk_is_a_sentence(
    out: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("autograder.report.code._write", full)
    assert main(["export", "code", str(tmp_path / "code"), "--out", str(out)]) == 2
    assert "could not be written whole: No space left on device." in capsys.readouterr().err


def test_an_assignment_that_was_not_graded_makes_no_folder(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["export", "code", str(tmp_path / "code"), "--out", str(out), "--assignment", "02"]
    assert main(line) == 2
    assert f"there are grades for {NAME}." in capsys.readouterr().err
    assert not (tmp_path / "code").exists()
