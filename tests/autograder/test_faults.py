"""The fault matrix: its rows do what they say, its witnesses see it, and grading answers each as stated."""

from __future__ import annotations

import json
import linecache
import os
import socket
import sqlite3
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import nbformat
import pytest
import torch
import torch.distributed as dist

import course_lib
from autograder.commands.selftest import run_rows
from autograder.course.kernels import prefer_this_environment
from autograder.faults import ROWS, cheating, prying, row, selftest, unrecorded
from autograder.faults.desk import (
    ANSWERS,
    ASSIGNMENT,
    CIRCLE,
    PREDICTION,
    Course,
    Desk,
    cell_of,
    desks,
)
from autograder.faults.row import FULL, LOST, Row
from autograder.faults.witnesses import (
    Listener,
    active,
    differences,
    planted_triggers,
    signs_of_success,
    snapshot,
    watching_processes,
)
from autograder.outcome import statuses
from autograder.outcome.result import Exercise, Result
from course_lib.checks import check
from course_lib.runtime import pools

prefer_this_environment()  # grading changes the environment in this way: so it is as it was after a test
EVERYTHING = bool(os.environ.get("COURSE_ALL_TESTS"))
STATUSES = {*statuses.PRECEDENCE, statuses.UNREADABLE, statuses.MISSING}
BY_NAME = {one.name: one for one in ROWS}


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Course:
    made = Course(tmp_path_factory.mktemp("faults") / "course", port=9)
    made.make()
    return made


def desk_of(course: Course, name: str) -> Desk:
    return next(desks(course, [name]))


# ---- the small assignment


def test_the_students_version_holds_no_solution_and_no_secret(course: Course) -> None:
    released = (course.notebooks / ASSIGNMENT / f"{ASSIGNMENT}.ipynb").read_text()
    source = (course.solutions / ASSIGNMENT / f"{ASSIGNMENT}.ipynb").read_text()
    assert course.canary in source and "batch_isend_irecv" in source
    assert course.canary not in released and "batch_isend_irecv" not in released
    assert "hidden" not in released


def run_cells(texts: list[str]) -> dict:
    """The names that the texts of cells define when they run as in a notebook."""
    main = ModuleType("__main__")
    for number, text in enumerate(texts):
        name = f"<cell {number}>"
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
        exec(compile(text, name, "exec"), vars(main))
    return vars(main)


IMPORTS = "import torch\nimport torch.distributed as dist"


def test_the_references_answers_earn_all_points(course: Course, seed: int) -> None:
    answers = desk_of(course, "anybody").answers
    assert list(answers) == [PREDICTION, CIRCLE, ANSWERS]
    names = run_cells([IMPORTS, *answers.values()])
    messages = names["exchange_messages"], names["ring_shift_messages"]
    numbers = names["answer_1"], names["answer_2"], names["answer_3"]
    for exercise, objects in (
        ("message_prediction", messages),
        ("neighbour_sum", (names["neighbour_sum"],)),
        ("questions", numbers),
    ):
        report = check(f"00_first_ranks/{exercise}", *objects, seed=seed, cases="hidden")
        assert report.score == 1.0, exercise


def test_the_points_are_what_the_rows_count_with(course: Course) -> None:
    notebook = desk_of(course, "anybody").released
    points = {name: cell_of(notebook, f"{name}_check").metadata["nbgrader"]["points"]
              for name in (PREDICTION, CIRCLE, ANSWERS)}  # fmt: skip
    assert sum(points.values()) == FULL
    assert FULL - points[CIRCLE] == LOST
    assert FULL - points[ANSWERS] == cheating.WITHOUT_ANSWERS


# ---- the rows


def test_names_are_unique_and_every_row_states_what_it_must() -> None:
    assert len(BY_NAME) == len(ROWS)
    for one in ROWS:
        assert one.status in STATUSES, one.name
        assert one.group in row.GROUPS, one.name
        assert one.must_not and one.noticed, one.name
        assert one.points is None or 0 <= one.points <= FULL, one.name
        assert one.points is not None or one.says, one.name


