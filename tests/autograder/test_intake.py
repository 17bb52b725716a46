"""Of a folder that a student handed in only the notebook and a time stamp are read."""

from __future__ import annotations

import json
import os
import platform
import socket
import tracemalloc
from pathlib import Path

import nbformat
import pytest

from autograder.submission.intake import (
    MissingError,
    SameNameError,
    Submission,
    UnreadableError,
    collect,
    find_submissions,
    other_python,
    parse,
)

NOTEBOOK = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("a = 1", id="a")])
TEXT = nbformat.writes(NOTEBOOK).encode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "class" / "ann" / "00_toy"
    made.mkdir(parents=True)
    return made


def submission(folder: Path) -> Submission:
    return Submission("ann", "00_toy", folder)


# ---- the file that counts


def test_the_notebook_of_the_right_name_counts(folder: Path) -> None:
    (folder / "00_toy.ipynb").write_bytes(TEXT)
    (folder / "00_toy-Copy1.ipynb").write_bytes(b"{")
    (folder / "._00_toy.ipynb").write_bytes(b"{")  # macOS leaves these in archives
    (folder / ".ipynb_checkpoints").mkdir()
    found = collect(submission(folder))
    assert (found.content, found.stamp) == (TEXT, "")
    assert found.notes == ["another notebook in the folder was not read: 00_toy-Copy1.ipynb"]


def test_a_renamed_notebook_counts_when_it_is_the_only_one(folder: Path) -> None:
    (folder / "final (2).ipynb").write_bytes(TEXT)
    (folder / "notes.txt").write_text("beside it")
    found = collect(submission(folder))
    assert found.content == TEXT
    assert found.notes == ["the notebook was handed in as final (2).ipynb"]


def test_of_several_other_names_none_is_chosen(folder: Path) -> None:
    for number in range(7):
        (folder / f"{number}.ipynb").write_bytes(TEXT)
    with pytest.raises(MissingError, match=r"holds 0.ipynb, .*, 4.ipynb and 2 more"):
        collect(submission(folder))


def test_an_empty_folder_is_missing(folder: Path) -> None:
    with pytest.raises(MissingError, match=r"00_toy\.ipynb was not handed in$"):
        collect(submission(folder))


def test_the_end_of_the_name_may_be_in_capitals(folder: Path) -> None:
    (folder / "00_TOY.IPYNB").write_bytes(TEXT)
    found = collect(submission(folder))
    assert (found.content, found.notes) == (TEXT, ["the notebook was handed in as 00_TOY.IPYNB"])


@pytest.mark.parametrize("name", ["00_toy", "00_toy.ipynb", "my homework"])
def test_a_notebook_one_folder_too_deep_counts(folder: Path, name: str) -> None:
    (folder / name).mkdir()
    (folder / name / "00_toy.ipynb").write_bytes(TEXT)
    (folder / name / "scratch.ipynb").write_bytes(b"{")
    (folder / ".ipynb_checkpoints").mkdir()
    (folder / ".ipynb_checkpoints" / "00_toy.ipynb").write_bytes(b"{")
    found = collect(submission(folder))
    assert found.content == TEXT
    assert found.notes == [f"the notebook was handed in as {name}/00_toy.ipynb"]
    (folder / "copy").mkdir()
    (folder / "copy" / "00_toy.ipynb").write_bytes(TEXT)
    with pytest.raises(MissingError, match=r"holds .*copy/00_toy\.ipynb"):
        collect(submission(folder))


def test_a_folder_named_like_the_notebook_is_told(folder: Path) -> None:
    (folder / "00_toy.ipynb").mkdir()
    descriptors = os.listdir("/proc/self/fd")
    with pytest.raises(MissingError, match="there is a folder of its name"):
        collect(submission(folder))
    (folder / "timestamp.txt").mkdir()
    (folder / "other.ipynb").write_bytes(TEXT)
    assert collect(submission(folder)).notes[-1] == "timestamp.txt holds no date and was not used"
    assert os.listdir("/proc/self/fd") == descriptors


def test_a_notebook_straight_in_the_students_folder_counts(folder: Path) -> None:
    students = folder.parent.parent
    folder.rmdir()
    for name in ("00_toy", "01_more"):
        (folder.parent / f"{name}.ipynb").write_bytes(TEXT)
    found, notes = find_submissions(students, ["00_toy", "01_more"])
    assert [(one.student, one.assignment) for one in found] == [
        ("ann", "00_toy"),
        ("ann", "01_more"),
    ]
    assert notes == []
    assert [collect(one).content for one in found] == [TEXT, TEXT]
    assert [collect(one).notes for one in found] == [[], []], "the other one has its own row"


