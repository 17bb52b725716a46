"""Exports of grades to Gradescope, Canvas and Moodle; changes by people; a release and checks before it."""

from __future__ import annotations

import argparse
import csv
import importlib.util
import io
import json
import os
import subprocess
import zipfile
from argparse import ArgumentTypeError
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell
from nbformat import NotebookNode

from autograder.book.gradebook import ClassBook
from autograder.book.standing import ByHand, Standing, final_maximum, final_score, standings
from autograder.book.store import Store
from autograder.book.table import Row, write_csv
from autograder.commands import export, gradescope, release, reliability, report
from autograder.commands.choice import ChoiceError, at_least_one, chosen, named_after, only_one
from autograder.course.config import NOTEBOOKS, ROOT, SOLUTIONS, assignments
from autograder.course.place import Place, ReleaseError
from autograder.course.release import write_release
from autograder.outcome.result import Exercise, Result
from autograder.report import bundle
from autograder.report.exports import Columns, ExportError, canvas, moodle, read_table
from autograder.report.gradescope import WITHOUT_GRADEBOOK, results_json
from autograder.report.reliability import reference_submission
from autograder.report.reliability import reliability as try_often
from autograder.report.write import note_left_out, page_of, read_class, write_reports
from autograder.submission.intake import parse
from autograder.submission.marking import untouched
from autograder.submission.restore import Restored, restore
from autograder.submission.suspicion import suspicious
from course_lib.checks.report import Report, ReportLine
from course_lib.checks.sentence import Sentence

NAME = "00_first_ranks"


def report_of(share: float, *sentences: str) -> dict:
    line = ReportLine("4 ranks", share == 1.0, output=["secret"])
    line.say(sentences)
    return Report(f"{NAME}/hello", share, [line], cases="hidden", seed=-1).to_json()


def result_of(student: str = "anna", points: float = 1.0, **fields) -> Result:
    quoting = Sentence("f(17) raised ValueError: secret 17", "f raised ValueError.")
    said = () if points == 4 else (quoting,)
    exercises = [
        Exercise(
            "hello_check",
            "hello",
            points,
            4,
            "" if points == 4 else "r",
            report=report_of(points / 4, *said),
        ),
        Exercise("essay", "essay", 0, 3, "a person gives the points"),
    ]
    return Result(
        student,
        NAME,
        **{"status": "graded", "exercises": exercises, "sandbox": ["limits"], **fields},
    )


# --- Gradescope ----------------------------------------------------------------------------------


def test_gradescope_gets_a_test_for_each_exercise() -> None:
    data = results_json(result_of(seconds=12.6, fingerprint="f"))
    assert json.loads(json.dumps(data)) == data
    assert (data["score"], data["execution_time"], data["visibility"]) == (1.0, 13, "visible")
    first, second = data["tests"]
    assert (first["name"], first["number"], first["score"], first["max_score"]) == (
        "hello",
        "1",
        1.0,
        4,
    )
    assert (first["status"], first["output_format"], first["visibility"]) == (
        "failed",
        "text",
        "visible",
    )
    assert "✗ 4 ranks" in first["output"] and "f raised ValueError." in first["output"]
    assert "secret" not in json.dumps(data) and "17" not in first["output"]
    assert second["output"] == "a person gives the points"
    assert data["extra_data"]["status"] == "graded" and data["extra_data"]["sandbox"] == ["limits"]
    assert results_json(result_of(points=4))["tests"][0]["status"] == "passed"


def test_gradescope_gets_what_a_gradebook_adds() -> None:
    hand = {"essay": ByHand(2.5, 3, "Well seen.", 0.25), "task": ByHand(1, 2)}
    data = results_json(result_of(), Standing(hand, penalty=1.5))
    assert data["score"] == 1 + 2.75 + 1 - 1.5
    assert [one["score"] for one in data["tests"]] == [1, 2.75, 1]
    assert [one["max_score"] for one in data["tests"]] == [4, 3, 2]
    assert data["tests"][1]["output"] == "A person gave the points.\nWell seen."
    assert "1.5 points off: late." in data["output"] and WITHOUT_GRADEBOOK not in data["output"]
    for without in (results_json(result_of(), Standing()), results_json(result_of())):
        assert without["score"] == 1
    assert WITHOUT_GRADEBOOK in results_json(result_of())["output"]
    assert WITHOUT_GRADEBOOK not in results_json(result_of(), unfinished=True)["output"]


def test_no_grade_is_no_zero_for_gradescope() -> None:
    data = results_json(Result("a", NAME, "ungraded", "the ranks could not be started"))
    assert "score" not in data and data["tests"] == []
    assert "the ranks could not be started" in data["output"]
    assert results_json(Result("a", NAME, "missing", "not handed in"))["score"] == 0


@pytest.fixture
def container(tmp_path: Path) -> Path:
    """Gradescope's folders with one notebook handed in."""
    (tmp_path / "submission").mkdir()
    (tmp_path / "submission" / f"{NAME}.ipynb").write_text("{}")
    (tmp_path / "submission_metadata.json").write_text('{"users": [{"id": 8}, {"id": "../7"}]}')
    return tmp_path


def results_of(container: Path) -> dict:
    return json.loads((container / "results/results.json").read_text("utf-8"))


def test_results_are_there_from_the_first_moment(container: Path) -> None:
    seen = []

    def grade(folder: Path, so_far: Callable[[Result], None]) -> Result:
        seen.append(results_of(container))
        (path,) = folder.rglob("*.ipynb")
        assert path.relative_to(folder) == Path("student-7-8", NAME, f"{NAME}.ipynb")
        so_far(result_of("student-7-8", exercises=result_of().exercises[:1]))
        seen.append(results_of(container))
        return result_of("student-7-8", 4)

    assert bundle.run(container, NAME, grade).score == 4
    begun, partial, done = *seen, results_of(container)
    assert begun["score"] == 0 and begun["tests"] == [] and "is not finished" in begun["output"]
    assert partial["score"] == 1 and "is not finished" in partial["output"]
    assert done["score"] == 4 and len(done["tests"]) == 2 and "its end" not in done["output"]


