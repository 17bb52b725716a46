"""The same work earns the same points from any program that saved the notebook, without false remarks.

The restored notebooks are compared for every assignment and every kind of file. The real judge grades a few
kinds, drawn from the seed, and all of them with COURSE_ALL_TESTS=1 (`make test-all`).
"""

from __future__ import annotations

import copy
import functools
import itertools
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from autograder.course.config import NOTEBOOKS, SOLUTIONS, assignments
from autograder.course.exercises import Assignment, read_assignment
from autograder.course.twin import grade_id
from autograder.outcome import statuses
from autograder.outcome.limits import Limits
from autograder.outcome.result import Result
from autograder.report.reliability import reference_submission
from autograder.submission.intake import HandedIn, Submission, collect, parse
from autograder.submission.marking import Course, mark, untouched
from autograder.submission.recognise import recognise
from autograder.submission.restore import STRIPPED, Restored, restore
from autograder.submission.sandboxed import open_course
from autograder.submission.suspicion import suspicious
from course_lib.runtime import places, pools
from tests.autograder.saved import KINDS, Saved, save

FIRST = "00_first_ranks"
INSTALL = (
    "![ -d course ] || git clone -q https://example.org/course\n!git -C course pull -q\n"
    "%pip install -q ./course"
)
MOUNT = "from google.colab import drive\n\ndrive.mount('/content/drive')"
DRAW = random.Random(int(os.environ["COURSE_TEST_SEED"]))
GRADED = sorted(KINDS) if os.environ.get("COURSE_ALL_TESTS") else DRAW.sample(sorted(KINDS), 3)
LOSE_METADATA = {
    "metadata stripped", "metadata and ids stripped", "metadata moved", "VS Code, cells pasted",
}  # fmt: skip


# ---- a student's notebook


@functools.cache
def read(name: str) -> tuple[NotebookNode, NotebookNode]:
    """(the instructor's notebook, the student version): to be copied, not to be changed."""
    source, released = (
        nbformat.read(folder / name / f"{name}.ipynb", as_version=4)
        for folder in (SOLUTIONS, NOTEBOOKS)
    )
    return source, released


def released_of(name: str) -> NotebookNode:
    return copy.deepcopy(read(name)[1])


def own_cell(source: str, draw: random.Random) -> NotebookNode:
    return nbformat.v4.new_code_cell(source, id=f"own{draw.getrandbits(40):x}")


def solved(name: str) -> NotebookNode:
    """All answers of the reference, with the outputs of its run."""
    source, released = read(name)
    notebook = reference_submission(source, released)
    outputs = {cell["id"]: cell.get("outputs", []) for cell in source.cells}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell["outputs"] = copy.deepcopy(outputs[cell["id"]])
    return notebook


def worked(name: str, draw: random.Random) -> NotebookNode:
    """A student's likely work: some answers right, some wrong or missing, some cells of their own."""
    notebook, stubs = solved(name), {cell["id"]: cell.source for cell in released_of(name).cells}
    for cell in notebook.cells:
        if cell.metadata.get("nbgrader", {}).get("solution"):
            lines = cell.source.splitlines()
            cell.source = draw.choice(
                [
                    cell.source,
                    cell.source,
                    stubs[cell["id"]],
                    "\n".join([*lines[:-1], "    return ("]),
                    f"# {draw.random()}\n\n{cell.source}",
                ]
            )
    for place in sorted(draw.sample(range(1, len(notebook.cells)), 6), reverse=True):
        before = notebook.cells[place - 1]
        text = draw.choice([f"x_{place} = {draw.random()}", INSTALL, MOUNT, before.source])
        notebook.cells.insert(place, own_cell(text, draw))
        if draw.random() < 0.5 and text == before.source:
            notebook.cells[place]["metadata"] = copy.deepcopy(
                before.metadata
            )  # as JupyterLab copies
    return notebook


def text_of(source: str) -> str:
    return "\n".join(line.rstrip() for line in source.split("\n")).strip()


def restored(content: bytes, released: NotebookNode) -> tuple[NotebookNode, Restored]:
    notebook = parse(content)
    return notebook, restore(notebook, released)


def what_counts(notebook: NotebookNode) -> list[tuple]:
    """The parts of a restored notebook that grading reads, without the badge that Colab puts before it.

    Of two equal neighbours either may be the exercise and the other its copy: the grade is the same.
    """
    cells = [
        (
            cell.cell_type,
            text_of(cell.source),
            cell.metadata.get("nbgrader"),
            cell.metadata.get("tags"),
        )
        for cell in notebook.cells
        if "colab-badge.svg" not in cell.source
    ]
    equal = itertools.groupby(cells, lambda cell: cell[:2])
    return [cell for _, group in equal for cell in sorted(group, key=repr)]


