"""`python -m autograder clean` says what cannot be had again, and deletes only after a word."""

from __future__ import annotations

import io
from argparse import Namespace
from pathlib import Path

import pytest

from autograder.book import by_hand
from autograder.book.standing import ByHand, Standing
from autograder.book.store import Store
from autograder.commands import clean
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


def test_files_that_grading_did_not_write_stay(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (out / "handout").mkdir()
    (out / "notes.txt").write_text("mine")
    assert run(out, yes=True) == 0
    assert sorted(path.name for path in out.iterdir()) == ["handout", "notes.txt"]
    assert "handout, notes.txt" in capsys.readouterr().out


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