def test_a_failure_of_the_grader_is_no_grade(container: Path) -> None:
    def grade(folder: Path, so_far: Callable[[Result], None]) -> Result:
        so_far(result_of())
        raise OSError("no space")

    assert bundle.run(container, NAME, grade).status == "ungraded"
    assert "score" not in results_of(container) and "no space" in results_of(container)["output"]


@pytest.mark.parametrize("text", ["", "[]", '{"users": 3}', '{"users": [{}]}'])
def test_without_gradescopes_file_the_student_has_a_name_too(text: str, tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text(text)
    assert bundle.student_of(tmp_path / "m.json") == "student-unknown"


def test_only_notebooks_are_taken_in_and_no_links(tmp_path: Path) -> None:
    handed_in, secret = tmp_path / "in", tmp_path / "secret.ipynb"
    (handed_in / "deep").mkdir(parents=True)
    secret.write_text("secret")
    (handed_in / "a.ipynb").write_text("top")
    (handed_in / "deep" / "a.ipynb").write_text("deep")
    (handed_in / "deep" / "b.ipynb").write_text("b")
    (handed_in / "torch.py").write_text("")
    (handed_in / "c.ipynb").symlink_to(secret)
    (handed_in / "linked").symlink_to(tmp_path)
    os.mkfifo(handed_in / "d.ipynb")
    bundle.take_in(handed_in, tmp_path / "out")
    assert {path.name: path.read_text() for path in (tmp_path / "out").iterdir()} == {
        "a.ipynb": "top",
        "b.ipynb": "b",
    }


def test_the_bundle_holds_what_grading_takes(tmp_path: Path) -> None:
    one, two = tmp_path / "one.zip", tmp_path / "two.zip"
    for path in (one, two):
        bundle.make_bundle(NAME, path, secret=b"s" * 32, seconds=1200)
    assert one.read_bytes() == two.read_bytes()
    with zipfile.ZipFile(one) as archive:
        modes = {info.filename: info.external_attr >> 16 & 0o777 for info in archive.infolist()}
        texts = {name: archive.read(name) for name in modes}
    assert modes["setup.sh"] == modes["run_autograder"] == 0o755 and modes["secret"] == 0o600
    assert one.stat().st_mode & 0o777 == 0o600, "it holds the solutions and the secret"
    for needed in (
        "autograder/__main__.py",
        "autograder/report/pages/feedback.html.j2",
        "course_lib/checks/judge/judge.py",
        f"solutions/{NAME}/{NAME}.ipynb",
        f"notebooks/{NAME}/{NAME}.ipynb",
        "requirements.lock",
        "tools/make_venv.py",
    ):
        assert texts[needed] == (ROOT / needed).read_bytes()
    assert not [
        name
        for name in texts
        if "__pycache__" in name
        or name.startswith(("autograder/out/", "autograder/out-sample/", "tests/"))
    ]
    assert not [
        name
        for name in texts
        if "02_collectives" in name and name.startswith(("solutions", "notebooks"))
    ]
    assert b"--seconds 1200" in texts["run_autograder"]
    for script in ("setup.sh", "run_autograder"):
        (tmp_path / script).write_bytes(texts[script])
        subprocess.run(["bash", "-n", tmp_path / script], check=True)


# --- Canvas --------------------------------------------------------------------------------------

ROSTER = """Student,ID,SIS User ID,SIS Login ID,Section,00_first_ranks (11),02_collectives (12),Final
Points Possible,,,,,9,60,
"Ng, Anna",101,s1,anna@uni.example,A,3,5.5,x
"=Ben",102,s2,BEN,A,EX,,
Carla,103,s3,,B,,,
,,,,,Manual Posting,,
"""


OF_SEVEN = ROSTER.replace(",9,60,", ",7,7,")  # the maximum of `result_of`


def rows_of(text: str, delimiter: str = ",") -> list[list[str]]:
    return list(
        csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline=""), delimiter=delimiter)
    )


def test_canvas_gets_its_columns_back() -> None:
    scores = {
        NAME: {"anna": 7.25, "ben": None, "103": 9.0},
        "02_collectives": {"ben": 0.0, "zoe": 3.0},
    }
    text, notes = canvas(scores, {NAME: 9.0, "02_collectives": 60.0}, ROSTER)
    assert rows_of(text) == [
        [
            "Student",
            "ID",
            "SIS User ID",
            "SIS Login ID",
            "Section",
            "00_first_ranks (11)",
            "02_collectives (12)",
        ],
        ["    Points Possible", "", "", "", "", "9", "60"],
        ["Ng, Anna", "101", "s1", "anna@uni.example", "A", "7.25", "5.5"],  # late, by hand
        ["=Ben", "102", "s2", "BEN", "A", "EX", "0"],  # excused
        ["Carla", "103", "s3", "", "B", "9", ""],
    ]
    assert notes == [
        "Students were found in the roster by the names of their folders: 2 by 'SIS Login ID', 1 by 'ID'.",
        "zoe has a grade in 02_collectives and is not in the roster.",
    ]


def test_canvas_rows_without_a_login_are_named_if_a_student_has_none() -> None:
    _, notes = canvas({NAME: {"anna": 7.0, "carla": 9.0}}, {NAME: 9.0}, ROSTER)
    assert notes[1:] == [
        f"carla has a grade in {NAME} and is not in the roster.",
        "No folder fits 1 row without a SIS Login ID: Carla (s3).",
    ]
    _, notes = canvas({NAME: {"anna": 7.0}}, {NAME: 9.0}, ROSTER)
    assert len(notes) == 1


