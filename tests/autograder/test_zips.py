"""A class may hand in zips. Of each the notebooks of the course are read, and nothing else."""

from __future__ import annotations

import argparse
import os
import zipfile
from pathlib import Path

import pytest

from autograder.commands import grade
from autograder.submission import zips
from autograder.submission.intake import (
    ANOTHER,
    MissingError,
    UnreadableError,
    collect,
    find_submissions,
    of_nothing,
)
from autograder.submission.zips import find_zipped, joined
from course_lib import submit
from tests.notebooks import made

KNOWN = ["00_first_ranks", "02_collectives"]
PLACE = "00_first_ranks/00_first_ranks.ipynb"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made_one = tmp_path / "class"
    made_one.mkdir()
    return made_one


def pack(path: Path, **members: str | bytes) -> Path:
    path.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, text in members.items():
            packed.writestr(name, text)
    return path


def test_what_submit_packs_is_what_the_grader_reads(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    notebook = made.hello(tmp_path / "mine.ipynb", made.HELLO, made.FULL)
    (folder / "lea").mkdir()
    for target in ("class/kim.zip", "class/lea/submission.zip"):
        assert submit.main(["mine.ipynb", "--no-run", "--to", target]) == 1  # one exercise is there
    options = argparse.Namespace(submissions=folder, out=tmp_path / "out")
    capsys.readouterr()
    submissions = grade._submissions(options, KNOWN)
    assert [(s.student, s.assignment) for s in submissions] == [
        ("kim", "00_first_ranks"),
        ("lea", "00_first_ranks"),
    ]
    assert all(collect(s).content == notebook.read_bytes() for s in submissions)
    assert capsys.readouterr().out == "", "no note on a student's folder that holds a zip alone"
    assert sorted(path.name for path in folder.iterdir()) == ["kim.zip", "lea"], (
        "the class is only read"
    )


def test_other_members_are_not_read(folder, tmp_path):
    inside = {
        f"kim/homework/{PLACE}": "{}",
        "../../evil.txt": "x",
        "/abs/02_collectives/02_collectives.ipynb": "{}",
        "02_collectives/notes.ipynb": "x",
        "99_x/99_x.ipynb": "x",
    }
    pack(folder / "kim.zip", **inside)
    into = tmp_path / "unzipped"
    submissions, notes = find_zipped(folder, KNOWN, into)
    assert [s.assignment for s in submissions] == KNOWN and notes == []
    written = sorted(path.name for path in tmp_path.rglob("*") if path.is_file())
    assert written == ["00_first_ranks.ipynb", "02_collectives.ipynb", "kim.zip"]
    assert find_zipped(folder, KNOWN, into)[0] == submissions, (
        "a second reading finds them in place"
    )


def test_a_content_without_end_is_cut_and_refused_by_the_reader(folder, tmp_path):
    pack(folder / "kim.zip", **{PLACE: b"0" * 3_000_000})
    (submission,), _ = find_zipped(folder, KNOWN, tmp_path / "unzipped", largest=100_000)
    assert submission.notebook.stat().st_size == 100_001
    with pytest.raises(UnreadableError, match="notebooks of up to"):
        collect(submission, largest=100_000)


def test_zips_that_cannot_be_read_cost_a_note_and_no_other_student(folder, tmp_path):
    pack(folder / "ann.zip", **{PLACE: "{}"})
    (folder / "bob.zip").write_text("no zip")
    pack(folder / "cem.zip", **{"a.txt": "x"})
    cut = pack(folder / "dan.zip", **{PLACE: os.urandom(5000)}).read_bytes()
    at = cut.index(b"ipynb") + 500
    (folder / "dan.zip").write_bytes(cut[:at] + b"\0" * 100 + cut[at + 100 :])
    os.mkfifo(folder / "eve.zip")
    (folder / "fay.zip").symlink_to(folder / "ann.zip")
    pack(folder / "gil.zip", **{PLACE: os.urandom(500_000)})
    submissions, notes = find_zipped(folder, KNOWN, tmp_path / "unzipped", largest=100_000)
    assert [s.student for s in submissions] == ["ann"]
    said = "\n".join(notes)
    assert "bob.zip cannot be read as a zip: File is not a zip file." in said
    assert "cem.zip holds no notebook of the course" in said and Path(PLACE).name in said
    assert "dan.zip cannot be read as a zip: Bad CRC" in said
    assert "eve.zip cannot be read as a zip: it is not a regular file." in said
    assert "gil.zip cannot be read as a zip: it has 0.5 MB, and 0.2 MB are read." in said
    assert len(notes) == 5


def test_a_zip_in_a_zip_is_named(folder, tmp_path):
    pack(tmp_path / "deep.zip", **{PLACE: "{}"})
    deep = (tmp_path / "deep.zip").read_bytes()
    pack(folder / "ann.zip", **{"work/deep.zip": deep, "__MACOSX/._deep.zip": "x"})
    pack(folder / "bob.zip", **{PLACE: "{}", "a.ZIP": deep, "b.zip": deep})
    submissions, notes = find_zipped(folder, KNOWN, tmp_path / "unzipped")
    assert [submission.student for submission in submissions] == ["bob"]
    assert notes == [
        "ann.zip holds another zip (work/deep.zip): unpack it.",
        "bob.zip holds another zip (a.ZIP and 1 more): unpack it.",
    ]


def test_a_list_of_too_many_files_is_not_read(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(zips, "MEMBERS", 20)
    pack(folder / "ann.zip", **{PLACE: "{}"})
    pack(folder / "eve.zip", **{PLACE: "{}"} | {f"{k}.txt": "" for k in range(20)})
    submissions, notes = find_zipped(folder, KNOWN, tmp_path / "unzipped")
    assert [s.student for s in submissions] == ["ann"]
    assert notes == ["eve.zip cannot be read as a zip: it lists more than 20 files."]


def test_a_notebook_in_a_folder_counts_before_the_one_in_a_zip(folder, tmp_path, capsys):
    made.hello(folder / "kim" / "00_first_ranks" / "00_first_ranks.ipynb", made.HELLO)
    pack(folder / "kim.zip", **{PLACE: "{}", "02_collectives/02_collectives.ipynb": "{}"})
    (folder / "zoe.zip").write_text("no zip")
    options = argparse.Namespace(submissions=folder, out=tmp_path / "out")
    first, second = grade._submissions(options, KNOWN)
    assert options.left_out == ["zoe.zip cannot be read as a zip: File is not a zip file."]
    assert first.folder == folder / "kim" / "00_first_ranks"
    assert second.assignment == "02_collectives"
    assert "kim handed in 00_first_ranks more than once" in capsys.readouterr().out
    assert joined([], []) == ([], [])


def test_of_several_zips_the_notebook_that_was_saved_last_counts(folder, tmp_path):
    made_on = {"submission (1).zip": 3, "submission (2).zip": 9, "submission.zip": 1}
    for name, day in made_on.items():
        (folder / "dan").mkdir(exist_ok=True)
        with zipfile.ZipFile(folder / "dan" / name, "w") as packed:
            packed.writestr(zipfile.ZipInfo(PLACE, (2026, 11, day, 8, 0, 0)), f"{name} {{}}")
    found, _ = find_zipped(folder, KNOWN, tmp_path / "unzipped")
    (submission,), (note,) = joined([], found)
    read = collect(submission)
    assert read.content == b"submission (2).zip {}"
    (remark,) = read.notes
    assert remark.startswith(ANOTHER), "so that it is listed for eyes"
    for name in ("submission.zip", "submission (1).zip"):
        assert f"dan/{name}" in remark and f"dan/{name}" in note
    assert "dan/submission (2).zip: " in note and "submission (2)" not in remark


def test_of_two_notebooks_in_one_zip_the_one_that_was_saved_last_counts(folder, tmp_path):
    with zipfile.ZipFile(folder / "hal.zip", "w") as packed:
        for day, place in ((1, "old"), (9, "new"), (3, "odd")):
            member = zipfile.ZipInfo(f"{place}/{PLACE}", (2026, 11, day, 8, 0, 0))
            packed.writestr(member, place)
    (submission,), _ = find_zipped(folder, KNOWN, tmp_path / "unzipped")
    read = collect(submission)
    assert read.content == b"new"
    (remark,) = read.notes
    assert f"hal.zip: old/{PLACE}" in remark and f"hal.zip: odd/{PLACE}" in remark


def test_a_zip_that_was_packed_by_hand_needs_no_folders(folder, tmp_path):
    inside = {"02_collectives.ipynb": "{}", "__MACOSX/._02_collectives.ipynb": "x"}
    pack(folder / "ida.zip", **inside)
    (submission,), notes = find_zipped(folder, KNOWN, tmp_path / "unzipped")
    assert (submission.assignment, notes) == ("02_collectives", [])
    assert collect(submission).content == b"{}"


def test_a_zip_may_lie_in_the_assignments_folder_and_beside_a_time_stamp(folder, tmp_path):
    handed = folder / "kim" / "00_first_ranks"
    handed.mkdir(parents=True)
    pack(handed / "submission.zip", **{PLACE: "{}", "02_collectives.ipynb": "{}"})
    (handed / "timestamp.txt").write_text("2026-11-20 12:00:00 UTC")
    in_folders, notes = find_submissions(folder, KNOWN)
    zipped, remarks = find_zipped(folder, KNOWN, tmp_path / "unzipped")
    submissions, doubles = joined(in_folders, zipped)
    assert [submission.assignment for submission in submissions] == KNOWN
    assert [*notes, *remarks, *doubles] == [], "the folder holds no other notebook"
    read = [collect(submission) for submission in submissions]
    assert [(one.content, one.notes) for one in read] == [(b"{}", [])] * 2
    assert {one.stamp for one in read} == {"2026-11-20 12:00:00 UTC"}


def test_an_empty_folder_does_not_count_before_a_zip(folder, tmp_path):
    (folder / "kim" / "00_first_ranks").mkdir(parents=True)
    (folder / "lea" / "00_first_ranks").mkdir(parents=True)
    pack(folder / "kim.zip", **{PLACE: "{}"})
    in_folders, _ = find_submissions(folder, KNOWN)
    zipped, _ = find_zipped(folder, KNOWN, tmp_path / "unzipped")
    (kim, lea), notes = joined(in_folders, zipped)
    assert (collect(kim).content, notes) == (b"{}", [])
    with pytest.raises(MissingError):
        collect(lea)


def test_a_folder_without_work_is_not_named_if_a_zip_beside_it_counts(folder, tmp_path):
    for student in ("kim", "lea"):
        (folder / student).mkdir(parents=True)
    pack(folder / "kim.zip", **{PLACE: "{}"})
    options = argparse.Namespace(submissions=folder, out=tmp_path / "out")
    (kim,) = grade._submissions(options, KNOWN)
    assert kim.student == "kim" and options.notes == [of_nothing(folder, "lea")]


def test_a_folder_of_an_assignment_is_not_one_student_with_many_zips(folder, tmp_path):
    for student in ("ann", "bob"):
        pack(folder / "00_first_ranks" / f"{student}.zip", **{PLACE: student})
    assert find_zipped(folder, KNOWN, tmp_path / "unzipped") == ([], [])
    assert (
        "If it holds students' folders, grade class/00_first_ranks"
        in find_submissions(folder, KNOWN)[1][0]
    )
    zipped, _ = find_zipped(folder / "00_first_ranks", KNOWN, tmp_path / "unzipped")
    assert [submission.student for submission in zipped] == ["ann", "bob"]


def test_of_very_many_notebooks_in_a_zip_a_few_are_named(folder, tmp_path):
    pack(folder / "eve.zip", **{f"{k}/{PLACE}": "{}" for k in range(2000)})
    (submission,), _ = find_zipped(folder, KNOWN, tmp_path / "unzipped")
    assert len(submission.unread) == 6
    assert submission.unread[-1] == "eve.zip: 1,994 more"
