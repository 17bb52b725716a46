"""`python -m autograder clean` says what cannot be had again, and deletes only after a word."""

from __future__ import annotations

import io
import json
import zipfile
from argparse import Namespace
from pathlib import Path

import pytest

from autograder.book import by_hand
from autograder.book.standing import ByHand, Standing
from autograder.book.store import Store
from autograder.commands import clean
from autograder.course.typed import NAME, Written, write_generated
from autograder.outcome import statuses
from autograder.outcome.result import Exercise, Result


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as grading leaves it, with a score and two comments by hand."""
    folder = tmp_path / "out"
    (folder / "results/00_toy").mkdir(parents=True)
    for student in ("ann", "bob"):
        (folder / f"results/00_toy/{student}.json").write_text("{}")
    (folder / "secret").write_text("s")
    (folder / "gradebook.db").write_text("")
    hand = {"a": ByHand(3.0, 8.0, "good"), "b": ByHand(None, 8.0, "see me")}
    monkeypatch.setattr(by_hand, "named_students", lambda book: ["ann", "eve"])
    monkeypatch.setattr(by_hand, "standings", lambda book, assignment: {"ann": Standing(hand)})
    for name in ("extensions", "due_dates"):
        monkeypatch.setattr(by_hand, name, lambda book, assignments: [])
    return folder


def answer(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    terminal = io.StringIO(text)
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdin", terminal)


def run(out: Path, yes: bool = False) -> int:
    return clean.run(Namespace(out=out, yes=yes))


@pytest.mark.parametrize("said", ["\n", "yes\n", "Delete\n"])
def test_another_word_deletes_nothing(
    out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], said: str
) -> None:
    answer(monkeypatch, said)
    assert run(out) == 1
    assert (out / "gradebook.db").exists() and (out / "secret").exists()
    printed = capsys.readouterr().out
    assert "results of 2 submissions" in printed
    assert "1 score, 2 comments and names or addresses of 2 students" in printed
    assert "the secret" in printed


def test_extra_credit_that_people_entered_is_counted(
    out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The points that the checks gave stand in the same field: "earned" has these, "more" others."""
    bonus = [Exercise(name, name, 4.0, 6.0, extra=True) for name in ("earned", "more", "none")]
    exercises = [*bonus, Exercise("plain", "plain", 2.0, 8.0)]
    Store(out).write(Result("ann", "00_toy", statuses.GRADED, exercises=exercises))
    hand = {
        "earned": ByHand(None, 0.0, "", 4.0),
        "more": ByHand(None, 0.0, "", 5.0),
        "none": ByHand(None, 0.0, "", 0.0),
        "plain": ByHand(None, 8.0, "", 1.5),
    }
    monkeypatch.setattr(by_hand, "standings", lambda book, assignment: {"ann": Standing(hand)})
    answer(monkeypatch, "\n")
    assert run(out) == 1
    said = capsys.readouterr().out
    assert (
        "Lost for good: extra credit for 3 exercises and names or addresses of 2 students" in said
    )


def test_the_word_deletes_it(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, "delete\n")
    assert run(out) == 0
    assert not out.exists()


def test_without_a_terminal_it_does_not_delete(
    out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("delete\n"))
    assert run(out) == 2
    assert (out / "gradebook.db").exists()
    assert "--yes" in capsys.readouterr().err


def test_work_whose_grades_were_forgotten_is_named(
    out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The copy may be the last one, since the class's folder belongs to the person."""
    (out / "forgotten/eve-20261130-100218/00_toy").mkdir(parents=True)
    answer(monkeypatch, "\n")
    assert run(out) == 1
    assert "the work in forgotten/ (eve-20261130-100218)." in capsys.readouterr().out


def test_files_that_grading_did_not_write_stay(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (out / "handout").mkdir()
    (out / "notes.txt").write_text("mine")
    assert run(out, yes=True) == 0
    assert sorted(path.name for path in out.iterdir()) == ["handout", "notes.txt"]
    assert "handout, notes.txt" in capsys.readouterr().out


def bundle_of(path: Path, record: Path) -> Path:
    """A zip for Gradescope, as far as `clean` looks at it."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("secret", "s")
    Written(record).remember(path, path.read_bytes())
    return path


def test_the_secret_and_the_grades_in_files_of_other_commands_go_too(
    out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A zip for Gradescope holds the secret. Where it cannot be deleted, its name is said."""
    record, table = out / NAME, out / "canvas-00_toy.csv"
    bundle_of(out / "gradescope-00_toy.zip", record)
    elsewhere = bundle_of(tmp_path / "gradescope.zip", record)
    write_generated(table, "ann,3\n", record)
    write_generated(out / "moodle-00_toy.csv", "ann,3\n", record)
    (out / "moodle-00_toy.csv").write_text("ann,4, as we said\n")
    assert run(out, yes=True) == 0
    assert [path.name for path in out.iterdir()] == ["moodle-00_toy.csv"], "somebody changed it"
    said = capsys.readouterr().out
    assert "Files of other commands go with it: canvas-00_toy.csv, gradescope-00_toy.zip." in said
    assert f"{elsewhere} stays, and holds the secret." in said and elsewhere.exists()


def test_tables_in_a_folder_that_was_moved_are_still_the_commands_own(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("grades.csv", "exercises.csv"):
        write_generated(out / name, "student\n")
    moved = out.rename(out.with_name("last-year"))
    assert not any("csv" in line for line in clean.irreplaceable(moved))
    write_generated(moved / "grades.csv", "student,score\n")
    assert not (moved / "grades_before.csv").exists() and not capsys.readouterr().out
    (moved / "grades.csv").write_text("student,score\nann,3\n")
    assert "Lost for good: changes that somebody made in grades.csv." in clean.irreplaceable(moved)


def test_a_record_of_whole_paths_still_holds(out: Path) -> None:
    """Records were written so until 2026-11-30."""
    write_generated(out / "grades.csv", "student\n")
    known = json.loads((out / NAME).read_text())
    whole = {str((out / name).resolve()): digests for name, digests in known.items()}
    (out / NAME).write_text(json.dumps(whole))
    assert not any("csv" in line for line in clean.irreplaceable(out))


def test_a_gradebook_that_cannot_be_read_is_said(
    out: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.undo()
    (out / "gradebook.db").write_text("no database at all, but long enough to be taken for one")
    answer(monkeypatch, "\n")
    assert run(out) == 1
    assert "cannot be read" in capsys.readouterr().out


def test_a_folder_without_results_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "results/thesis").mkdir(parents=True)
    (tmp_path / "results/thesis/table.json").write_text("mine")
    assert run(tmp_path, yes=True) == 0
    assert "not a folder that grading wrote" in capsys.readouterr().out
    assert (tmp_path / "results/thesis/table.json").exists()