TWO = """Student,ID,SIS User ID,SIS Login ID,Section,00_first_ranks (11)
"Dupont, Jean",101,s1,dupont@a.example,A,3
"Dupont, Marie",102,{},{},A,4
"""


@pytest.mark.parametrize("scores", [{"dupont": 9.0}, {"dupont": 9.0, "zoe": 1.0}])
def test_two_rows_that_fit_one_folder_equally_well_stay(scores: dict) -> None:
    text, notes = canvas({NAME: scores}, {NAME: 9.0}, TWO.format("s2", "dupont@b.example"))
    assert [row[-1] for row in rows_of(text)[2:]] == ["3", "4"]
    assert "Dupont, Jean (dupont@a.example) and Dupont, Marie (dupont@b.example)" in notes[0]
    assert "Enter the grade of dupont by hand" in notes[0]
    assert not any("dupont has a grade" in note for note in notes)


@pytest.mark.parametrize(
    ("sis_id", "login"), [("dupont", "m"), ("s2", "dupont")], ids=["in another column", "a login"]
)
def test_a_whole_match_counts_before_the_part_of_an_address(sis_id: str, login: str) -> None:
    text, notes = canvas({NAME: {"dupont": 9.0}}, {NAME: 9.0}, TWO.format(sis_id, login))
    assert [row[-1] for row in rows_of(text)[2:]] == ["3", "9"]
    how, note = notes
    assert f"1 by '{'SIS Login ID' if login == 'dupont' else 'SIS User ID'}'." in how
    assert note.startswith("Dupont, Jean (dupont@a.example) fits the folder dupont, too")


def test_an_earlier_column_counts_before_a_later_one() -> None:
    roster = TWO.format("s2", "101")  # a login of one that is Canvas' id of the other
    text, _ = canvas({NAME: {"101": 9.0}}, {NAME: 9.0}, roster)
    assert [row[-1] for row in rows_of(text)[2:]] == ["3", "9"]


def test_two_rows_of_a_worksheet_that_fit_one_folder_stay() -> None:
    sheet = WORKSHEET.replace("Ben,ben@uni", "Anna Bo,anna@other")
    text, notes = moodle({"anna": 7.0, "dora": 8.0}, 9.0, sheet)
    assert [row[4] for row in rows_of(text)[1:]] == ["", "5.00", "4.00", "8", "1.00"]
    assert "Participant 1 (Anna Ng) and Participant 2 (Anna Bo)" in notes[1]


def test_an_assignments_id_in_canvas_can_be_given() -> None:
    text, _ = canvas({"03_x": {"anna": 1.0}}, {"03_x": 2.0}, ROSTER, {"03_x": 77})
    own = ROSTER.replace("Section", "Section,03 The x (77)", 1)
    kept, _ = canvas({"03_x": {"anna": 1.0}}, {"03_x": 9.0}, own, {"03_x": 77})
    assert kept.splitlines()[0].endswith("03 The x (77)"), "the export's own column keeps its name"
    assert rows_of(text)[0][-1] == "03_x (77)"
    with pytest.raises(ExportError, match="'03_x \\(<id>\\)'"):
        canvas({"03_x": {}}, {"03_x": 2.0}, ROSTER)


@pytest.mark.parametrize("head", ["Points Possible", "    Points Possible"])
def test_a_column_of_canvas_with_other_points_is_refused(head: str) -> None:
    """Canvas would take 9 points of 9 for 90 % or 900 %, and say nothing."""
    roster = ROSTER.replace("Points Possible", head)
    with pytest.raises(
        ExportError, match=r"'00_first_ranks \(11\)' has 9 points possible, .* has 10:"
    ):
        canvas({NAME: {"anna": 1.0}}, {NAME: 10.0}, roster)
    canvas({NAME: {"anna": 1.0}}, {NAME: 10.0}, roster.replace(",9,60,", ",(read only),60,"))
    canvas({NAME: {"anna": 0.0}}, {NAME: 0.0}, roster)  # no notebook was read, so nothing is known


@pytest.mark.parametrize("roster", ["", "Student\nx\n", "Student,ID\nx,1\n"])
def test_a_roster_that_is_none_is_refused(roster: str) -> None:
    with pytest.raises(ExportError):
        canvas({NAME: {}}, {NAME: 1.0}, roster, {NAME: 1})


# --- Moodle --------------------------------------------------------------------------------------

WORKSHEET = (
    "\ufeffIdentifier,Full name,Email address,Status,Grade,Maximum Grade,Grade can be changed,"
    "Last modified (submission),Last modified (grade),Feedback comments\r\n"
    'Participant 1,Anna Ng,anna@uni.example,"Submitted, late",,9.00,Yes,-,-,\r\n'
    'Participant 2,Ben,ben@uni.example,,5.00,9.00,Yes,-,"Friday, 9 May 2025",well done\r\n'
    "Participant 3,Carla,carla@uni.example,,4.00,9.00,No,-,-,\r\n"
    "Participant 4,Dora,dora@uni.example,,2.00,9.00,Yes,-,-,\r\n"
    "Participant 5,Emil,emil@uni.example,,1.00,9.00,No,-,-,\r\n"
)


def test_moodles_worksheet_is_filled_in_and_nothing_else() -> None:
    text, notes = moodle({"anna": 7.25, "ben": None, "carla": 9.0, "zoe": 1.0}, 9.0, WORKSHEET)
    before, after = rows_of(WORKSHEET), rows_of(text)
    assert text.startswith("\ufeff") and before[0] == after[0]
    assert [row[4] for row in after[1:]] == ["7.25", "5.00", "4.00", "2.00", "1.00"]
    assert [row[:4] + row[5:] for row in before] == [row[:4] + row[5:] for row in after]
    how, locked, absent = notes
    assert how == "The students' folders have the names in the column 'Email address'."
    assert locked.startswith("2 rows stay as they were") and "carla, emil@uni.example" in locked
    assert absent == "zoe has a grade and is not in the worksheet."


