"""Twin, notebook and student version agree, and a build contains the text of its twin."""

from __future__ import annotations

import copy
import re
import shutil
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from nbformat import NotebookNode
from nbgrader.converters.base import NbGraderException

from autograder.__main__ import main
from autograder.course import kernels
from autograder.course.build import (
    BuildError,
    QuietClient,
    build,
    does_the_same,
    follow,
    release_into,
    require_full_points,
)
from autograder.course.config import NOTEBOOKS, SOLUTIONS, assignments
from autograder.course.drift import differences, remedy
from autograder.course.exercises import read_assignment
from autograder.course.kernels import prefer_this_environment
from autograder.course.outputs import clean
from autograder.course.twin import grade_id, read_twin
from autograder.report.sanitise import clean_notebook
from autograder.submission.restore import Restored, restore

TOY = Path(__file__).resolve().parents[1] / "toy" / "solutions"
REGION = re.compile(r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", re.DOTALL)

prefer_this_environment()


# --- the files of the repository -----------------------------------------------------------------


@pytest.mark.parametrize("assignment", assignments())
def test_twin_notebook_and_student_version_agree(assignment: str) -> None:
    found = differences(assignment)
    assert not found, "\n".join(found)


def test_what_a_notebook_writes_beside_itself_is_no_part_of_it(tmp_path: Path) -> None:
    """A run of the capstone leaves its page, which no release copies, and which does not count as drift."""
    solutions, notebooks = tmp_path / "solutions", tmp_path / "notebooks"
    for folder, new in ((SOLUTIONS, solutions), (NOTEBOOKS, notebooks)):
        shutil.copytree(folder / "13_capstone", new / "13_capstone")
        for name in ("your_page.html", "your_page.png"):
            (new / "13_capstone" / name).write_text("a page", encoding="utf-8")
    assert not differences("13_capstone", solutions=solutions, notebooks=notebooks)


@pytest.mark.parametrize("assignment", assignments())
def test_the_kept_outputs_give_full_points(assignment: str) -> None:
    path = SOLUTIONS / assignment / f"{assignment}.ipynb"
    require_full_points(nbformat.read(path, as_version=4))


@pytest.mark.parametrize("assignment", assignments())
def test_no_machine_is_named_in_a_notebook(assignment: str) -> None:
    text = (SOLUTIONS / assignment / f"{assignment}.ipynb").read_text()
    for path in (str(SOLUTIONS.parent), str(Path.home()) + "/", "/tmp/ipykernel", "site-packages/"):
        assert path not in text
    # The doctor names a second copy of the course by its path, which no other clone of the course has.
    assert "An unequal copy is in" not in text


def test_the_student_folder_holds_student_versions_only() -> None:
    files = [path.relative_to(NOTEBOOKS) for path in NOTEBOOKS.rglob("*") if path.is_file()]
    visible = [path for path in files if not any(part.startswith(".") for part in path.parts)]
    assert [str(path) for path in sorted(visible)] == [f"{a}/{a}.ipynb" for a in assignments()]


@pytest.mark.parametrize("assignment", assignments())
def test_no_solution_and_no_hidden_test_reaches_the_students(assignment: str) -> None:
    student = (NOTEBOOKS / assignment / f"{assignment}.ipynb").read_text()
    assert_nothing_of_the_solution(SOLUTIONS / assignment / f"{assignment}.py", student)


def assert_nothing_of_the_solution(twin: Path, student: str) -> None:
    for marker in ("BEGIN SOLUTION", "HIDDEN TESTS", 'cases=\\"hidden\\"', "widget-state"):
        assert marker not in student
    text = "\n".join("".join(cell.source) for cell in nbformat.reads(student, 4).cells)
    regions = REGION.findall(twin.read_text())
    assert regions, f"{twin} has no solutions"
    for region in regions:
        assert textwrap.dedent(region).strip() not in textwrap.dedent(text)
        for line in (line.strip() for line in region.splitlines()):
            given = sum(line == other.strip() for other in text.splitlines())
            elsewhere = REGION.sub("", twin.read_text())
            # a line that the text shows stands behind "# " in the twin
            bare = [other.strip().removeprefix("# ").strip() for other in elsewhere.splitlines()]
            written = bare.count(line)
            assert given <= written, f"a line of a solution is in the student version: {line}"


# --- the build -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the toy's solutions/ and, built from its twin, notebooks/."""
    folder = tmp_path_factory.mktemp("toy")
    shutil.copytree(TOY, folder / "solutions", ignore=shutil.ignore_patterns("*.ipynb"))
    build("00_toy", solutions=folder / "solutions", notebooks=folder / "notebooks")
    return folder


@pytest.fixture
def toy(built: Path, tmp_path: Path) -> Path:
    """A copy of the built toy that a test may spoil."""
    return Path(shutil.copytree(built, tmp_path / "toy"))


def drift(folder: Path) -> list[str]:
    return differences("00_toy", solutions=folder / "solutions", notebooks=folder / "notebooks")


def test_what_was_just_built_agrees(toy: Path) -> None:
    assert drift(toy) == []


def test_a_build_keeps_what_was_typed_into_the_student_version(toy: Path) -> None:
    path = toy / "notebooks/00_toy/00_toy.ipynb"
    notebook = nbformat.read(path, as_version=4)
    typed = next(cell for cell in notebook.cells if cell.cell_type == "code")
    typed.source, typed.execution_count = "my_answer = 42", 1
    nbformat.write(notebook, path)
    (path.parent / "notes.txt").write_text("mine")
    (line,) = drift(toy)[:1]
    assert line.index("git restore") < line.index("make notebooks")
    assert "`git restore '/my course/00_toy/00_toy.ipynb'`" in remedy(
        Path("/my course/00_toy/00_toy.ipynb")
    )
    release_into("00_toy", toy / "solutions", toy / "notebooks")
    assert drift(toy) == []
    assert "my_answer = 42" in (toy / "work/00_toy/00_toy_from_notebooks.ipynb").read_text()
    assert (toy / "work/00_toy/notes_from_notebooks.txt").read_text() == "mine"
    release_into("00_toy", toy / "solutions", toy / "notebooks")
    assert len(list((toy / "work/00_toy").iterdir())) == 2, "a version that was not run is not kept"


def test_many_cells_that_differ_are_one_sentence(toy: Path) -> None:
    path = toy / "notebooks/00_toy/00_toy.ipynb"
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for k, cell in enumerate(code, 1):
        cell.execution_count = k
    nbformat.write(notebook, path)
    (line,) = drift(toy)
    assert f"execution_count of {len(code)} cells, such as {code[0]['id']!r}" in line


def test_the_toy_keeps_its_secrets(toy: Path) -> None:
    student = (toy / "notebooks/00_toy/00_toy.ipynb").read_text()
    assert_nothing_of_the_solution(toy / "solutions/00_toy/00_toy.py", student)
    assert [path.name for path in (toy / "notebooks/00_toy").iterdir()] == ["00_toy.ipynb"]
    leaky = student.replace("# YOUR CODE HERE", "nothing_fails_in_one = []", 1)
    with pytest.raises(AssertionError, match="nothing_fails_in_one"):
        assert_nothing_of_the_solution(toy / "solutions/00_toy/00_toy.py", leaky)


def test_a_second_build_gives_the_same_but_for_what_varies(toy: Path) -> None:
    path = toy / "solutions/00_toy/00_toy.ipynb"
    first = nbformat.read(path, as_version=4)
    build("00_toy", solutions=toy / "solutions", notebooks=toy / "notebooks")
    second = nbformat.read(path, as_version=4)
    for one, other in zip(first.cells, second.cells, strict=True):
        if "nbval-ignore-output" not in one.metadata.get("tags", []):
            assert one == other
    assert first.metadata == second.metadata
    assert "execution" not in path.read_text().replace("execution_count", "")


def test_text_is_taken_over_without_executing_anything(toy: Path) -> None:
    folders = {"solutions": toy / "solutions", "notebooks": toy / "notebooks"}
    path = toy / "solutions/00_toy/00_toy.ipynb"
    before = nbformat.read(path, as_version=4)
    assert follow("00_toy", **folders) == []
    assert nbformat.read(path, as_version=4) == before
    in_twin("# A toy assignment", "# Another")(toy)
    in_twin("print(time.time())", "print(time.time())  # now")(toy)
    changed = follow("00_toy", **folders)
    assert len(changed) == 2 and drift(toy) == []
    after = nbformat.read(path, as_version=4)
    assert [cell.get("outputs") for cell in after.cells] == [
        cell.get("outputs") for cell in before.cells
    ]
    in_twin(', "skip-in-grading"]', "]")(toy)
    assert len(follow("00_toy", **folders)) == 1, "a cell whose tags changed"
    after = nbformat.read(path, as_version=4)
    in_twin("print(time.time())  # now", "print(time.ctime())")(toy)
    with pytest.raises(BuildError, match=changed[1]):
        follow("00_toy", **folders)
    assert nbformat.read(path, as_version=4) == after


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ('def f():\n    """One."""\n    return 1', 'def f():\n    """Two."""\n    return 1', True),
        ("x = 1  # one", "x = 1\n\n# two", True),
        ('x = "one"', 'x = "two"', False),
        ('def f(): "one"', 'def f(): return "one"', False),
        ("%time f()", "%time g()", False),
        ("%time f()", "%time f()", True),
    ],
)
def test_comments_and_docstrings_do_nothing(one: str, other: str, same: bool) -> None:
    assert does_the_same(one, other) is same