# The faults that the matrix has to hold, in the words of its specification, and the rows that show them.
SPECIFIED = {
    "killed": "killed",
    "segfault": "segfault",
    "os._exit": "exits-at-once",
    "sys.exit": "sys-exit",
    "out of memory": "out-of-memory",
    "busy loop at top level": "busy-loop",
    "loop that catches KeyboardInterrupt": "catches-the-interrupt",
    "a hang in C": "hangs-in-c",
    "input()": "asks-for-input",
    "a million lines": "a-million-lines",
    "one line of 200 MB": "a-line-of-200-mb",
    "endless printing": "endless-printing",
    "threads that go on printing": "threads-that-go-on-printing",
    "a daemon left behind": "daemon-left-behind orphan-of-an-orphan ranks-leave-a-daemon",
    "a fork bomb": "fork-bomb",
    "file descriptors exhausted": "descriptors-exhausted",
    "2 GB of files": "2-gb-of-files",
    "deadlock": "deadlock",
    "one rank dead": "one-rank-dead one-rank-is-killed",
    "one rank raising": "one-rank-raises",
    "warnings on stderr": "warnings-on-stderr prints-before-and-after",
    "broken JSON": "broken-json",
    "empty file": "empty-file",
    "missing": "missing",
    "renamed": "renamed",
    "extra notebooks": "extra-notebooks",
    "two notebooks": "two-notebooks",
    "wrong kernel name": "wrong-kernel-name",
    "other nbformat": "nbformat-3 nbformat-4.0 nbformat-4.99",
    "deleted test cells": "deleted-checks",
    "duplicated": "duplicated-cells",
    "edited": "edited-checks",
    "reordered": "checks-moved-to-the-top cells-in-reverse",
    "retyped": "retyped-cells",
    "changed points": "changed-points",
    "removed metadata": "removed-metadata",
    "schema of the future": "schema-of-the-future format-of-the-future",
    "a 100 MB notebook": "a-100-mb-notebook",
    "not UTF-8": "not-utf-8 utf-16",
    "script in the feedback page": "script-in-the-feedback",
    "patched assert and torch.allclose": "patched-comparisons patched-in-the-ranks",
    "patched check": "patched-check",
    "the judge's client": "patched-client patched-judge",
    "skip tags": "skip-tags",
    "printed or displayed results": "printed-result displayed-result stored-result",
    "partial credit above the maximum": "points-above-the-maximum",
    "of the wrong type": "points-of-another-type points-that-are-no-number",
    "reading the source, the hidden cases, others, the gradebook": "reads-source-grades-and-others",
    "triggers in the gradebook": "triggers-in-the-gradebook gradebook-beside-the-notebook",
    "files named like our modules or torch.py": "modules-beside-the-notebook",
    "an edited copy of course_lib": "edited-library",
    "network access": "network",
    "environment variables": "environment-variables",
    "atexit tricks": "atexit",
    "the reference imported": "reference-imported reference-imported-in-the-ranks",
    "copied from the file": "reference-copied-from-the-file reference-read-in-the-ranks",
    "fetched through inspect": "reference-through-inspect",
    "pickled by value": "reference-pickled-by-value bytes-that-run-code-when-read",
    "a built-in in disguise": "built-in-behind-the-recorder messages-for-show",
}  # fmt: skip


def test_the_rows_cover_what_is_specified() -> None:
    named = {name for names in SPECIFIED.values() for name in names.split()}
    assert named <= set(BY_NAME), named - set(BY_NAME)


def test_the_reduced_matrix_has_every_group_and_honest_ones_at_both_ends() -> None:
    quick = [one for one in ROWS if one.quick]
    assert {one.group for one in quick} == set(row.GROUPS)
    full = [one.name for one in ROWS if one.group == row.HONEST and one.points == FULL]
    assert full[-1] == ROWS[-1].name