def test_a_row_without_a_text_in_the_column_of_the_others_is_found_by_another() -> None:
    sheet = WORKSHEET.replace("Participant 4,Dora,dora@uni.example", "Participant 4,Dora Müller,")
    scores = {"anna@uni.example": 7.0, "ben@uni.example": 8.0, "Dora Müller": 6.0}
    text, notes = moodle(scores, 9.0, sheet)
    assert [row[4] for row in rows_of(text)[1:]] == ["7", "8", "4.00", "6", "1.00"]
    assert not any("not in the worksheet" in note for note in notes)


def test_a_worksheet_that_moodle_would_not_import_is_named() -> None:
    table = read_table(WORKSHEET)
    cut = replace(table, header=table.header[:8], rows=[row[:8] for row in table.rows])
    notes = moodle({"anna": 7.25}, 9.0, cut.to_text())[1]
    (note,) = [one for one in notes if "imports no worksheet" in one]
    assert "'Last modified (grade)'" in note and "Identifier" not in note


def test_work_that_was_downloaded_from_canvas_finds_its_row() -> None:
    """Of "nganna_101" both parts must fit: Canvas writes Ng, Anna without signs, and has the 101."""
    scores = {"nganna_101": 7.0, "carla_102": 1.0, "103_103": 2.0}
    text, notes = canvas({NAME: scores}, {NAME: 9.0}, ROSTER)
    assert [row[5] for row in rows_of(text)[2:]] == ["7", "EX", ""]
    assert notes[0] == (
        "1 row was found by the number in a student's name: the grade of nganna_101 went to Ng, Anna "
        "(anna@uni.example)."
    )
    assert [note.split()[0] for note in notes[1:]] == ["103_103", "carla_102", "No"]
    turned = ROSTER.replace('"Ng, Anna"', "Anna Ng")
    assert canvas({NAME: scores}, {NAME: 9.0}, turned)[0].count(",A,7\r") == 1


def test_work_that_was_downloaded_from_moodle_finds_its_row() -> None:
    sheet = WORKSHEET.replace("3,Carla", "3,Anna Ng").replace("Yes,-,-,", "Yes,-,-,", 1)
    sheet = sheet.replace("4,Dora", '4,"Dora O\'Brien"').replace("No,", "Yes,")
    text, notes = moodle({"Anna Ng_3": 7.0, "Ben": 8.0, "Dora OBrien": 6.0}, 9.0, sheet)
    assert [row[4] for row in rows_of(text)[1:]] == ["", "8", "7", "6", "1.00"]
    assert notes == [
        "The students' folders have the names in the column 'Full name'.",
        "1 row was found by the number in a student's name: the grade of Anna Ng_3 went to Participant 3 "
        "(Anna Ng).",
    ]
    both, _ = moodle({"Ben": 8.0, "B:en": 6.0}, 9.0, WORKSHEET)
    assert rows_of(both)[2][4] == "8", "the whole name counts before one that is cleaned"


def test_a_class_without_names_is_found_by_its_numbers() -> None:
    sheet = "Identifier,Status,Grade,Last modified (grade)\r\nParticipant 1,,,-\r\nParticipant 2,,,-\r\n"
    text, notes = moodle({"Participant_2": 4.0, "Participant_1": 3.0}, 9.0, sheet)
    assert [row[2] for row in rows_of(text)[1:]] == ["3", "4"]
    assert notes[-1].startswith(("2 rows were found by the number", "The students' folders"))


def test_worksheets_in_another_language_are_filled_in() -> None:
    worksheet = (
        "Kennung;ID-Nummer;Bewertung;Bestwert;Änderbar\r\n"
        "Teilnehmer 1;s1;;9,00;Ja\r\nTeilnehmer 2;s2;1;9,00;Nein\r\n"
    )
    german = Columns("ID-Nummer", "Bewertung", "Bestwert", "Änderbar", "nein")
    text, notes = moodle({"s1": 3.5, "s2": 4.0}, 9.0, worksheet, german)
    assert [row[2] for row in rows_of(text, ";")] == ["Bewertung", "3.5", "1"]
    assert [note.partition(",")[0] for note in notes] == ["1 row stays as it was"]
    with pytest.raises(ExportError, match=r"'Grade'.*'Kennung'"):
        moodle({"s1": 3.5}, 9.0, worksheet)
    with pytest.raises(ExportError, match="maximum grade is 9,00"):
        moodle({"s1": 3.5}, 8.0, worksheet, german)
    with pytest.raises(ExportError, match="no column 'Punkte'"):
        moodle({"s1": 3.5}, 9.0, worksheet, replace(german, maximum="Punkte"))


def test_a_worksheet_of_something_else_is_refused() -> None:
    with pytest.raises(ExportError, match=r"maximum grade is 9.00, the assignment has 10 points"):
        moodle({"anna": 1.0}, 10.0, WORKSHEET)
    with pytest.raises(ExportError, match="no column"):
        moodle({"nobody": 1.0}, 9.0, WORKSHEET)
    moodle({"anna": 0.0}, 0.0, WORKSHEET)  # no notebook was read, so nothing is known


def test_tables_are_read_as_the_site_wrote_them() -> None:
    table = read_table('a;b\r\n"1;\n2";3\r\n4\r\n')
    assert (
        table.rows == [["1;\n2", "3"], ["4", ""]]
        and table.to_text() == 'a;b\r\n"1;\n2";3\r\n4;\r\n'
    )


# --- changes by people ---------------------------------------------------------------------------