# ---- the same cells, and so the same grade


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", assignments())
def test_a_saved_notebook_is_graded_as_the_one_that_was_saved(
    name: str, kind: str, seed: int
) -> None:
    draw = random.Random(f"{seed} {name} {kind}")
    released = released_of(name)
    for notebook in (solved(name), worked(name, draw)):
        wanted, _ = restored(Saved.of(name, notebook).content, released)
        found, said = restored(save(kind, name, notebook, draw).content, released)
        assert what_counts(found) == what_counts(wanted)
        assert said.changes == []
        assert suspicious(found, released) == suspicious(wanted, released) == []
        lost = [note for note in said.notes if "metadata" in note]
        assert bool(lost) == (kind in LOSE_METADATA)
        nbformat.validate(found)


@pytest.mark.parametrize("name", assignments())
def test_a_notebook_that_went_through_several_hands_is_graded_as_the_first(
    name: str, seed: int
) -> None:
    draw = random.Random(f"{seed} {name}")
    released = released_of(name)
    for _ in range(6):
        notebook = worked(name, draw)
        wanted, _ = restored(Saved.of(name, notebook).content, released)
        kinds = draw.sample(sorted(KINDS), 3)
        saved = Saved.of(name, notebook)
        for kind in kinds:
            KINDS[kind](saved, draw)
        found, said = restored(saved.content, released)
        assert what_counts(found) == what_counts(wanted), kinds
        assert said.changes == [], kinds


@pytest.mark.parametrize("kind", KINDS)
def test_the_file_is_a_notebook_under_some_name(kind: str, seed: int, tmp_path: Path) -> None:
    saved = save(kind, FIRST, solved(FIRST), random.Random(seed))
    (tmp_path / saved.name).write_bytes(saved.content)
    handed_in = collect(Submission("ann", FIRST, tmp_path))
    assert handed_in.content == saved.content
    assert bool(handed_in.notes) == (saved.name != f"{FIRST}.ipynb")


# ---- graded


@pytest.fixture(scope="module")
def grade() -> Iterator[Callable[[str, bytes], Result]]:
    """Grades a file with the real judge, in the strongest sandbox that there is here."""
    read_files = places.read_files
    courses: dict[str, Course] = {}

    def mark_file(name: str, content: bytes) -> Result:
        if name not in courses:
            assignment = read_assignment(name, SOLUTIONS, NOTEBOOKS)
            courses[name] = open_course([assignment], b"secret" * 5, Limits())
        return mark(Submission("ann", name, Path()), courses[name], Limits(), HandedIn(content))[0]

    yield mark_file
    places.read_files = read_files
    pools.close()
    pools.preload("course_lib.checks.rank.harness")


def points(result: Result) -> dict[str, float]:
    return {exercise.name: exercise.points for exercise in result.exercises}


@pytest.mark.parametrize("kind", GRADED)
def test_every_kind_of_file_earns_what_was_earned(
    grade: Callable[[str, bytes], Result], kind: str, seed: int
) -> None:
    draw = random.Random(f"{seed} {kind}")
    notebook = solved(FIRST)
    notebook.cells.insert(0, own_cell(MOUNT, draw))
    notebook.cells.insert(0, own_cell(INSTALL, draw))
    left = draw.choice(
        sorted(n for cell in notebook.cells if _is_exercise(cell) if (n := grade_id(cell)))
    )
    stubs = {grade_id(cell): cell.source for cell in released_of(FIRST).cells}
    for cell in notebook.cells:
        if grade_id(cell) == left:
            cell.source = stubs[left]
    result = grade(FIRST, save(kind, FIRST, notebook, draw).content)
    assert (result.status, result.eyes) == (statuses.GRADED, [])
    lost = [one for one in result.exercises if one.points < one.maximum]
    assert [one.grade_id for one in lost] == [f"{left}_check"], [one.reason for one in lost]
    assert result.reason.startswith(f"{lost[0].name}: ")


def _is_exercise(cell: NotebookNode) -> bool:
    own = cell.metadata.get("nbgrader", {})
    return bool(own.get("solution"))


# ---- blank: the student earned nothing and wrote nothing


@pytest.mark.parametrize("form", ["{}", "exec({!r})"], ids=["plain", "exec"])
def test_work_in_cells_of_ones_own_is_not_blank(
    grade: Callable[[str, bytes], Result], form: str, seed: int
) -> None:
    notebook, draw = released_of(FIRST), random.Random(seed)
    answers = {grade_id(cell): cell.source for cell in solved(FIRST).cells if _is_exercise(cell)}
    place = next(i for i, cell in enumerate(notebook.cells) if grade_id(cell) == "hello")
    notebook.cells.insert(place + 1, own_cell(form.format(answers["hello"]), draw))
    result = grade(FIRST, Saved.of(FIRST, notebook).content)
    assert result.status == statuses.GRADED and result.score == points(result)["hello"] > 0
    assert "nothing was written" not in result.reason