@pytest.mark.parametrize("one", ROWS, ids=lambda one: one.name)
def test_the_row_can_be_made(course: Course, one: Row) -> None:
    desk = desk_of(course, one.name)
    one.make(desk)
    assert desk.folder.is_dir()
    if desk.path.is_file() and not desk.path.is_symlink() and one.status not in ("unreadable",):
        text = desk.path.read_text("utf-8-sig")
        assert len(text) < 1 << 20
        for word in ("MARK", "FOLDER", "SOLUTIONS", "OUT/", "PORT"):
            assert word not in text, "a word that stands for something was not replaced"
        compile_cells(text)


def compile_cells(text: str) -> None:
    """Every code cell of a notebook is valid Python: a row fails by its fault, not by a slip."""
    for cell in nbformat.convert(nbformat.reads(text, as_version=nbformat.NO_CONVERT), 4).cells:
        if cell.cell_type == "code":
            compile(cell.source, "<cell>", "exec")


# ---- a cheat earns a row if it works where nothing holds it back


def neighbours(code: str) -> tuple:
    """Three ranks' result of `code`'s neighbour_sum, where they hold 1, 10 and 100, and the run."""
    function = run_cells([IMPORTS, code])["neighbour_sum"]
    run = course_lib.launch(lambda: function(torch.tensor([10.0 ** dist.get_rank()])), world_size=3)
    return [float(value) for value in run], run.ledger


@pytest.mark.parametrize("code", [unrecorded.BEHIND_THE_RECORDER, unrecorded.FOR_SHOW])
def test_a_built_in_behind_the_recorder_would_give_the_right_sums(code: str) -> None:
    values, ledger = neighbours(code)
    assert values == [111.0, 111.0, 111.0]
    assert not [
        one for rank in range(3) for one in ledger.operations(rank) if one.op == "all_gather"
    ]


@pytest.mark.parametrize("way", ["name", "datagram"])
def test_values_come_by_ways_that_leave_no_message(way: str) -> None:
    """Without walls; `file`, `socket` and `store` are tried in tests/runtime/test_sandbox.py."""
    values, ledger = neighbours(unrecorded.ANOTHER_WAY + unrecorded.WAYS[way])
    assert values == [111.0, 111.0, 111.0]
    assert {one.op for rank in range(3) for one in ledger.operations(rank)} == {"send", "recv"}


def test_a_borrowed_ring_shift_would_earn_the_points(seed: int) -> None:
    own = Path(course_lib.__path__[0], "first_ranks.py").read_text().partition("import torch\n")
    code = f"{own[1]}{own[2]}{prying.WITH_THE_REFERENCE}"
    function = run_cells([code])["neighbour_sum"]
    assert check("00_first_ranks/neighbour_sum", function, seed=seed).score == 1.0


def test_a_built_in_behind_the_recorder_earns_nothing(seed: int) -> None:
    function = run_cells([IMPORTS, unrecorded.BEHIND_THE_RECORDER])["neighbour_sum"]
    report = check("00_first_ranks/neighbour_sum", function, seed=seed, cases="hidden")
    assert report.score == 0.0
    assert any("The values came another way" in sentence for sentence in report.messages)


# ---- the witnesses


def test_the_listener_hears_both_kinds_of_caller() -> None:
    with Listener().listening() as listener:
        with socket.create_connection(("127.0.0.1", listener.port)):
            pass
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(f"\0selftest-{listener.port}")
        deadline = time.monotonic() + 5
        while len(listener.callers) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert sorted(listener.callers) == ["TCP", "an abstract socket"]


@pytest.fixture
def no_ranks() -> None:
    """No process of earlier tests that is still starting ranks ahead of need."""
    pools.close()