@pytest.fixture
def book(tmp_path: Path) -> Path:
    """A gradebook in which anna has points by hand, a comment and a penalty; ben has nothing."""
    with ClassBook(tmp_path, tmp_path).open() as book:
        for name in (NAME, "other"):
            book.add_assignment(name)
            book.add_notebook(name, name)
            book.add_grade_cell("hello_check", name, name, max_score=4, cell_type="code")
            book.add_grade_cell("essay", name, name, max_score=3, cell_type="markdown")
            book.add_solution_cell("essay", name, name)
            book.add_solution_cell("hello", name, name)
        for student in ("anna", "ben"):
            book.add_student(student)
            book.add_submission(NAME, student)
        book.find_grade("hello_check", NAME, NAME, "anna").auto_score = 99
        book.find_grade("essay", NAME, NAME, "anna").manual_score = 2.5
        book.find_grade("essay", NAME, NAME, "anna").extra_credit = 0.5
        book.find_comment("hello", NAME, NAME, "anna").manual_comment = "Nice name."
        book.find_submission_notebook(NAME, NAME, "anna").late_submission_penalty = 1
        book.db.commit()
    return tmp_path


# nbgrader 0.9.6 with SQLAlchemy 2.1: harmless, and the commands send them to a log.
@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning")
def test_points_by_hand_are_read_from_the_gradebook(book: Path) -> None:
    assert standings(book / "none.db", NAME) == {} and not (book / "none.db").exists()
    before = (book / "gradebook.db").read_bytes()
    found = standings(book / "gradebook.db", NAME)
    assert found["anna"] == Standing(
        {"essay": ByHand(2.5, 3, "", 0.5), "hello": ByHand(None, 0, "Nice name.")}, 1
    )
    assert found["ben"] == Standing()
    assert standings(book / "gradebook.db", "other") == {}
    assert (book / "gradebook.db").read_bytes() == before
    assert final_score(result_of(points=4), found["anna"]) == 4 + 2.5 + 0.5 - 1
    assert final_maximum(result_of(), found["anna"]) == 7
    assert final_score(result_of(points=0), Standing(penalty=3)) == 0
    assert final_score(Result("a", NAME, "ungraded"), found["anna"]) is None


@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SAWarning")
def test_all_pages_and_files_of_a_class(book: Path) -> None:
    tmp_path = book
    store = Store(tmp_path)
    notebook = nbformat.read(NOTEBOOKS / NAME / f"{NAME}.ipynb", as_version=4)
    pages = {name: tmp_path / "feedback" / name / NAME / f"{NAME}.html" for name in ("anna", "ben")}
    for student, page in pages.items():
        store.write(result_of(student))
        run = tmp_path / "autograded" / student / NAME / f"{NAME}.ipynb"
        run.parent.mkdir(parents=True)
        nbformat.write(notebook, run)
        page.parent.mkdir(parents=True)
        page.write_text(page_of(result_of(student), notebook, notebook))
    ours = pages["ben"].read_text()
    points = sum(cell.metadata.get("nbgrader", {}).get("points", 0) for cell in notebook.cells)
    assert f"1 of {points:g}" in ours
    found = read_class(tmp_path, store.all())
    assert found.scores(NAME) == {"anna": 3.0, "ben": 1.0} and found.maximum(NAME) == 7
    assert write_reports(found) == 1
    assert "Nice name." in pages["anna"].read_text() and pages["ben"].read_text() == ours
    taken_back = read_class(tmp_path, store.all())
    taken_back.standings.clear()
    assert write_reports(taken_back) == 1 and "Nice name." not in pages["anna"].read_text()
    assert write_reports(taken_back) == 0
    assert 'href="feedback/ben/' in (tmp_path / "class.html").read_text()
    written = json.loads((tmp_path / "gradescope/ben" / NAME / "results.json").read_text())
    assert written["score"] == 1
    written = json.loads((tmp_path / "gradescope/anna" / NAME / "results.json").read_text())
    assert written["score"] == 1, "points given by hand were taken back"
    write_reports(found)
    written = json.loads((tmp_path / "gradescope/anna" / NAME / "results.json").read_text())
    assert (written["score"], written["tests"][1]["score"]) == (3.0, 3.0)


# --- release -------------------------------------------------------------------------------------


PLACE = Place("someone/course", "v1", "handout/2026")


@pytest.fixture
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file in the wheel's place; `tests/project/test_recipes.py` installs the real one."""
    wheel = tmp_path_factory.mktemp("package") / "course_lib-0.1.0-py3-none-any.whl"
    wheel.write_bytes(b"a wheel")
    return wheel


def test_what_is_released_is_what_was_checked(tmp_path: Path, package: Path) -> None:
    (tmp_path / NAME).mkdir()
    (tmp_path / NAME / "old.txt").write_text("from before")
    made = write_release(assignments(), tmp_path, package=package)
    assert [path.parent.name for path in made.notebooks] == assignments()
    with zipfile.ZipFile(made.archive) as archive:
        for name in assignments():
            built = (NOTEBOOKS / name / f"{name}.ipynb").read_bytes()
            assert archive.read(f"{name}/{name}.ipynb") == built
            assert [path.read_bytes() for path in (tmp_path / name).iterdir()] == [built]
        assert len(archive.namelist()) == len(assignments()) + 2
        assert archive.read(package.name) == package.read_bytes()
    assert (tmp_path / package.name).read_bytes() == package.read_bytes()
    first = made.archive.read_bytes()
    assert write_release(assignments(), tmp_path, package=package).archive.read_bytes() == first