@pytest.mark.parametrize("kind", GRADED)
def test_a_notebook_as_it_was_handed_out_is_blank(
    grade: Callable[[str, bytes], Result], kind: str, seed: int
) -> None:
    draw = random.Random(seed)
    notebook = released_of(FIRST)
    notebook.cells.insert(0, own_cell(INSTALL, draw))
    result = grade(FIRST, save(kind, FIRST, notebook, draw).content)
    assert (result.status, result.score, result.eyes) == (statuses.BLANK, 0, [])
    assert result.reason == "nothing was written into any exercise"


def test_a_wrong_answer_anywhere_was_written(seed: int) -> None:
    released, draw = released_of(FIRST), random.Random(seed)
    assert untouched(copy.deepcopy(released), released)
    for text, written in (
        ("def hello(): return 3", True),
        ("answer_1 = 5", True),
        ("hello()", False),
        ("x = 1", False),
    ):
        notebook = copy.deepcopy(released)
        notebook.cells.append(own_cell(text, draw))
        restore(notebook, released)
        assert untouched(notebook, released) != written, text


# ---- order


def made(*cells: tuple[str, str, bool]) -> NotebookNode:
    """A student version of code cells (id, text, is an exercise?)."""
    notebook = nbformat.v4.new_notebook()
    for name, text, exercise in cells:
        cell = nbformat.v4.new_code_cell(text, id=name)
        if exercise:
            own = {"grade": False, "grade_id": name, "locked": False, "schema_version": 3}
            cell.metadata["nbgrader"] = own | {"solution": True, "task": False}
        notebook.cells.append(cell)
    return notebook


SHOW = "run.ledger.table()"
TWICE = made(
    ("start", "import torch", False), ("show-1", SHOW, False), ("a", "def a(): ...", True),
    ("show-2", SHOW, False), ("b", "def b(): ...", True), ("end", "print('end')", False),
)  # fmt: skip


def handed_in(released: NotebookNode, order: str, seed: int) -> tuple[NotebookNode, Restored]:
    """The cells of these places, without ids and metadata, restored."""
    notebook = copy.deepcopy(released)
    notebook.cells = [
        NotebookNode(notebook.cells[int(place)], id=f"{index}") for index, place in enumerate(order)
    ]
    saved = save("metadata and ids stripped", "x", notebook, random.Random(seed))
    return restored(saved.content, released)


@pytest.mark.parametrize(
    ("order", "wanted", "said"),
    [
        ("012345", "012345", False),  # nothing was moved
        ("02345", "02345", False),  # the first of two equal cells is gone
        ("01245", "01245", False),  # the second
        ("0112345", "0112345", False),  # one of them was copied
        ("501234", "012345", False),  # a cell that is not an exercise was moved
        ("043215", "021435", True),  # an exercise was: the first of two equal texts goes with it
    ],
)
def test_a_text_that_stands_twice_moves_nothing(
    order: str, wanted: str, said: bool, seed: int
) -> None:
    notebook, changes = handed_in(TWICE, order, seed)
    texts = [TWICE.cells[int(place)].source for place in wanted]
    assert [cell.source for cell in notebook.cells] == texts
    assert changes.changes == (["cells had been put into another order"] if said else [])


def test_the_first_notebook_without_ids_keeps_its_order() -> None:
    """With two cells of one text in it, each between other neighbours."""
    released, notebook = released_of(FIRST), solved(FIRST)
    table = "display(run.ledger.table(times=False))\nrun.ledger.matrix()"
    for of_both in (released, notebook):
        (repeated,) = [
            cell for cell in of_both.cells if cell.source.startswith("on_gpus = on_your_gpus(PING")
        ]
        repeated.source = table
        assert [cell.source for cell in of_both.cells].count(table) == 2
    for cell in notebook.cells:
        del cell["id"]
    wanted = [cell.source for cell in notebook.cells]
    assert restore(notebook, released) == Restored()
    assert [cell.source for cell in notebook.cells] == wanted


# ---- recognising


def test_an_exercise_is_recognised_by_what_it_defines_wherever_it_stands(seed: int) -> None:
    answers = made(
        ("own", "def helper(): return 1", False), ("b", "def b():\n    return helper()", False),
        ("start", "import torch", False), ("a", "@cache\ndef a(x):\n    return (", False),
    )  # fmt: skip
    notebook, said = restored(
        save("metadata stripped", "x", answers, random.Random(seed)).content, TWICE
    )
    found = {grade_id(cell): cell.source for cell in notebook.cells if grade_id(cell)}
    assert found == {"a": "@cache\ndef a(x):\n    return (", "b": "def b():\n    return helper()"}
    assert said.notes == [STRIPPED]
    assert said.changes == ["cells had been put into another order"]


