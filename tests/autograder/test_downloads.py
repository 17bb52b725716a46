"""A class as Moodle or Canvas hands it out, zipped or unpacked, counts without being renamed."""

from __future__ import annotations

import argparse
import io
import zipfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

import pytest

from autograder.commands import grade
from autograder.submission import downloads
from autograder.submission.downloads import find_downloaded
from autograder.submission.intake import ANOTHER, Submission, UnreadableError, collect
from autograder.submission.site_names import assignment_of, owner_of
from course_lib import submit
from tests.notebooks import made

KNOWN = ["00_first_ranks", "02_collectives"]
ANNA = "Anna Ng_1234567_assignsubmission_file_"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made_one = tmp_path / "class"
    made_one.mkdir()
    return made_one


def pack(path: Path, members: Mapping[str, str | bytes], day: int = 1) -> bytes:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, text in members.items():
            info = zipfile.ZipInfo(name, (2026, 11, day, 8, 0, 0))
            packed.writestr(info, text, zipfile.ZIP_DEFLATED)
    return path.read_bytes()


def inner(**members: str) -> bytes:
    """A student's zip in a zip."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as packed:
        for name, text in members.items():
            packed.writestr(f"{name}/{name}.ipynb", text)
    return file.getvalue()


def put(path: Path, text: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)


def download(path: Path, members: Mapping[str, str | bytes], unpacked: bool) -> None:
    """The zip of a class, or what is in it, beside where the zip would be."""
    if not unpacked:
        pack(path, members)
        return
    for name, text in members.items():
        put(path.parent / name, text)


def taken_in(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[list[Submission], str]:
    """The submissions of a class, as `grade` reads it, and what it prints."""
    options = argparse.Namespace(submissions=folder, out=folder.parent / "out")
    return grade._submissions(options, KNOWN), capsys.readouterr().out


def read(submissions: list[Submission]) -> dict[tuple[str, str], bytes]:
    return {(each.student, each.assignment): collect(each).content for each in submissions}


# ---- names


@pytest.mark.parametrize(
    ("place", "site", "name", "number", "file"),
    [
        (f"{ANNA}/00_first_ranks.ipynb", "Moodle", "Anna Ng", "1234567", "00_first_ranks.ipynb"),
        (f"{ANNA}/deep/er/x.ipynb", "Moodle", "Anna Ng", "1234567", "x.ipynb"),
        ("Zo\u00eb O_1_assignsubmission_file/a.ipynb", "Moodle", "Zo\u00eb O", "1", "a.ipynb"),
        (f"{ANNA}00_first_ranks.ipynb", "Moodle", "Anna Ng", "1234567", "00_first_ranks.ipynb"),
        ("Default group_assignsubmission_file_/a.ipynb", "Moodle", "Default group", "", "a.ipynb"),
        (
            "nganna_12_345_02_collectives-1.ipynb",
            "Canvas",
            "nganna",
            "12",
            "02_collectives-1.ipynb",
        ),
        ("nganna_LATE_12_345_a_b.ipynb", "Canvas", "nganna", "12", "a_b.ipynb"),
        ("\u015b\u00fc_12_345_submission.zip", "Canvas", "\u015b\u00fc", "12", "submission.zip"),
        ("anon_Ab3xY_345_a.ipynb", "Canvas", "", "anon_Ab3xY", "a.ipynb"),
        ("LATE_anon_Ab3xY_345_a.ipynb", "Canvas", "", "anon_Ab3xY", "a.ipynb"),
    ],
)
def test_the_names_of_both_sites_are_read(
    place: str, site: str, name: str, number: str, file: str
) -> None:
    owner = owner_of(PurePosixPath(place))
    assert owner is not None
    assert (owner.site, owner.name, owner.number, owner.file) == (site, name, number, file)
    assert owner.late == ("LATE" in place)


@pytest.mark.parametrize(
    "place",
    [
        "00_first_ranks.ipynb", "ann/00_first_ranks/00_first_ranks.ipynb", "ann_2.zip", "02_x_1.ipynb",
        "00_first_ranks/00_first_ranks (1).ipynb", "submission.zip", "ann_00_first_ranks.ipynb",
    ],
)  # fmt: skip
def test_other_names_are_no_sites(place: str) -> None:
    assert owner_of(PurePosixPath(place)) is None


@pytest.mark.parametrize(
    ("file", "assignment"),
    [
        ("02_collectives.ipynb", "02_collectives"), ("02_collectives-1.ipynb", "02_collectives"),
        ("02_Collectives (1).ipynb", "02_collectives"), ("Copy of 02_collectives.ipynb", "02_collectives"),
        ("02_collectives_anna.ipynb", "02_collectives"), ("102_collectives.ipynb", ""),
        ("02_collectivesx.ipynb", ""), ("homework.ipynb", ""), ("00_first_ranks-02_collectives.ipynb", ""),
    ],
)  # fmt: skip
def test_an_assignment_is_found_in_a_files_name(file: str, assignment: str) -> None:
    assert assignment_of(file, KNOWN) == assignment


# ---- whole downloads


@pytest.mark.parametrize("unpacked", [False, True])
def test_moodles_folders_are_students(folder, capsys, unpacked) -> None:
    members = {
        f"{ANNA}/00_first_ranks.ipynb": "anna",
        "Bo Li_1234568_assignsubmission_file_/00_first_ranks (1).ipynb": "bo",
        "Bo Li_1234568_assignsubmission_onlinetext_/onlinetext.html": "hello",
        "Cy_1234569_assignsubmission_file_/submission.zip": inner(
            **{"00_first_ranks": "cy", "02_collectives": "more"}
        ),
    }
    download(folder / "CS1-First ranks-4711.zip", members, unpacked)
    submissions, said = taken_in(folder, capsys)
    assert read(submissions) == {
        ("Anna Ng", "00_first_ranks"): b"anna",
        ("Bo Li", "00_first_ranks"): b"bo",
        ("Cy", "00_first_ranks"): b"cy",
        ("Cy", "02_collectives"): b"more",
    }
    place = "class/" if unpacked else "CS1-First ranks-4711.zip"
    assert said == (
        f"{place} holds a class as Moodle hands it out: 3 students. {ANNA}/00_first_ranks.ipynb was taken "
        "for the work of Anna Ng.\n"
    )
    assert all(collect(each).notes == [] for each in submissions), (
        "no remark on names that a site gave"
    )


@pytest.mark.parametrize("unpacked", [False, True])
def test_canvas_files_are_students(folder, capsys, unpacked) -> None:
    members = {
        "nganna_12345_678901_00_first_ranks-1.ipynb": "anna",
        "libo_LATE_77_678902_00_first_ranks.ipynb": "bo",
        "cy_78_678903_submission.zip": inner(**{"00_first_ranks": "cy"}),
        "anon_Ab3xY_678904_00_first_ranks.ipynb": "hidden",
    }
    download(folder / "submissions.zip", members, unpacked)
    submissions, said = taken_in(folder, capsys)
    assert read(submissions) == {
        ("anon_Ab3xY", "00_first_ranks"): b"hidden",
        ("cy_78", "00_first_ranks"): b"cy",
        ("libo_77", "00_first_ranks"): b"bo",
        ("nganna_12345", "00_first_ranks"): b"anna",
    }
    assert "as Canvas hands it out: 4 students." in said
    assert "Canvas marks the work of libo_77 as late" in said
    assert "into class/libo_77/<assignment>/timestamp.txt" in said
    put(folder / "libo_77" / "00_first_ranks" / "timestamp.txt", "2026-11-21 10:00:00 UTC")
    again, said = taken_in(folder, capsys)
    assert "as late" not in said, "its time is known"
    assert {each.student: collect(each).stamp for each in again}["libo_77"]


@pytest.mark.parametrize("unpacked", [False, True])
@pytest.mark.parametrize(
    ("work", "other", "student"),
    [
        (
            f"{ANNA}/00_first_ranks.ipynb",
            "Ida Roe_1234570_assignsubmission_file_/00.html",
            "Ida Roe",
        ),
        ("nganna_12_678901_00_first_ranks.ipynb", "roeida_13_678902_00.pdf", "roeida_13"),
    ],
)
def test_a_student_without_a_notebook_is_named(
    folder, capsys, unpacked: bool, work: str, other: str, student: str
) -> None:
    """Such as one who handed in a PDF. She has no row, so nothing else would tell of her."""
    members = {work: "anna", other: "print", other.replace("00.", "more."): "print"}
    download(folder / "download.zip", members, unpacked)
    submissions, said = taken_in(folder, capsys)
    assert len(submissions) == 1 and "hands it out: 1 student." in said
    assert f"{student} handed in no notebook, but 00." in said and "is not in the table." in said


def test_what_submit_packs_counts_inside_a_download(folder, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    notebook = made.hello(tmp_path / "mine.ipynb", made.HELLO, made.FULL)
    submit.main(["mine.ipynb", "--no-run", "--to", "submission.zip"])
    packed = (tmp_path / "submission.zip").read_bytes()
    pack(folder / "moodle.zip", {f"{ANNA}/submission.zip": packed})
    capsys.readouterr()
    (submission,), _ = taken_in(folder, capsys)
    assert submission.student == "Anna Ng" and collect(submission).content == notebook.read_bytes()
    assert submission.origin == (
        f"moodle.zip: {ANNA}/submission.zip: 00_first_ranks/00_first_ranks.ipynb"
    )


def test_of_several_uploads_the_last_counts_and_the_others_are_named(folder, capsys) -> None:
    names = [
        f"nganna_12_{number}_00_first_ranks{end}.ipynb" for number, end in ((9, ""), (10, "-1"))
    ]
    pack(folder / "submissions.zip", {names[1]: "newer", names[0]: "older"})
    (submission,), said = taken_in(folder, capsys)
    (remark,) = collect(submission).notes
    assert collect(submission).content == b"newer"
    assert remark.startswith(ANOTHER) and names[0] in remark and names[1] not in remark
    assert "nganna_12 handed in 00_first_ranks more than once" in said


def test_a_newer_download_counts_before_an_older_one(folder, capsys) -> None:
    for name, day in (("b.zip", 1), ("a.zip", 9), ("c.zip", 3)):
        pack(folder / name, {f"{ANNA}/00_first_ranks.ipynb": name}, day)
    (submission,), _ = taken_in(folder, capsys)
    assert collect(submission).content == b"a.zip"


def test_a_time_stamp_answers_only_for_its_own_assignment(folder, capsys) -> None:
    put(folder / "libo_77" / "00_first_ranks" / "timestamp.txt", "2026-11-21 10:00:00 UTC")
    pack(folder / "submissions.zip", {"libo_LATE_77_678902_02_collectives.ipynb": "bo"})
    _, said = taken_in(folder, capsys)
    assert "Canvas marks the work of libo_77 as late" in said


def test_a_file_that_comes_again_in_a_later_download_is_no_other_notebook(folder, capsys) -> None:
    bo = "Bo_2_assignsubmission_file_"
    same = {f"{ANNA}/00_first_ranks.ipynb": "anna"}
    pack(folder / "a.zip", same | {f"{bo}/00_first_ranks.ipynb": "early"})
    pack(folder / "b.zip", same | {f"{bo}/00_first_ranks.ipynb": "late"}, 9)
    submissions, said = taken_in(folder, capsys)
    assert [each.student for each in submissions if each.unread] == ["Bo"]
    assert "Bo handed in 00_first_ranks more than once" in said and "Anna Ng handed" not in said


def test_a_notebook_of_another_name_counts_if_the_others_tell_its_assignment(
    folder, capsys
) -> None:
    members = {
        f"{ANNA}/00_first_ranks.ipynb": "anna",
        "Bo_2_assignsubmission_file_/homework.ipynb": "bo",
        "Cy_3_assignsubmission_file_/a.ipynb": "a",
        "Cy_3_assignsubmission_file_/b.ipynb": "b",
        f"{ANNA}/scratch.ipynb": "x",
    }
    pack(folder / "moodle.zip", members)
    submissions, said = taken_in(folder, capsys)
    notes = {each.student: collect(each).notes for each in submissions}
    assert notes.keys() == {"Anna Ng", "Bo"}
    assert notes["Bo"] == ["the notebook was handed in as homework.ipynb"]
    assert f"moodle.zip: {ANNA}/scratch.ipynb" in notes["Anna Ng"][0]
    assert "b.ipynb of Cy left out, since no assignment is in its name" in said
    assert "put it into class/Cy/00_first_ranks/" in said
    put(folder / "Cy" / "00_first_ranks" / "b.ipynb", "b")
    submissions, said = taken_in(folder, capsys)
    assert ("Cy", "00_first_ranks") in read(submissions)
    assert "a.ipynb of Cy left out" in said and "b.ipynb of Cy" not in said
    put(folder / "Cy" / "02_collectives" / "a.ipynb", "other")
    assert "a.ipynb of Cy left out" in taken_in(folder, capsys)[1], "another notebook of its name"
    put(folder / "Cy" / "02_collectives" / "a.ipynb", "a")
    assert "left out" not in taken_in(folder, capsys)[1], "the note was followed"


def test_two_people_of_one_name_stay_two(folder, capsys) -> None:
    other = ANNA.replace("1234567", "99")
    members = {f"{place}/00_first_ranks.ipynb": place for place in (ANNA, other)}
    pack(folder / "moodle.zip", members)
    submissions, said = taken_in(folder, capsys)
    assert [each.student for each in submissions] == ["Anna Ng_1234567", "Anna Ng_99"]
    assert "moodle.zip has 2 participants called Anna Ng" in said


def test_a_name_of_dots_is_no_other_folder(folder, capsys) -> None:
    """Results, pages and notebooks lie in folders named after students, and `forget` removes these."""
    names = {f"{dots}_1_assignsubmission_file_/00_first_ranks.ipynb": dots for dots in (".", "..")}
    pack(folder / "moodle.zip", names)
    students = [each.student for each in taken_in(folder, capsys)[0]]
    assert len(students) == 2 and not {".", ".."} & set(students)


# ---- nothing is taken from a student's own files


def test_a_students_own_files_make_no_other_student(folder, capsys) -> None:
    forged = {f"{ANNA}/00_first_ranks.ipynb": "forged"}
    put(folder / "eve" / "00_first_ranks" / "00_first_ranks.ipynb", "eve")
    pack(folder / "eve" / "more.zip", forged)
    put(folder / "fay" / ANNA / "00_first_ranks.ipynb", "forged")
    pack(folder / "gus.zip", {**forged, "00_first_ranks.ipynb": "gus"}, day=2)
    deep = {"Bo_2_assignsubmission_file_/00_first_ranks.ipynb": "bo"}
    deep["Hal_3_assignsubmission_file_/x.zip"] = pack(folder.parent / "x.zip", forged)
    pack(folder / "moodle.zip", deep)
    submissions, said = taken_in(folder, capsys)
    assert {each.student for each in submissions} == {"eve", "gus", "Bo", "Hal"}
    assert "class/fay holds files as Moodle names them, and is left out" in said


def test_links_and_pipes_are_not_read(folder, tmp_path, capsys) -> None:
    put(tmp_path / "secret.ipynb", "secret")
    (folder / "nganna_1_2_00_first_ranks.ipynb").symlink_to(tmp_path / "secret.ipynb")
    put(folder / ANNA / "00_first_ranks.ipynb", "anna")
    (folder / ANNA / "02_collectives.ipynb").symlink_to(tmp_path / "secret.ipynb")
    submissions, _ = taken_in(folder, capsys)
    assert read(submissions) == {("Anna Ng", "00_first_ranks"): b"anna"}


def test_a_file_that_cannot_be_read_costs_nobody_else(folder, capsys) -> None:
    members = {f"{ANNA}/submission.zip": "no zip", "Bo_2_assignsubmission_file_/a.txt": "x"}
    members["Cy_3_assignsubmission_file_/00_first_ranks.ipynb"] = "cy"
    pack(folder / "moodle.zip", members)
    submissions, said = taken_in(folder, capsys)
    assert [each.student for each in submissions] == ["Cy"]
    assert "moodle.zip: the files of Anna Ng cannot be read: File is not a zip file." in said


def test_contents_without_end_are_cut(folder, tmp_path, monkeypatch) -> None:
    members: dict[str, str | bytes] = {f"{ANNA}/00_first_ranks.ipynb": b"0" * 300_000}
    members["Bo_2_assignsubmission_file_/00_first_ranks.ipynb"] = b"1" * 300_000
    pack(folder / "moodle.zip", members)
    found = find_downloaded(folder, KNOWN, tmp_path / "unzipped", largest=100_000)
    assert [each.notebook.stat().st_size for each in found.submissions] == [100_001] * 2
    with pytest.raises(UnreadableError, match="notebooks of up to"):
        collect(found.submissions[0], largest=100_000)
    monkeypatch.setattr(downloads, "MOST", 150_000)
    cut = find_downloaded(folder, KNOWN, tmp_path / "unzipped", largest=100_000)
    assert [each.student for each in cut.submissions] == ["Anna Ng"]
    assert "all notebooks together have more than" in cut.notes[0]