def test_what_was_typed_in_the_handout_is_kept_elsewhere(tmp_path: Path, package: Path) -> None:
    into = tmp_path / "handout"
    write_release([NAME], into, package=package)
    (into / "README.md").write_text("Hand in by Friday.")
    (into / NAME / "hint.txt").write_text("mine")
    notebook = nbformat.read(into / NAME / f"{NAME}.ipynb", as_version=4)
    notebook.cells[0].source += "typed, and nothing was run"
    nbformat.write(notebook, into / NAME / f"{NAME}.ipynb")
    write_release([NAME], into, package=package)
    assert [path.name for path in (into / NAME).iterdir()] == [f"{NAME}.ipynb"]
    before = tmp_path / "handout_before"
    assert (before / "README.md").read_text() == "Hand in by Friday."
    assert (before / NAME / "hint.txt").read_text() == "mine"
    assert (before / NAME / f"{NAME}.ipynb").is_file()
    kept = sorted(before.rglob("*"))
    write_release([NAME], into, package=package)
    write_release([NAME], into, package=package, place=PLACE)
    assert sorted(before.rglob("*")) == kept, "a release does not keep its own files"


def test_a_zip_of_somebody_else_is_kept_elsewhere(tmp_path: Path, package: Path) -> None:
    into = tmp_path / "handout"
    into.mkdir()
    with zipfile.ZipFile(into / "notebooks.zip", "w") as archive:
        archive.writestr("mine.txt", "mine")
    for _ in range(2):
        write_release([NAME], into, package=package)
    (kept,) = (tmp_path / "handout_before").iterdir()
    assert zipfile.ZipFile(kept).read("mine.txt") == b"mine"


def test_with_a_repository_each_notebook_opens_anywhere(tmp_path: Path, package: Path) -> None:
    made = write_release(assignments(), tmp_path, package=package, place=PLACE)
    readme = made.readme.read_text("utf-8")
    for name, path in zip(assignments(), made.notebooks, strict=True):
        file = f"someone/course/blob/v1/handout/2026/{name}/{name}.ipynb"
        links = (
            f"https://colab.research.google.com/github/{file}",
            f"https://kaggle.com/kernels/welcome?src=https://github.com/{file}",
        )
        released = nbformat.read(path, as_version=4)
        nbformat.validate(released)
        badges, course, *rest = released.cells
        for link in links:
            assert f"]({link})" in badges.source and f"]({link})" in readme
        assert "Installs the course" not in readme, "a comment of a cell, and not its title"
        assert "%pip install -q git+https://github.com/someone/course@v1" in course.source
        checked = nbformat.read(NOTEBOOKS / name / f"{name}.ipynb", as_version=4)
        assert (rest, released.metadata) == (checked.cells, checked.metadata)
    with zipfile.ZipFile(made.archive) as archive:
        for path in made.notebooks:
            assert archive.read(f"{path.parent.name}/{path.name}") == path.read_bytes()
    first = made.archive.read_bytes()
    assert (
        write_release(assignments(), tmp_path, package=package, place=PLACE).archive.read_bytes()
        == first
    )


def test_the_cells_for_other_hosts_change_no_grade(tmp_path: Path, package: Path) -> None:
    for path in write_release(assignments(), tmp_path, package=package, place=PLACE).notebooks:
        released = nbformat.read(NOTEBOOKS / path.parent.name / path.name, as_version=4)
        submission = parse(path.read_bytes())
        assert restore(submission, released) == Restored()
        assert [cell["id"] for cell in submission.cells[:2]] == ["open-elsewhere", "get-the-course"]
        plain = parse(nbformat.writes(released).encode())
        assert restore(plain, released) == Restored()
        assert submission.cells[2:] == plain.cells
        assert untouched(submission, released) and suspicious(submission, released) == []