@pytest.mark.parametrize("kind", ["Colab to Drive", "metadata moved"])
def test_a_cell_is_recognised_by_the_id_in_its_metadata(kind: str, seed: int) -> None:
    """Nothing else tells where the exercises are: the student cleared both and took notes between them."""
    draw = random.Random(seed)
    answers = copy.deepcopy(TWICE)
    answers.cells[2].source = answers.cells[4].source = ""
    for place in (5, 4, 3, 2):
        answers.cells.insert(place, own_cell(f"note_{place} = {seed}", draw))
    for cell in answers.cells:
        cell.metadata.pop("nbgrader", None)
    notebook, said = restored(save(kind, "x", answers, draw).content, TWICE)
    assert {grade_id(cell): cell.source for cell in notebook.cells if grade_id(cell)} == {
        "a": "",
        "b": "",
    }
    assert said.changes == []


def test_a_written_answer_is_recognised_by_its_place(seed: int) -> None:
    released = copy.deepcopy(TWICE)
    for index in (2, 4):
        own = released.cells[index].metadata["nbgrader"] | {"grade": True, "points": 2}
        cell = nbformat.v4.new_markdown_cell("YOUR ANSWER HERE", id=released.cells[index]["id"])
        cell.metadata["nbgrader"] = own
        released.cells[index] = cell
    worked_on = copy.deepcopy(released)
    worked_on.cells[2].source = f"Because {seed}."
    worked_on.cells[4].source = "Why not?"
    worked_on.cells.insert(5, own_cell("1 + 1", random.Random(seed)))
    notebook, said = restored(
        save("metadata and ids stripped", "x", worked_on, random.Random(seed)).content, released
    )
    answers = {grade_id(cell): cell.source for cell in notebook.cells if grade_id(cell)}
    assert answers == {"a": f"Because {seed}.", "b": "Why not?"}
    assert said.changes == []


def test_a_check_that_was_written_over_does_not_lose_the_students_code(seed: int) -> None:
    """A locked cell is recognised by its own text only: it gets the released one again."""
    released = copy.deepcopy(TWICE)
    own = released.cells[4].metadata["nbgrader"]
    own.update(grade=True, solution=False, locked=True, points=1)
    released.cells[4].source = 'report = check("x/a", a)'
    worked_on = copy.deepcopy(released)
    worked_on.cells[4].source = f'seed = {seed}\nreport = check("x/a", a)'
    notebook, said = restored(
        save("metadata and ids stripped", "x", worked_on, random.Random(seed)).content, released
    )
    texts = [cell.source for cell in notebook.cells]
    assert worked_on.cells[4].source in texts and released.cells[4].source in texts
    assert said.changes == ["cell 'b' was missing and was put back"]


@pytest.mark.parametrize("text", [SHOW, "def a(): return 1", "import torch", "x = 1", "\n" * 50])
def test_very_many_cells_cost_little_time(text: str) -> None:
    many = nbformat.v4.new_notebook()
    many.cells = [
        NotebookNode(cell_type="code", source=text, id=f"{n}", metadata=NotebookNode())
        for n in range(100_000)
    ]
    began = time.process_time()
    recognise(many, TWICE)
    assert time.process_time() - began < 20


# ---- the sentences on tampering


def test_what_editors_do_is_no_reason_to_look(seed: int) -> None:
    notebook, released = solved(FIRST), released_of(FIRST)
    twice = copy.deepcopy(next(cell for cell in notebook.cells if grade_id(cell) == "hello"))
    notebook.cells.append(NotebookNode(twice, id="again"))
    del next(cell for cell in notebook.cells if grade_id(cell) == "collect").metadata["nbgrader"]
    said = restore(notebook, released)
    assert said.changes == []
    assert said.notes == [
        "cell 'hello' was there 2 times", "cell 'collect' had lost its grading metadata"
    ]  # fmt: skip


def test_every_exercise_of_the_course_is_found_without_ids_and_metadata(seed: int) -> None:
    for name in assignments():
        assignment: Assignment = read_assignment(name, SOLUTIONS, NOTEBOOKS)
        stripped = save("metadata and ids stripped", name, solved(name), random.Random(seed))
        known = recognise(parse(stripped.content), assignment.released)
        missing = [
            grade_id(cell)
            for cell in assignment.released.cells
            if grade_id(cell) and cell["id"] not in known
        ]
        assert missing == []