def test_cells_are_named_after_their_exercise(toy: Path) -> None:
    notebook = nbformat.read(toy / "solutions/00_toy/00_toy.ipynb", as_version=4)
    ids = [cell["id"] for cell in notebook.cells]
    assert ids[:3] == ["start-1", "start-2", "start-3"]
    assert ids[4:8] == ["one", "one_check", "one_check-1", "one_check-2"]


def in_twin(old: str, new: str) -> Callable[[Path], None]:
    return replace("solutions/00_toy/00_toy.py", old, new)


def replace(name: str, old: str, new: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        path = folder / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    return spoil


NOTEBOOK, STUDENT = "solutions/00_toy/00_toy.ipynb", "notebooks/00_toy/00_toy.ipynb"
PRINTED = '"outputs": [{"output_type": "stream", "name": "stdout", "text": ["37 ms"]}]'
DRIFT = {
    "the twin's text": (in_twin("# A toy assignment", "# Another"), "source"),
    "a new cell in the twin": (in_twin("# ## One", "# ## One\n\n# %%\n1 + 1"), "their order"),
    "points in the twin": (in_twin('"points": 4', '"points": 5'), "metadata"),
    "a tag in the twin": (in_twin(', "skip-in-grading"]', "]"), "metadata"),
    "the notebook's code": (replace(NOTEBOOK, "time.time()", "time.ctime()"), "source"),
    "the notebook's ids": (replace(NOTEBOOK, '"one_check-1"', '"another"'), "their order"),
    "the notebook not run": (
        replace(NOTEBOOK, '"execution_count": 3', '"execution_count": null'),
        "not executed",
    ),
    "the student's code": (replace(STUDENT, "# YOUR CODE HERE", "# HERE"), "source"),
    "the student's outputs": (replace(STUDENT, '"outputs": []', PRINTED), "outputs"),
    "the student's points": (replace(STUDENT, '"points": 4', '"points": 9'), "metadata"),
    "a twin among the students": (
        lambda folder: shutil.copy(
            folder / "solutions/00_toy/00_toy.py", folder / "notebooks/00_toy"
        ),
        "holds",
    ),
    "no student version": (lambda folder: (folder / STUDENT).unlink(), "missing"),
    "no notebook": (lambda folder: (folder / NOTEBOOK).unlink(), "missing"),
}


@pytest.mark.parametrize(("spoil", "said"), DRIFT.values(), ids=DRIFT.keys())
def test_every_drift_is_found(toy: Path, spoil: Callable[[Path], None], said: str) -> None:
    spoil(toy)
    found = drift(toy)
    assert any(said in sentence for sentence in found), found


def not_imported(cell: NotebookNode) -> None:
    cell.source = cell.source.replace("/hello", "/greet")


def of_other_points(cell: NotebookNode) -> None:
    cell.metadata["nbgrader"]["points"] = 3


def of_no_python(cell: NotebookNode) -> None:
    cell.source = cell.source.replace("report.points(1)", "report.points(1")


@pytest.mark.parametrize("options", [[], ["--text"]], ids=["build", "text"])
@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (of_no_python, r"cell 'hello_check': Python cannot read line 5 .*'report\.points\(1'"),
        (not_imported, r"there is no exercise .*Is it imported in .*/first_ranks/__init__\.py"),
        (of_other_points, "the cell has 3 points, and the exercise 00_first_ranks/hello has 1"),
    ],
)
def test_a_check_that_cannot_be_graded_is_told_before_anything_runs(
    spoil: Callable[[NotebookNode], None],
    said: str,
    options: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    twin = SOLUTIONS / "00_first_ranks/00_first_ranks.py"
    spoilt = read_twin(twin)
    (cell,) = (cell for cell in spoilt.cells if grade_id(cell) == "hello_check")
    spoil(cell)
    monkeypatch.setattr("autograder.commands.build.read_twin", {twin: spoilt}.__getitem__)
    monkeypatch.setattr("autograder.commands.build.build", lambda _: pytest.fail("it was executed"))
    monkeypatch.setattr("autograder.commands.build.follow", lambda _: pytest.fail("it was written"))
    assert main(["build", "00", *options]) == 1
    assert re.search(said, capsys.readouterr().err)


def test_nothing_is_written_when_nbgrader_makes_no_student_version(
    toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise NbGraderException("see the above traceback")

    in_twin("# ## One", "# ## Another heading")(toy)
    before = (toy / NOTEBOOK).read_bytes()
    monkeypatch.setattr("autograder.course.build.generate", refuse)
    with pytest.raises(BuildError, match=r"no student version of it; .*build\.log says why"):
        follow("00_toy", solutions=toy / "solutions", notebooks=toy / "notebooks")
    assert (toy / NOTEBOOK).read_bytes() == before


def test_nothing_is_written_when_the_solution_loses_points(toy: Path) -> None:
    in_twin("nothing_fails_in_two = []", "nothing_fails_in_two = ['bytes']")(toy)
    before = (toy / NOTEBOOK).read_bytes()
    with pytest.raises(BuildError, match=r"4\.5 of 6\.0 points in 'two_check': bytes: the bytes"):
        build("00_toy", solutions=toy / "solutions", notebooks=toy / "notebooks")
    assert (toy / NOTEBOOK).read_bytes() == before


def test_nothing_is_written_when_only_the_visible_cases_lose_points(toy: Path) -> None:
    in_twin("report = check(two)", "report = check(lambda: ['order'])")(toy)
    before = (toy / NOTEBOOK).read_bytes()
    with pytest.raises(
        BuildError, match=r"all points in 'two_check', .* order: the order is wrong"
    ):
        build("00_toy", solutions=toy / "solutions", notebooks=toy / "notebooks")
    assert (toy / NOTEBOOK).read_bytes() == before


def test_nothing_is_written_when_a_cell_fails(toy: Path) -> None:
    in_twin('# %% tags=["raises-exception"]', "# %%")(toy)
    before = (toy / NOTEBOOK).read_bytes()
    with pytest.raises(BuildError, match="on purpose"):
        build("00_toy", solutions=toy / "solutions", notebooks=toy / "notebooks")
    assert (toy / NOTEBOOK).read_bytes() == before


def test_a_build_that_is_stopped_says_so(
    toy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """nbclient, interrupted while its kernel starts, raises an AssertionError in place of the interrupt."""
    before = (toy / NOTEBOOK).read_bytes()

    def interrupted(client: QuietClient) -> None:
        client.km = None
        raise AssertionError

    monkeypatch.setattr(QuietClient, "execute", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build("00_toy", solutions=toy / "solutions", notebooks=toy / "notebooks")
    assert (toy / NOTEBOOK).read_bytes() == before
    assert main(["build", "00"]) == 130
    assert "00_first_ranks: stopped by Ctrl-C, and not built." in capsys.readouterr().err


WRITTEN = """
# %% [markdown] nbgrader={"grade_id": "why", "solution": true, "points": 2.5}
# Why does it work?
#
# ### BEGIN SOLUTION
# Since *nothing_fails_in_words*.
# ### END SOLUTION

# %% nbgrader={"grade_id": "sketch", "solution": true, "points": 1}
# Sketch it.
### BEGIN SOLUTION
nothing_fails_in_code = 1
### END SOLUTION
"""


def test_an_answer_that_a_person_grades_is_released_without_its_solution(
    tmp_path: Path, seed: int
) -> None:
    twin = tmp_path / "solutions/00_toy/00_toy.py"
    twin.parent.mkdir(parents=True)
    twin.write_text(WRITTEN.lstrip())
    build("00_toy", solutions=tmp_path / "solutions", notebooks=tmp_path / "notebooks")
    assert drift(tmp_path) == []
    assignment = read_assignment("00_toy", tmp_path / "solutions", tmp_path / "notebooks")
    text, code = assignment.released.cells
    assert text.source == "Why does it work?\n\nYOUR ANSWER HERE"
    assert code.source == "# Sketch it.\n# YOUR CODE HERE"
    for cell, points in ((text, 2.5), (code, 1)):
        own = cell.metadata["nbgrader"]
        assert (own["grade"], own["solution"], own["locked"], own["points"]) == (
            True, True, False, points
        )  # fmt: skip
    by_hand = {name: one.points for name, one in assignment.graded.items() if one.by_hand}
    assert by_hand == {"why": 2.5, "sketch": 1} and assignment.maximum == 3.5
    submission = copy.deepcopy(assignment.released)
    submission.cells[0].source = f"My answer: {seed}"
    assert restore(submission, assignment.released) == Restored()
    shown = clean_notebook(submission, assignment.released).cells[0]
    assert f"My answer: {seed}" in shown.source and shown.metadata["nbgrader"]["points"] == 2.5


REFUSED = {
    "an unknown tag": ('# %% tags=["nbval_ignore_output"]\n1', "unknown tags"),
    "a header that is no JSON": ("# %% tags=[nbval-ignore-output]\n1", "valid JSON"),
    "an unknown key": ('# %% nbgrader={"grade_id": "a", "grade": true}\n1', "'grade'"),
    "neither solution nor points": (
        '# %% nbgrader={"grade_id": "a"}\n1',
        "a solution .* or both",
    ),
    "a text that no person grades": (
        '# %% [markdown] nbgrader={"grade_id": "a", "points": 1}\n# 1',
        "only if it is an answer",
    ),
    "hidden tests in an answer": (
        '# %% nbgrader={"grade_id": "a", "solution": true, "points": 1}\n'
        "### BEGIN SOLUTION\n### END SOLUTION\n### BEGIN HIDDEN TESTS\n### END HIDDEN TESTS",
        "only cells graded by their check",
    ),
    "no grade_id": ('# %% nbgrader={"solution": true}\n1', "grade_id must be"),
    "a solution without markers": (
        '# %% nbgrader={"grade_id": "a", "solution": true}\n1',
        "hold .*BEGIN SOLUTION",
    ),
    "a region that is not ended": (
        '# %% nbgrader={"grade_id": "a", "solution": true}\n1\n### BEGIN SOLUTION\n2',
        "'### END SOLUTION' is missing after line 2",
    ),
    "a region that does not begin": (
        '# %% nbgrader={"grade_id": "a", "points": 1}\n### END HIDDEN TESTS\n2',
        "BEGIN HIDDEN TESTS' is missing before line 1",
    ),
    "a region in a region": (
        '# %% nbgrader={"grade_id": "a", "solution": true}\n### BEGIN SOLUTION\n1\n### BEGIN SOLUTION\n'
        "2\n### END SOLUTION",
        "'### END SOLUTION' is missing after line 1",
    ),
    "markers in another cell": (
        "# %%\n### BEGIN SOLUTION\n1\n### END SOLUTION",
        "hold .*BEGIN SOLUTION",
    ),
    "hidden tests in another cell": (
        "# %%\n### BEGIN HIDDEN TESTS\n1\n### END HIDDEN TESTS",
        "only cells graded by their check",
    ),
    "a grade_id twice": (
        '# %% nbgrader={"grade_id": "a", "points": 1}\n1\n' * 2,
        "two cells would get the id 'a'",
    ),
}


@pytest.mark.parametrize(("twin", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_a_twin_that_cannot_be_meant_is_refused(tmp_path: Path, twin: str, said: str) -> None:
    path = tmp_path / "twin.py"
    path.write_text(twin)
    with pytest.raises(BuildError, match=said):
        read_twin(path)


# --- outputs -------------------------------------------------------------------------------------


def notebook_that_prints(text: str, *tags: str) -> nbformat.NotebookNode:
    cell = nbformat.v4.new_code_cell("...", metadata={"tags": list(tags)}, execution_count=1)
    cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=text)]
    return nbformat.v4.new_notebook(cells=[cell])


def test_paths_of_the_machine_are_taken_out() -> None:
    text = f"{SOLUTIONS}/x.py and {Path.home()}/y and /tmp/ipykernel_12/34.py"
    text += " and /tmp/ipython-input-2755120846.py and /tmp/ipython-input-4-2084266668.py"
    cleaned = clean(notebook_that_prints(text, "nbval-ignore-output"))
    expected = "course/solutions/x.py and ~/y and cell and cell and cell"
    assert cleaned.cells[0].outputs[0].text == expected


@pytest.mark.parametrize(
    "file",
    [
        "/tmp/ipykernel_12/34.py",
        "/tmp/ipython-input-4-2084266668.py",  # Colab's
        "/tmp/ipython-input-2755120846.py",
    ],
)
def test_a_cells_file_is_a_cell_on_every_host(file: str) -> None:
    printed = f'File "{file}", line 2'
    cleaned = clean(notebook_that_prints(printed, "nbval-ignore-output"))
    assert cleaned.cells[0].outputs[0].text == 'File "cell", line 2'
    with pytest.raises(BuildError, match="path of this machine"):
        clean(notebook_that_prints(printed))


def test_a_compared_output_may_not_hold_such_a_path() -> None:
    with pytest.raises(BuildError, match="path of this machine"):
        clean(notebook_that_prints(f"{SOLUTIONS}/x.py"))


def test_widgets_are_numbered() -> None:
    notebook = notebook_that_prints("model 5f3cafe0")
    state = {"5f3cafe0": {"state": {"layout": "IPY_MODEL_99aa"}}, "99aa": {"state": {}}}
    mime = "application/vnd.jupyter.widget-state+json"
    notebook.metadata["widgets"] = {mime: {"state": state}}
    cleaned = clean(notebook)
    first, second = f"{0:032x}", f"{1:032x}"
    models = cleaned.metadata["widgets"][mime]["state"]
    assert list(models) == [first, second]
    assert models[first]["state"]["layout"] == f"IPY_MODEL_{second}"
    assert cleaned.cells[0].outputs[0].text == f"model {first}"


def test_programs_beside_packages_that_were_put_elsewhere_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pip install --target FOLDER` puts alembic, which nbgrader calls, into FOLDER/bin."""
    spec = SimpleNamespace(origin=str(tmp_path / "packages" / "alembic" / "__init__.py"))
    monkeypatch.setattr(kernels.importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(kernels.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(kernels.sysconfig, "get_path", lambda *_: str(tmp_path / "none"))
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(FileNotFoundError, match="pip install --force-reinstall alembic"):
        prefer_this_environment()
    program = tmp_path / "packages" / "bin" / "alembic"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    prefer_this_environment()
    assert shutil.which("alembic") == str(program)


@pytest.mark.parametrize("assignment", assignments())
def test_the_plan_of_a_notebook_gives_the_minutes_of_its_sections(assignment: str) -> None:
    text = (SOLUTIONS / assignment / f"{assignment}.py").read_text()
    plan = dict(re.findall(r"^# \| (\d+) [^|]+ \| (\d+)[^|]*\|", text, re.MULTILINE))
    for title, body in zip(*[iter(re.split(r"(?m)^# ## (\d+) · .*$", text)[1:])] * 2, strict=True):
        minutes = re.search(r"^# \| time \| (\d+) minutes", body, re.MULTILINE)
        if minutes is not None:
            assert title in plan, f"the plan at the head, | section | minutes |, has no row {title}"
            assert plan[title] == minutes[1], f"section {title}"