@pytest.mark.parametrize("there", [True, False])
def test_the_course_is_fetched_only_if_it_is_not_there(
    tmp_path: Path, package: Path, there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (made,) = write_release([NAME], tmp_path, package=package, place=PLACE).notebooks
    asked: list[str] = []
    shell = InteractiveShell()
    shell.register_magic_function(asked.append, magic_name="pip")
    if not there:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    cell = nbformat.read(made, as_version=4).cells[1]
    shell.run_cell(cell.source).raise_error()
    assert asked == ([] if there else ["install -q git+https://github.com/someone/course@v1"])


@pytest.mark.parametrize(
    "fields",
    [
        ("https://github.com/a/b",), ("a",), ("a/b)c",), ("a/b", "x y"), ("a/b", "../x"),
        ("a/b", "main", ""), ("a/b", "main", "/x"), ("a/b", "main", "x/../y"), ("a/b", "main", "x)y"),
    ],
)  # fmt: skip
def test_a_name_that_cannot_be_one_is_said(fields: tuple[str, ...]) -> None:
    with pytest.raises(ReleaseError, match="is not"):
        Place(*fields)


def test_the_name_that_stands_for_a_repository_is_none() -> None:
    with pytest.raises(ReleaseError, match="stands for your own repository"):
        Place("owner/name")


def test_what_was_not_built_is_not_released(tmp_path: Path, package: Path) -> None:
    with pytest.raises(ReleaseError, match="make notebooks"):
        write_release(["99_never"], tmp_path / "out", package=package)
    assert not (tmp_path / "out").exists()


# --- before a release ----------------------------------------------------------------------------


def test_a_check_that_fails_now_and_then_is_named() -> None:
    asked: list[str] = []

    def mark(student: str, notebook: NotebookNode) -> Result:
        asked.append(student)
        notebook.cells.clear()  # each round has a notebook of its own
        if len(asked) == 5:
            return Result(student, NAME, "ungraded", "no memory")
        return result_of(student, 4 if len(asked) % 4 else 3)

    found = try_often(NAME, mark)
    assert len(set(asked)) == 10, "every round draws other hidden cases"
    assert [(one.exercise, one.failed, one.times) for one in found] == [
        ("hello", 2, 10), ("the status 'ungraded'", 1, 10),
    ]  # fmt: skip
    assert str(found[1]) == f"{NAME}: the status 'ungraded' in 1 of 10 rounds: no memory"
    assert try_often(NAME, lambda student, notebook: result_of(student, 4), times=3) == []


def test_nothing_checked_is_not_all_well() -> None:
    (found,) = try_often(NAME, lambda student, notebook: Result(student, NAME, "graded"), times=1)
    assert found.said == "no exercise was checked"


def test_the_reference_is_handed_in_like_a_students() -> None:
    for name in assignments():
        source, released = (
            nbformat.read(folder / name / f"{name}.ipynb", as_version=4)
            for folder in (SOLUTIONS, NOTEBOOKS)
        )
        made = reference_submission(source, released)
        assert [cell.id for cell in made.cells] == [cell.id for cell in released.cells]
        assert any(a.source != b.source for a, b in zip(made.cells, released.cells, strict=True))
        assert not any(
            "BEGIN SOLUTION" in cell.source or 'cases="hidden"' in cell.source
            for cell in made.cells
        )


# --- commands ------------------------------------------------------------------------------------


def command(*arguments: str | Path) -> int:
    """The exit code of `python -m autograder ...`, for the commands that are tested here."""
    modules = {
        "release": release, "report": report, "export": export,
        "gradescope": gradescope, "reliability": reliability,
    }  # fmt: skip
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command")
    for module in modules.values():
        module.add_parser(commands)
    options = parser.parse_args([str(one) for one in arguments])
    return modules[options.command].run(options)


def test_commands_export_what_was_graded(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    Store(tmp_path).write(result_of("anna"))
    Store(tmp_path).write(result_of("zoe", 4))
    (tmp_path / "roster.csv").write_text(OF_SEVEN)
    (tmp_path / "sheet.csv").write_text(WORKSHEET.replace("9.00", "7.00"), newline="")
    assert command("export", "--out", tmp_path, "canvas", tmp_path / "roster.csv") == 0
    assert rows_of((tmp_path / f"canvas-{NAME}.csv").read_text())[2][-1] == "1"
    assert "zoe has a grade" in capsys.readouterr().out
    sheet = (
        "moodle",
        tmp_path / "sheet.csv",
        "--assignment",
        NAME,
        "--to",
        tmp_path / "filled.csv",
    )
    assert command("export", "--out", tmp_path, *sheet) == 0
    filled = (tmp_path / "filled.csv").read_text("utf-8")
    assert rows_of(filled)[1][4] == "1"
    assert filled.startswith("\ufeff") == WORKSHEET.startswith("\ufeff")
    assert command("report", "--out", tmp_path) == 0
    assert (tmp_path / "class.html").is_file()


def test_no_export_takes_the_place_of_another(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Each assignment has a file of its own, and another roster's file stays unless a person asks."""
    Store(tmp_path).write(result_of("anna"))
    Store(tmp_path).write(replace(result_of("anna", 4), assignment="02_collectives"))
    (tmp_path / "a.csv").write_text(OF_SEVEN)
    (tmp_path / "b.csv").write_text(OF_SEVEN.replace('"Ng, Anna",101', '"Ng, Anna",102'))
    (tmp_path / "sheet.csv").write_text(WORKSHEET.replace("9.00", "7.00"), newline="")
    for site, table in (("canvas", "a.csv"), ("moodle", "sheet.csv")):
        for number, name in (("00", NAME), ("02", "02_collectives")):
            line = ("export", site, tmp_path / table, "--assignment", number, "--out", tmp_path)
            assert command(*line) == 0
            assert (tmp_path / f"{site}-{name}.csv").is_file()
    both = ("export", "canvas", tmp_path / "a.csv", "--out", tmp_path)
    assert command(*both) == 0 and (tmp_path / "canvas-00-02.csv").is_file()
    first = (tmp_path / f"canvas-{NAME}.csv").read_bytes()
    other = ("export", "canvas", tmp_path / "b.csv", "--assignment", "00", "--out", tmp_path)
    sheet = ("export", "moodle", tmp_path / "sheet.csv", "--assignment", "02", "--out", tmp_path)
    capsys.readouterr()
    for line in (
        other,
        (*sheet, "--to", tmp_path / f"canvas-{NAME}.csv"),
        (*sheet, "--to", tmp_path / "sheet.csv"),
        ("gradescope", "bundle", NAME, "--out", tmp_path, "--to", tmp_path / "sheet.csv"),
    ):
        assert command(*line) == 2
        assert "add --overwrite" in capsys.readouterr().err
    assert (tmp_path / f"canvas-{NAME}.csv").read_bytes() == first
    assert not list(tmp_path.glob(".*.new")) and not list(tmp_path.glob("*_before*"))
    assert command(*other, "--overwrite") == 0
    assert (tmp_path / f"canvas-{NAME}.csv").read_bytes() != first


def test_a_file_is_named_after_its_assignments() -> None:
    assert named_after(["02_two"]) == "02_two"
    assert named_after(["00_one", "02_two"]) == "00-02"
    assert named_after(["02_two", "02_other"]) == "02_two-02_other"


def test_a_grade_of_moved_work_is_named(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """ann's work was moved to the folder dupont after it had been graded."""
    for student in ("ann", "dupont", "eve", "fay"):
        status = "graded" if student in ("ann", "dupont") else "blank"
        Store(tmp_path).write(result_of(student, status=status))
        notebook = tmp_path / "submitted" / student / NAME / f"{NAME}.ipynb"
        notebook.parent.mkdir(parents=True)
        notebook.write_text("one" if status == "graded" else "as it was handed out")
    last = [Row(name, NAME, 1.0, 4.0, "graded", "") for name in ("dupont", "eve", "fay")]
    write_csv(last, tmp_path / "grades.csv")
    (tmp_path / "roster.csv").write_text(OF_SEVEN)
    assert command("export", "--out", tmp_path, "canvas", tmp_path / "roster.csv") == 0
    said = capsys.readouterr().out
    assert f"ann has a grade in {NAME} from an earlier run" in said and "forget NAME" in said
    assert f"ann and dupont handed in the same notebook in {NAME}, byte for byte" in said
    assert "eve and fay" not in said
    assert command("report", "--out", tmp_path) == 0
    assert f"ann has a grade in {NAME} from an earlier run" in capsys.readouterr().out


def test_the_class_page_lists_what_was_left_out(tmp_path: Path) -> None:
    """Also when `report` makes it again: a student without a notebook has no other row there."""
    Store(tmp_path).write(result_of("anna"))
    for notes in (["<b>.zip holds another zip (deep.zip): unpack it."], []):
        note_left_out(tmp_path, notes)
        assert command("report", "--out", tmp_path) == 0
        page = (tmp_path / "class.html").read_text("utf-8")
        assert ("&lt;b&gt;.zip holds another zip (deep.zip)" in page) == bool(notes)
        assert "<b>.zip" not in page


def test_an_id_takes_short_names(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    Store(tmp_path).write(result_of("anna"))
    (tmp_path / "roster.csv").write_text(OF_SEVEN.replace("(11)", "(x)"))
    canvas = ("export", "--out", tmp_path, "canvas", tmp_path / "roster.csv", "--id")
    assert command(*canvas, "00=4711") == 0
    assert rows_of((tmp_path / f"canvas-{NAME}.csv").read_text())[0][-1] == f"{NAME} (4711)"
    assert command(*canvas, "07=4711") == 2
    assert "--id 07=4711: There is no assignment 07" in capsys.readouterr().err


def test_commands_say_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    for arguments in (("report",), ("export", "canvas", tmp_path / "no.csv")):
        assert command(*arguments, "--out", tmp_path) == 2
        assert "run `make grade` first" in capsys.readouterr().err
    Store(tmp_path).write(result_of())
    sheet = tmp_path / "sheet.csv"
    sheet.write_text("hello\n")
    for arguments, said in (
        (
            ("export", "--out", tmp_path, "moodle", tmp_path / "no.csv", "--assignment", "02"),
            "Nothing of 02 has been graded",
        ),
        (
            ("export", "--out", tmp_path, "canvas", tmp_path / "no.csv"),
            "no.csv cannot be read: No such file",
        ),
        (("export", "--out", tmp_path, "canvas", tmp_path), "cannot be read: Is a directory"),
        (("export", "--out", tmp_path, "canvas", sheet), f"{sheet}: the file holds no table"),
        (("export", "--out", tmp_path, "canvas", sheet, "--id", "x"), "--id takes ASSIGNMENT=ID"),
        (
            ("export", "--out", tmp_path, "moodle", sheet, "--assignment", "00"),
            f"{sheet}: the file holds no table",
        ),
        (("release", "99_never"), "There is no assignment 99_never"),
        (("release", NAME, "--repository", "x", "--into", tmp_path / "r"), "OWNER/NAME"),
        (
            ("release", NAME, "--repository", "x/y", "--folder", "..", "--into", tmp_path),
            "a folder of",
        ),
        (("reliability", "99_never"), "There is no assignment 99_never"),
        (("gradescope", "bundle", "99_never"), "There is no assignment 99_never"),
        (("gradescope", "run", NAME, "--seconds", "5"), "--seconds must be more than"),
    ):
        assert command(*arguments) == 2
        assert said in capsys.readouterr().err


def test_a_bundle_is_made_with_the_courses_own_secret(tmp_path: Path) -> None:
    assert command("gradescope", "bundle", NAME, "--out", tmp_path) == 0
    with zipfile.ZipFile(tmp_path / f"gradescope-{NAME}.zip") as archive:
        assert archive.read("secret").decode() == (tmp_path / "secret").read_text().strip()


@pytest.mark.skipif(not os.environ.get("COURSE_ALL_TESTS"), reason="takes a minute: make test-all")
def test_gradescope_and_reliability_grade_the_reference(
    container: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    source, released = (
        nbformat.read(folder / NAME / f"{NAME}.ipynb", as_version=4)
        for folder in (SOLUTIONS, NOTEBOOKS)
    )
    nbformat.write(
        reference_submission(source, released), container / "submission" / f"{NAME}.ipynb"
    )
    (container / "secret").write_text("s" * 32)
    monkeypatch.setattr(gradescope, "ROOT", container)
    assert command("gradescope", "run", NAME, "--root", container) == 0
    data = results_of(container)
    assert data["score"] == sum(test["max_score"] for test in data["tests"]) > 0
    assert command("reliability", NAME, "--times", "2") == 0, capsys.readouterr().out


def test_a_number_is_enough_and_the_names_are_said() -> None:
    known = ["00_first", "02_two", "02_other"]
    assert chosen(["02", "00"], known) == known
    assert chosen([], known) == known
    assert only_one("00", known) == only_one("0", known) == "00_first"
    assert chosen(["1"], ["01_why", "10_four", "11_experts"]) == ["01_why"]
    assert chosen(["1_", "10", "second"], ["01_why", "10_four", "1_first", "second"]) == [
        "10_four", "1_first", "second"
    ]  # fmt: skip
    assert only_one("02_two", [*known, "02_two_more"]) == "02_two"
    with pytest.raises(ChoiceError, match="several assignments: 02_two, 02_other"):
        only_one("02", known)
    with pytest.raises(ChoiceError, match="There is no assignment 03; there are 00_first, 02_two"):
        chosen(["02", "03"], known)
    with pytest.raises(ArgumentTypeError, match="whole number from 1 on"):
        at_least_one("0")
    assert at_least_one("3") == 3


def test_reliability_names_what_it_tried(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(reliability, "_try", lambda name, times: [])
    assert command("reliability", NAME[:2]) == 0
    assert NAME in capsys.readouterr().out
