"""A student's points, read from saved notebooks and listed in a notebook's last cell."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from course_lib import checks, progress, saved, submit
from course_lib.checks.colour import plain
from course_lib.checks.judge.find import UnknownExercise, find, of_assignment
from course_lib.checks.report import Report
from course_lib.saved import (
    BROKEN,
    DONE,
    PARTLY,
    UNCHECKED,
    UNDEFINED,
    UNWRITTEN,
    UnreadableNotebook,
    find_notebooks,
    read,
)
from tests.notebooks import made

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*/*.ipynb"))


def named(path: Path) -> str:
    return path.stem


@pytest.fixture(autouse=True)
def no_exercise_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a notebook of a few cells; `test_submit` has a test of those that are missing."""
    monkeypatch.setattr(saved, "of_assignment", lambda assignment: {})


@pytest.fixture(autouse=True)
def a_wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the terminal of the tests is: in a narrow one, remarks go below their rows."""
    monkeypatch.setenv("COLUMNS", "100")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=named)
def test_every_exercise_of_a_notebook_is_read_and_not_written_in_the_student_version(path):
    assignment, handed_out = path.stem, read(path)
    assert (handed_out.assignment, handed_out.title[:2]) == (assignment, assignment[:2])
    assert {exercise.state for exercise in handed_out.exercises} == {UNWRITTEN}
    assert not saved.is_begun(handed_out)
    assert all(exercise.section[0].isdigit() for exercise in handed_out.exercises)
    solved = read(ROOT / "solutions" / assignment / path.name)
    names = [exercise.name for exercise in solved.exercises]
    assert list(of_assignment(assignment)) == names, "`__all__` is in the order of the notebook"
    assert names == [exercise.name for exercise in handed_out.exercises]
    for exercise in solved.exercises:
        assert (exercise.state, exercise.points) == (DONE, exercise.possible), exercise
        assert exercise.possible == find(f"{assignment}/{exercise.name}").points


@pytest.mark.parametrize(
    ("answer", "printed", "state", "points"),
    [
        (made.STUB, "", UNWRITTEN, None),
        (made.STUB, made.NONE, UNWRITTEN, 0.0),
        (made.HELLO, "", UNCHECKED, None),
        (made.HELLO, made.FULL, DONE, 1.0),
        (made.HELLO, f"\x1b[1m{made.FULL.splitlines()[0]}\x1b[0m\n", DONE, 1.0),
        ("def hello(:\n    return 1", "", BROKEN, None),
        (made.HELLO.replace("hello", "helo"), made.FULL, UNDEFINED, 1.0),
        ("%%time\n" + made.HELLO, made.FULL, DONE, 1.0),
        (made.HELLO, "hello                      and something else of 1\n", UNCHECKED, None),
    ],
)
def test_states_of_an_exercise(tmp_path, answer, printed, state, points):
    (exercise,) = read(made.hello(tmp_path / "x.ipynb", answer, printed)).exercises
    assert (exercise.section, exercise.state, exercise.points) == ("1 · Ranks", state, points)


def test_a_check_that_shows_a_mistake_is_not_the_students(tmp_path):
    demo = made.code('check("00_first_ranks/hello", wrong, seed=3)', made.NONE)
    answer, graded = made.code(made.HELLO), made.checked(made.FULL)
    for order in ([demo, answer, graded], [answer, graded, demo]):
        (exercise,) = read(made.save(tmp_path / "x.ipynb", *order)).exercises
        assert exercise.points == 1.0


def test_answers_that_are_dots_are_not_written_and_an_index_is_no_answer(tmp_path):
    ask = 'check("00_first_ranks/questions", answer_1, answer_2, answer_3)'
    for dots, state in (("...", PARTLY), ("x[..., 0]", UNCHECKED)):
        answers = made.code(f"answer_1 = 1\nanswer_2 = {dots}\nanswer_3 = 3")
        (exercise,) = read(made.save(tmp_path / "x.ipynb", answers, made.code(ask))).exercises
        assert exercise.state == state
    both = made.code("answer_1 = ...\nanswer_2 = ...\n(answer_1, answer_2), answer_3 = (1, 2), 3")
    (exercise,) = read(made.save(tmp_path / "x.ipynb", both, made.code(ask))).exercises
    assert exercise.state == UNCHECKED


HALVES = [  # a cell for an answer, the text in it that a student has changed, and what is left
    ("06_tensor_parallel", "kinds", "kind_1 = ...", 'kind_1 = "S(0)"', "half written: kind_2, kind_3, "
     "kind_4 and 8 more are still open"),
    ("00_first_ranks", "questions", "answer_1 = ...\nanswer_2 = ...", "answer_1 = 2\nanswer_2 = 3",
     "half written: answer_3 is still open"),
    ("00_first_ranks", "questions", "answer_1 = ...", "answer_1 = ...  # 3 or 4?", "not written yet"),
    ("00_first_ranks", "diagnoses", "{0: ..., 1: ..., 2: ...}", "{0: 1, 1: 2, 2: 0}",
     "half written: waits_for and remedies are still open"),
    ("00_first_ranks", "hello", "    # YOUR", "    rank = dist.get_rank()\n    # YOUR",
     "half written: raise NotImplementedError() is still in it"),
    ("00_first_ranks", "hello", "    # YOUR", "    # rank first\n    # YOUR", "not written yet"),
    ("00_first_ranks", "hello", "    # YOUR CODE HERE\n    raise NotImplementedError()",
     "    return late()", "half written: it uses late, which is not written yet"),
]  # fmt: skip


@pytest.mark.parametrize(("assignment", "name", "old", "new", "words"), HALVES)
def test_an_exercise_of_which_a_part_is_written_says_what_is_left(
    tmp_path, assignment, name, old, new, words
):
    content = json.loads((ROOT / "notebooks" / assignment / f"{assignment}.ipynb").read_text())
    for cell in content["cells"]:
        cell["source"] = "".join(cell["source"])
    changed = [
        cell
        for cell in content["cells"]
        if cell["metadata"].get("nbgrader", {}).get("solution") and old in cell["source"]
    ]
    changed[0]["source"] = changed[0]["source"].replace(old, new, 1)
    content["cells"].insert(1, made.code("def late():\n    raise NotImplementedError()"))
    (tmp_path / "x.ipynb").write_text(json.dumps(content))
    (exercise,) = (each for each in read(tmp_path / "x.ipynb").exercises if each.name == name)
    assert exercise.words == words
    ready, said = submit._tried(read(tmp_path / "x.ipynb").exercises)
    assert not ready and f"{name} ({words})" in said


def test_points_by_section_then_together(tmp_path, capsys):
    made.hello(tmp_path / "00_first_ranks" / "00_first_ranks.ipynb", made.HELLO, made.FULL)
    early = made.hello(tmp_path / "00_first_ranks" / "mine.ipynb", made.HELLO, made.NONE)
    os.utime(early, (1, 1))
    made.save(
        tmp_path / "02" / "02.ipynb",
        made.checked("", 'check("02_collectives/questions", a, b, c, d)'),
    )
    made.hello(
        tmp_path / "00_first_ranks" / "00_first_ranks_newer.ipynb", made.STUB
    )  # of `make lab`
    assert progress.main([str(tmp_path)]) == 0
    rows = [" ".join(row.split()) for row in capsys.readouterr().out.splitlines()]
    assert rows[:3] == [
        "00 · First ranks 1.0 of 1",
        "1 · Ranks 1.0 of 1",
        f"{early} holds the same notebook, was saved earlier, and is not counted.",
    ]
    assert "in all, 2 notebooks 1.0 of 5" in rows
    assert "02_collectives 0.0 of 4 no check has run yet" in rows
    assert "hidden cases" in " ".join(rows)


def test_a_remark_goes_below_its_row_where_the_terminal_is_narrow(tmp_path, capsys, monkeypatch):
    made.hello(tmp_path / "00_first_ranks" / "00_first_ranks.ipynb", made.HELLO)
    said = {}
    for columns in ("80", "100"):
        monkeypatch.setenv("COLUMNS", columns)
        progress.main([str(tmp_path)])
        said[columns] = capsys.readouterr().out
    first, second, *_ = said["80"].splitlines()
    assert first.endswith("0.0 of 1") and second == "      no check has run yet"
    assert said["100"].startswith(f"{first}   no check has run yet\n")


def test_a_newer_version_counts_once_something_is_written_in_it(tmp_path, capsys):
    old = made.hello(tmp_path / "00_first_ranks" / "00_first_ranks.ipynb", made.HELLO, made.NONE)
    os.utime(old, (1, 1))
    newer = made.hello(old.with_name("00_first_ranks_newer.ipynb"), made.HELLO, made.FULL)
    assert list(find_notebooks([tmp_path])) == [old, newer]
    progress.main([str(tmp_path)])
    said = capsys.readouterr().out
    assert "1.0 of 1" in said.splitlines()[0] and f"{old} holds the same notebook" in said
    made.hello(newer, made.STUB)
    assert list(find_notebooks([tmp_path])) == [old]


def test_notebooks_are_found_from_the_folder_above_the_course(tmp_path, monkeypatch, capsys):
    """A terminal on a rented machine begins there."""
    saved = made.hello(
        tmp_path / "course" / "work" / "00" / "00_first_ranks.ipynb", made.HELLO, made.FULL
    )
    for where in (tmp_path, tmp_path / "course", tmp_path / "course/work"):
        monkeypatch.chdir(where)
        assert [path.resolve() for path in find_notebooks([Path("00")])] == [saved]
        assert [path.resolve() for path in find_notebooks([Path("00_first_ranks")])] == [saved]
        assert progress.main([]) == 0 and "1.0 of 1" in capsys.readouterr().out
    with pytest.raises(UnreadableNotebook, match="there is no file or folder 03_data"):
        list(find_notebooks([Path("03_data")]))


def test_notebooks_are_found_beside_the_folder_that_was_unpacked(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    made.hello(tmp_path / ".venv" / "x" / "x.ipynb", made.HELLO)
    (tmp_path / "course").mkdir()
    assert progress.main([]) == 2
    assert "name their folder behind the command" in capsys.readouterr().err
    made.hello(tmp_path / "course" / "00_first_ranks" / "00.ipynb", made.HELLO, made.FULL)
    assert progress.main([]) == 0
    assert "1.0 of 1" in capsys.readouterr().out
    made.hello(tmp_path / "mine.ipynb", made.HELLO, made.NONE)
    assert [str(path) for path in find_notebooks([saved.default_folder()])] == ["mine.ipynb"]


def test_a_notebook_is_found_by_its_number(tmp_path, monkeypatch):
    work = tmp_path / "work"
    first = made.hello(work / "00_first_ranks" / "00_first_ranks.ipynb", made.HELLO, made.FULL)
    second = made.hello(work / "02_collectives" / "mine.ipynb", made.HELLO, made.FULL)
    for where in (tmp_path, work):
        monkeypatch.chdir(where)
        for word, path in (("00", first), ("0", first), ("02", second)):
            assert [path.resolve() for path in find_notebooks([Path(word)])] == [path]
    names = r"no file or folder 99. This folder holds 00_first_ranks and 02_collectives\.$"
    with pytest.raises(UnreadableNotebook, match=names):
        list(find_notebooks([Path("99")]))


def test_a_stubs_line_below_a_return_does_no_harm(tmp_path):
    left = made.HELLO + "    raise NotImplementedError()\n"
    for answer, state in ((left, DONE), (made.HELLO.replace("return", "x ="), DONE)):
        (exercise,) = read(made.hello(tmp_path / "x.ipynb", answer, made.FULL)).exercises
        assert exercise.state == state
    early = made.HELLO.replace(
        "    return", "    if dist.get_rank():\n        raise NotImplementedError\n    return"
    )
    (exercise,) = read(made.hello(tmp_path / "x.ipynb", early, made.FULL)).exercises
    assert exercise.state == UNWRITTEN


def test_what_misses_points_says_why(tmp_path, capsys):
    made.hello(tmp_path / "x.ipynb", made.HELLO, made.NONE)
    progress.main([str(tmp_path / "x.ipynb")])
    assert "hello 0.0 of 1" in capsys.readouterr().out.splitlines()[1]


def test_points_of_a_cell_that_is_no_longer_python_are_remarked(tmp_path, capsys):
    made.hello(tmp_path / "x.ipynb", "def hello(:\n    return 1", made.FULL)
    progress.main([str(tmp_path / "x.ipynb")])
    assert "hello 1.0 of 1, not Python" in capsys.readouterr().out.splitlines()[1]


def test_a_long_row_goes_on_below(tmp_path, capsys):
    names = [f"exercise_{k}" for k in range(9)]
    exercises = [saved.Exercise(name, "5", saved.UNWRITTEN, 1.0, False, 0.0) for name in names]
    row, *below = progress._row(
        "  5", exercises, ", ".join(map(progress._said, exercises))
    ).splitlines()
    assert row.endswith("0.0 of 9") and all(len(line) <= progress.WIDEST for line in below)
    assert "exercise_8 0.0 of 1, not written yet" in " ".join(" ".join(below).split())


def test_bad_input_gets_a_sentence(tmp_path, capsys):
    broken, other = tmp_path / "broken.ipynb", tmp_path / "other.ipynb"
    broken.write_text("{")
    made.save(other, made.code("print(1)"))
    (tmp_path / "empty").mkdir()
    unknown = made.save(tmp_path / "u.ipynb", made.code('check("00_first_ranks/helo", hello)'))
    for place, said in (
        (broken, "is not a notebook"),
        (other, "no check of this course"),
        (tmp_path / "empty", "no notebook in"),
        (tmp_path / "nowhere", "there is no file or folder"),
        (unknown, "another version of the course"),
    ):
        assert progress.main([str(place)]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("folder", "cure"),
    [
        ("/content", "download it with the menu File"),
        ("/kaggle/working", "download it with the menu File"),
        ("/home/kim/content", "name their folder behind the command"),
    ],
)
def test_where_no_command_sees_the_notebook_it_says_so(monkeypatch, folder, cure):
    monkeypatch.setattr(Path, "is_dir", lambda self: True)
    monkeypatch.setattr(Path, "exists", lambda self: True)
    monkeypatch.setattr(Path, "is_file", lambda self: False)
    monkeypatch.setattr(saved, "notebooks_in", lambda folder: [])
    with pytest.raises(UnreadableNotebook, match=cure):
        list(find_notebooks([Path(folder)]))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=named)
def test_a_notebook_is_begun_with_the_first_function_that_is_written(path, tmp_path):
    content = json.loads(path.read_text())
    answers = [
        cell for cell in content["cells"] if cell["metadata"].get("nbgrader", {}).get("solution")
    ]
    for answer in answers:
        text = "".join(answer["source"])
        assert not saved._is_changed(text, answer), answer["metadata"]
        assert saved._is_changed(f"# half of it\n{text}", answer), answer["metadata"]
    answers[0]["source"] = ["# half of it\n", *answers[0]["source"]]
    (tmp_path / path.name).write_text(json.dumps(content))
    assert saved.is_begun(read(tmp_path / path.name))


def test_a_scratch_file_and_a_damaged_one_hide_no_points(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    made.save(tmp_path / "Untitled.ipynb", made.code("1 + 1"))
    assert progress.main([]) == 2
    assert "no check of this course" in capsys.readouterr().err, "nothing else is here"
    made.hello(tmp_path / "00_first_ranks" / "mine.ipynb", made.HELLO, made.FULL)
    damaged = tmp_path / "02_collectives" / "02_collectives_newer.ipynb"
    (damaged.parent / ".ipynb_checkpoints").mkdir(parents=True)
    damaged.write_text("{")
    (damaged.parent / ".ipynb_checkpoints" / "02_collectives_newer-checkpoint.ipynb").write_text("")
    for places in ([], ["."], ["02_collectives", "00_first_ranks"]):
        assert progress.main(places) == 0
        said = capsys.readouterr().out
        assert "1.0 of 1" in said
        assert "Not counted: 02_collectives/02_collectives_newer.ipynb is not a notebook" in said
        assert "02_collectives_newer-checkpoint.ipynb holds what Jupyter kept" in said
        line = "Not counted: Untitled.ipynb has no check of this course in it."
        assert (line in said) == (len(places) < 2)
    for named_one in ("Untitled.ipynb", "02_collectives/02_collectives_newer.ipynb"):
        assert progress.main(["00_first_ranks", named_one]) == 2


def test_the_last_cell_lists_what_this_kernel_has_checked(capsys, monkeypatch):
    monkeypatch.setattr(checks, "latest", {})
    checks.latest["00_first_ranks/hello"] = Report("00_first_ranks/hello", 1.0, [], possible=1)
    progress.show("00_first_ranks")
    rows = [" ".join(row.split()) for row in capsys.readouterr().out.splitlines()]
    assert "hello 1.0 of 1" in rows
    assert "exchange 0.0 of 1 not checked yet" in rows
    assert "in all 1.0 of 10" in rows
    checks.latest["00_first_ranks/questions"] = checks.latest.pop("00_first_ranks/hello")
    progress.show("00_first_ranks")
    again = capsys.readouterr().out.splitlines()
    listed = [row.split()[0] for row in rows if " of 1" in row or " of 2" in row]
    assert [row.split()[0] for row in again[: len(listed)]] == listed, "the order stays"
    with pytest.raises(UnknownExercise, match="first_ranks"):
        progress.show("first_ranks")


def test_check_remembers_its_visible_report_without_a_seed_alone(monkeypatch, capsys):
    monkeypatch.setattr(checks, "latest", {})
    checks.check("00_first_ranks/questions", 1, 2, "wait", cases="hidden")
    assert checks.latest == {}
    report = checks.check("00_first_ranks/questions", 1, 2, "wait")
    assert checks.latest == {"00_first_ranks/questions": report}
    checks.check("00_first_ranks/questions", 3, 2, "wait", seed=4)  # as a Break it does
    assert checks.latest == {"00_first_ranks/questions": report}


def test_read_refuses_what_is_no_file(tmp_path):
    with pytest.raises(UnreadableNotebook, match="cannot be opened"):
        read(tmp_path)


def test_colours_are_shown_in_a_notebook_and_at_a_terminal_alone(monkeypatch):
    from course_lib.checks import colour

    terminal = type("Terminal", (), {"isatty": lambda self: True})()
    notebook = type(
        "OutStream", (), {"isatty": lambda self: False, "__module__": "ipykernel.iostream"}
    )()
    pipe = type("Pipe", (), {"isatty": lambda self: False})()
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "xterm")
    assert [colour.shown(stream) for stream in (terminal, notebook, pipe)] == [True, True, False]
    assert colour.coloured("x", "red", terminal) == "\x1b[31mx\x1b[0m"
    assert plain(colour.coloured("x", "red", notebook)) == "x"
    monkeypatch.setenv("NO_COLOR", "1")
    assert not colour.shown(notebook)


def test_a_table_in_colour_says_what_the_plain_one_says(monkeypatch):
    from course_lib.checks import colour
    from course_lib.checks.report import ReportLine

    lines = [
        ReportLine("right", True, short=True),
        ReportLine("too", True, short=True),
        ReportLine("bad", False),
    ]
    lines[2].say(["a ✓ in a sentence"])
    report = Report("a/b", 0.5, lines)
    monkeypatch.setattr(colour, "shown", lambda stream=None: True)
    shown = report.shown()
    assert plain(shown) == str(report)
    assert shown.count("\x1b[32m✓\x1b[0m") == 2, (
        "a sign for each line that passed, and none in sentences"
    )
    assert "\x1b[31m  ✗ bad\x1b[0m" in shown