@pytest.mark.parametrize(
    "name",
    [
        "Copy of 00_toy",
        "Copy_of_00_toy",
        "00_toy (1)",
        "00_toy_1",
        "00_toy-Copy1",
        "Copy of Copy of 00_toy(2)",
    ],
)
def test_a_copy_straight_in_the_students_folder_counts_if_it_is_all(
    folder: Path, name: str
) -> None:
    students = folder.parent.parent
    folder.rmdir()
    (folder.parent / f"{name}.ipynb").write_bytes(TEXT)
    (work,), notes = find_submissions(students, ["00_toy"])
    assert (work.student, work.assignment, notes) == ("ann", "00_toy", [])
    assert collect(work).notes == [f"the notebook was handed in as {name}.ipynb"]
    (folder.parent / "00_toy (3).ipynb").write_bytes(TEXT)
    works, notes = find_submissions(students, ["00_toy"])
    assert works == [] and len(notes) == 2, "of two copies, none is chosen"


def test_the_notebook_in_its_folder_counts_before_one_beside_the_folder(folder: Path) -> None:
    (folder / "00_toy.ipynb").write_bytes(TEXT)
    (folder.parent / "00_toy.ipynb").write_bytes(b"{")
    (one,), notes = find_submissions(folder.parent.parent, ["00_toy"])
    found = collect(one)
    assert (found.content, notes) == (TEXT, [])
    assert found.notes == ["another notebook that was handed in was not read: 00_toy.ipynb"]


def test_no_notebook_is_left_out_in_silence(folder: Path) -> None:
    students = folder.parent.parent
    (folder / "00_toy.ipynb").write_bytes(TEXT)
    (students / "gus.ipynb").write_bytes(TEXT)
    (folder.parent / "homework.ipynb").write_bytes(TEXT)
    found, notes = find_submissions(students, ["00_toy"])
    assert [one.student for one in found] == ["ann"]
    assert notes == [
        "class/ann/homework.ipynb is left out: move it into a folder named after its assignment, such as "
        "class/ann/00_toy/.",
        "class/gus.ipynb is left out, since it lies in no student's folder: move it to "
        "class/<student>/<assignment>/.",
    ]


def test_a_class_that_is_named_one_folder_too_high_or_too_deep_makes_no_students(
    folder: Path,
) -> None:
    (folder / "00_toy.ipynb").write_bytes(TEXT)
    found, (note,) = find_submissions(folder.parent, ["00_toy"])
    assert found == [] and note.startswith("ann/00_toy is left out")
    assert "grade the folder above it" in note


# ---- nothing but regular files is opened