def test_an_orphan_is_seen_and_ended(
    no_ranks: None, assert_no_orphans: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autograder.faults.witnesses.GONE_WITHIN", 0.5)  # it would run for an hour
    with watching_processes() as left:
        script = "sleep 4321 >/dev/null 2>&1 & echo $!"
        done = subprocess.run(
            ["sh", "-c", script], start_new_session=True, capture_output=True, text=True, check=True
        )
    assert len(left.processes) == 1 and "sleep 4321" in left.processes[0]
    assert_no_orphans([int(done.stdout)])


def test_what_ends_in_time_is_no_leftover(no_ranks: None) -> None:
    with watching_processes() as left:
        subprocess.run(["sleep", "0"], check=True)
        child = subprocess.Popen(["sleep", "0.5"])
    child.wait()
    assert left.processes == []


def test_a_snapshot_tells_what_was_written_changed_and_removed(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("one")
    (tmp_path / "gone").write_text("two")
    before = snapshot(tmp_path)
    (tmp_path / "kept").write_text("two")
    (tmp_path / "gone").unlink()
    (tmp_path / "new").symlink_to("/nowhere")
    told = differences(before, snapshot(tmp_path))
    assert [sentence.rpartition("/")[2] for sentence in told] == [
        "new was written",
        "gone was removed",
        "kept was changed",
    ]
    assert differences(before, before) == []


def test_a_trigger_in_the_gradebook_is_seen(tmp_path: Path) -> None:
    book = tmp_path / "gradebook.db"
    assert planted_triggers(book) == []
    with sqlite3.connect(book) as connection:
        connection.execute("CREATE TABLE grade (auto_score REAL)")
        assert planted_triggers(book) == []
        connection.execute(
            "CREATE TRIGGER planted AFTER INSERT ON grade BEGIN UPDATE grade SET auto_score = 6; END"
        )
    connection.close()
    assert planted_triggers(book) == ["the gradebook holds a trigger 'planted'"]


@pytest.mark.parametrize(
    ("page", "places"),
    [
        ("<script>let x = 'WORD'</script>", 1),
        ("<img src=x onerror='WORD'>", 1),
        ("<a href=' javascript:WORD'>read</a>", 1),
        ("<iframe srcdoc='<script>WORD</script>'></iframe>", 1),
        ("<p>&lt;script&gt;WORD&lt;/script&gt;</p>", 0),
        ("<script>let own = 1</script><pre>WORD</pre>", 0),
        ("<a href='https://example.org/?q=WORD' title='WORD'>read</a>", 0),
    ],
)
def test_script_that_would_run_is_seen(page: str, places: int) -> None:
    assert len(active(page.replace("WORD", "script_of_a_row"), "a-row")) == places


# ---- the judgement, with a grading that is made up


def made_up(course: Course, name: str) -> Result:
    """The result that the row must get."""
    one = BY_NAME[name]
    points = FULL if one.points is None else one.points
    said = (
        "circle: not put back: my solution had become changed; time JSON UTF-8 notebook file deep"
    )
    said += " MB output ledger input exit deadlock large handed in"
    # a row with full points that was graded has no reason
    reason = "" if points == FULL else said
    notes = [said] if one.says else []
    exercises = [Exercise("circle_check", "circle", points, FULL, reason)]
    return Result(name, ASSIGNMENT, one.status, reason, exercises, changes=notes)


def test_grades_as_stated_are_right(no_ranks: None, tmp_path: Path) -> None:
    outcome = selftest.selftest(
        ROWS[:20] + ROWS[-3:],
        lambda course, limits: [made_up(course, name) for name in handed_in(course)],
        tmp_path / "matrix",
    )
    assert outcome.right, selftest.as_text(outcome)
    assert "23 of 23 rows are right; nothing was left running" in selftest.as_text(outcome)


def handed_in(course: Course) -> list[str]:
    return sorted(path.name for path in course.submissions.iterdir())


def test_a_connection_at_the_last_moment_counts() -> None:
    for _ in range(10):
        with Listener().listening() as listener:
            for _ in range(5):
                socket.create_connection(("127.0.0.1", listener.port)).close()
            with socket.socket(socket.AF_UNIX) as local:
                local.connect(f"\0selftest-{listener.port}")
        assert sorted(listener.callers) == ["TCP"] * 5 + ["an abstract socket"]


def test_every_kind_of_wrong_is_told(tmp_path: Path) -> None:
    names = ["honest-first", "network", "writes-elsewhere", "broken-json", "missing", "deadlock"]

    def grade(course: Course, limits: object) -> list[Result]:
        results = {name: made_up(course, name) for name in handed_in(course)}
        results["honest-first"].exercises[0].points = 5.5
        results["missing"].status = statuses.UNGRADED
        results["deadlock"].reason = results["deadlock"].exercises[0].reason = ""
        results["deadlock"].changes = []
        results["broken-json"].eyes.append(course.canary)
        (course.marks / "writes-elsewhere").touch()
        (course.solutions / "planted").touch()
        Path(os.environ["TMPDIR"], "forgotten").touch()
        assert os.environ[selftest.SECRET_VARIABLE] == course.canary
        with socket.create_connection(("127.0.0.1", course.port)):
            pass
        return list(results.values())

    outcome = selftest.selftest([BY_NAME[name] for name in names], grade, tmp_path / "matrix")
    problems = {verdict.row.name: " ".join(verdict.problems) for verdict in outcome.verdicts}
    assert "the score is 5.5, not 6" in problems["honest-first"]
    assert "the status is 'ungraded'" in problems["missing"]
    assert "no sentence of the result matches" in problems["deadlock"]
    assert "wrote a file outside the sandbox" in problems["writes-elsewhere"]
    assert "holds a secret" in problems["broken-json"]
    assert problems["network"] == ""
    elsewhere = " ".join(outcome.elsewhere)
    for told in ("solutions/planted was written", "forgotten was written", "TCP: a connection"):
        assert told in elsewhere
    assert not outcome.right
    text = selftest.as_text(outcome)
    assert text.count("WRONG") == 5 and "1 of 6 rows are right" in text
    assert selftest.SECRET_VARIABLE not in os.environ


def test_a_secret_in_what_a_cell_printed_is_seen(course: Course) -> None:
    path = course.out / "autograded" / "a-row" / ASSIGNMENT / f"{ASSIGNMENT}.ipynb"
    path.parent.mkdir(parents=True)
    cell = nbformat.v4.new_code_cell(f"# {course.canary} in the student's own text is nothing")
    result = Result("a-row", ASSIGNMENT, "graded")
    path.write_text(json.dumps(nbformat.v4.new_notebook(cells=[cell])))
    assert signs_of_success(course, "a-row", result) == []
    cell.outputs = [nbformat.v4.new_output("stream", text=course.canary)]
    path.write_text(json.dumps(nbformat.v4.new_notebook(cells=[cell])))
    assert len(signs_of_success(course, "a-row", result)) == 1


def test_rows_that_the_sandbox_cannot_hold_are_left_out() -> None:
    graded, left_out = row.chosen(ROWS, frozenset({row.FILES}))
    assert {one.name for one in left_out} == {
        "network",
        *prying.NAMESPACES,
        "ranks-leave-a-daemon",
        "fork-bomb",
        "fork-bomb-that-never-rests",
        "too-many-sleepers",
        "values-by-file",
        "values-by-socket",
        "values-by-store",
        "values-by-name",
        "values-by-datagram",
    }
    assert len(graded) + len(left_out) == len(ROWS)
    assert (
        row.chosen(ROWS, frozenset({row.FILES, row.NETWORK, row.PROCESSES, row.CALLS, row.APART}))[
            1
        ]
        == []
    )


# ---- grading itself


def test_grading_answers_every_row_as_stated(no_ranks: None, capsys: pytest.CaptureFixture) -> None:
    """The reduced matrix; all of it with COURSE_ALL_TESTS."""
    rows = ROWS if EVERYTHING else [one for one in ROWS if one.quick]
    limits = selftest.LIMITS if EVERYTHING else replace(selftest.LIMITS, cell=6)
    outcome = run_rows(rows, limits=limits)
    with capsys.disabled():
        print(f"\n{selftest.as_text(outcome) if EVERYTHING else selftest.summary(outcome)}")
    assert outcome.right, selftest.as_text(outcome)
    assert len(outcome.verdicts) + len(outcome.omitted) == len(rows)