def test_folders_within_that_are_links_are_not_followed(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "somebody else"
    other.mkdir()
    (other / "00_toy.ipynb").write_bytes(TEXT)
    (folder / "inside").symlink_to(other)
    with pytest.raises(MissingError, match=r"00_toy\.ipynb was not handed in$"):
        collect(submission(folder))


def test_links_are_not_followed(folder: Path, tmp_path: Path) -> None:
    secret = tmp_path / "somebody-else.ipynb"
    secret.write_bytes(TEXT)
    (folder / "00_toy.ipynb").symlink_to(secret)
    with pytest.raises(UnreadableError, match="is a link"):
        collect(submission(folder))
    (folder / "00_toy.ipynb").rename(folder / "renamed.ipynb")
    with pytest.raises(UnreadableError, match="is a link"):
        collect(submission(folder))


def test_a_folder_that_is_a_link_gets_a_row_and_is_not_followed(folder: Path) -> None:
    (folder / "00_toy.ipynb").write_bytes(TEXT)
    students = folder.parent.parent
    (students / "bob").mkdir()
    (students / "bob" / "00_toy").symlink_to(folder)
    (students / "eve").symlink_to(folder.parent)
    found, notes = find_submissions(students, ["00_toy"])
    assert [one.student for one in found] == ["ann", "bob"]
    assert notes == ["eve is a link and is left out: links are not followed."]
    with pytest.raises(MissingError, match="is a link"):
        collect(found[1])


def test_a_pipe_does_not_keep_the_grader_waiting(folder: Path) -> None:
    os.mkfifo(folder / "00_toy.ipynb")
    with pytest.raises(UnreadableError, match="not a regular file"):
        collect(submission(folder))


def test_a_socket_is_no_notebook(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)  # the path of a socket is limited to 100 bytes
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("00_toy.ipynb")
        with pytest.raises(UnreadableError, match="not a file"):
            collect(submission(folder))


def test_a_huge_file_is_not_read(folder: Path) -> None:
    with open(folder / "00_toy.ipynb", "wb") as file:
        file.truncate(100 << 20)
    with pytest.raises(UnreadableError, match="has 100 MB; notebooks of up to 20 MB are read"):
        collect(submission(folder))
    with pytest.raises(UnreadableError, match=r"not valid JSON"):
        parse(collect(submission(folder), largest=200 << 20).content)


# ---- the time stamp


@pytest.mark.parametrize(
    ("text", "used"),
    [
        ("2026-11-21 10:00:00 UTC\n", True),
        ("2026-11-21 10:00:00 Europe/Paris", True),
        ("last Tuesday", False),
        ("x" * 10_000, False),
        ("\u00e4", False),
        ("99999-01-01", False),
    ],
)
def test_a_time_stamp_is_used_when_it_is_one(folder: Path, text: str, used: bool) -> None:
    (folder / "00_toy.ipynb").write_bytes(TEXT)
    (folder / "timestamp.txt").write_text(text)
    found = collect(submission(folder))
    assert found.stamp == (text.strip() if used else "")
    assert found.notes == ([] if used else ["timestamp.txt holds no date and was not used"])


# ---- names of students


def test_odd_names_are_written_so_that_a_table_can_hold_them(tmp_path: Path) -> None:
    for raw in (
        b"plain",
        b"two words",
        "Zo\u00eb".encode(),
        b"line\nbreak",
        b"red\x1b[31m",
        b"\xff\xfe",
    ):
        os.makedirs(os.path.join(os.fsencode(tmp_path), raw, b"00_toy"))
    found, notes = find_submissions(tmp_path, ["00_toy"])
    names = {one.student.partition("~")[0] for one in found}
    assert names == {
        *("plain", "two words", "Zo\u00eb"),
        *("line\\nbreak", "red\\x1b[31m", "\\udcff\\udcfe"),
    }
    assert sum("~" in one.student for one in found) == 3  # the changed ones have a hash
    assert len(notes) == 3
    for one in found:
        one.student.encode()  # a database and a file can hold it
        assert one.folder.is_dir()


def test_no_two_folders_become_one_student(tmp_path: Path) -> None:
    for name in ("a\tb", "a\\tb"):
        (tmp_path / name / "00_toy").mkdir(parents=True)
    found, _ = find_submissions(tmp_path, ["00_toy"])
    assert len({one.student for one in found}) == 2
    taken = next(one.student for one in found if "~" in one.student)
    (tmp_path / taken / "00_toy").mkdir(parents=True)
    with pytest.raises(SameNameError, match="rename one of them"):
        find_submissions(tmp_path, ["00_toy"])


def test_a_hidden_folder_is_told_unless_a_program_made_it(tmp_path: Path) -> None:
    for name in (".ipynb_checkpoints", ".git", "..bob", "ann"):
        (tmp_path / name / "00_toy").mkdir(parents=True)
    found, notes = find_submissions(tmp_path, ["00_toy"])
    assert [one.student for one in found] == ["ann"]
    assert notes == ["..bob is left out, as hidden folders are; if it is a student's, rename it."]


def test_names_are_short_enough_to_name_files_after_them(tmp_path: Path) -> None:
    for last in "ab":
        (tmp_path / ("\u00e9" * 120 + last) / "00_toy").mkdir(parents=True)
    found, _ = find_submissions(tmp_path, ["00_toy"])
    assert len({one.student for one in found}) == 2
    assert all(len(one.student.encode()) <= 128 for one in found)


# ---- from bytes to a notebook


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe{}", "not UTF-8"),
        (b"[1, 2]", "not a notebook"),
        (b"3", "not a notebook"),
        (b"{}", "not a notebook"),
        (b'{"cells": {}}', "not a notebook"),
        (b'{"cells": [7]}', "not a notebook"),
        (b'{"cells": [{"cell_type": "code"}]}', "not a notebook"),
        (b'{"cells": [{"cell_type": "code", "source": [1]}]}', "not a notebook"),
        (b"[" * 100_000, "too deeply"),
        (b'{"cells": [' + b"[" * 800 + b"]" * 800 + b"]}", "not a notebook|too deeply"),
        (b"9" * 10_000, "not a notebook"),
        (b'{"worksheets": [{}]}', "not a notebook"),
        (b'{"worksheets": [{"cells": []}]}', "not a notebook"),
        (b'{"cells": [' + b"0," * 10_000 + b"0]}", "10,001 cells"),
        (b'{"worksheets": [' + b'{"cells": [0]},' * 10_000 + b'{"cells": [0]}]}', "10,001 cells"),
    ],
)
def test_what_is_no_notebook_is_said(content: bytes, said: str) -> None:
    with pytest.raises(UnreadableError, match=said):
        parse(content)


def test_a_notebook_comes_back_tidied() -> None:
    cells = [
        {"cell_type": "code", "source": ["a = 1\n", "b"], "id": [1], "metadata": 3, "outputs": 7},
        {"cell_type": "markdown", "source": "c", "id": "same", "outputs": [], "attachments": 4},
        {"cell_type": "sorcery", "source": "d", "id": "same", "metadata": {"tags": [float("nan")]}},
        {"cell_type": "raw", "source": "half \ud83d", "id": "e" * 100},
    ]
    data = {"nbformat": 77, "nbformat_minor": "x", "metadata": [], "cells": cells}
    notebook = parse(json.dumps(data).encode())
    assert [cell.cell_type for cell in notebook.cells] == ["code", "markdown", "raw", "raw"]
    assert [cell["id"] for cell in notebook.cells] == [
        *("handed-in-0", "same", "handed-in-2", "handed-in-3"),
    ]
    assert notebook.cells[0].source == "a = 1\nb"
    assert notebook.cells[0].outputs == []
    assert notebook.cells[3].source == "half \ufffd"
    nbformat.validate(notebook)
    nbformat.writes(notebook).encode()


def test_of_metadata_only_the_marks_of_grading_are_kept() -> None:
    own = {"grade_id": "a", "points": [[1]], "solution": True, "more": {}}
    metadata = {"nbgrader": own, "tags": ["b"], "id": "c", "x": [{}]}
    cell = {"cell_type": "code", "source": "d", "metadata": metadata, "y": {}, "outputs": [{}]}
    (kept,) = parse(json.dumps({"cells": [cell]}).encode()).cells
    marks = {"grade_id": "a", "solution": True}
    assert kept.metadata == {"nbgrader": marks, "tags": ["b"], "id": "c"}
    assert kept.keys() == {"cell_type", "execution_count", "id", "metadata", "outputs", "source"}


@pytest.mark.parametrize(
    "text",
    [
        '{"cells": [], "x": [MANY]}',
        '{"cells": [{"cell_type": "raw", "source": "", "metadata": {"x": [MANY]}}]}',
    ],
)
def test_reading_takes_little_memory_whatever_the_file_holds(text: str) -> None:
    """Of a worker's own, which no sandbox bounds: 4 GB were seen for a file of 20 MB."""
    content = text.replace("MANY", ",".join(["{}"] * 300_000)).encode()
    tracemalloc.start()
    try:
        parse(content)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 40 * len(content)


@pytest.mark.parametrize("source", ["a = 1\r\nb\rc\n", ["a = 1\r\n", "b\r", "c\n"]])
def test_lines_end_as_everywhere(source: str | list[str]) -> None:
    data = {"cells": [{"cell_type": "code", "source": source}]}
    (cell,) = parse(json.dumps(data, indent=1).replace("\n", "\r\n").encode()).cells
    assert cell.source == "a = 1\nb\nc\n"


def test_notebooks_of_old_editors_are_read() -> None:
    old = nbformat.convert(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("a = 1")]), 3)
    (cell,) = parse(nbformat.writes(old, version=3).encode()).cells
    assert (cell.cell_type, cell.source) == ("code", "a = 1")


@pytest.mark.parametrize(
    ("metadata", "version"),
    [
        ({"language_info": {"version": "3.99.1"}}, "3.99.1"),
        ({"language_info": {"version": "3.99.1 <b>"}}, ""),
        ({"language_info": 3}, ""),
        ([], ""),
    ],
)
def test_the_python_that_saved_a_notebook_is_known(metadata: object, version: str) -> None:
    content = json.dumps({"cells": [], "metadata": metadata, "nbformat": 4}).encode()
    assert parse(content).metadata.saved_by == version
    said = "this notebook was saved by Python 3.99.1" if version else ""
    assert other_python(version).endswith(said) and bool(other_python(version)) == bool(said)
    assert other_python(platform.python_version()) == ""
