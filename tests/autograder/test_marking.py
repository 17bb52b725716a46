"""One submission, from the notebook handed in to points, a status, a reason and an executed notebook."""

from __future__ import annotations

import copy
import platform
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from nbgrader.utils import determine_grade

from autograder.course.config import NOTEBOOKS, SOLUTIONS, assignments
from autograder.course.exercises import (
    Assignment,
    Graded,
    compare_names,
    compare_objects,
    make_assignment,
    read_assignment,
    read_graded,
)
from autograder.course.twin import BuildError, grade_id, read_twin
from autograder.outcome import statuses
from autograder.outcome.limits import Limits
from autograder.outcome.result import BY_HAND, Exercise, Result
from autograder.outcome.wording import SAID
from autograder.sandbox import execution
from autograder.sandbox.child import spawner
from autograder.submission.intake import ANOTHER, HandedIn, Submission
from autograder.submission.marking import Course, mark
from autograder.submission.restore import restore
from autograder.submission.sandboxed import open_course
from autograder.submission.suspicion import suspicious
from autograder.submission.walk import JudgeFailureError
from course_lib.checks.judge.masks import exported_from, reference_modules
from course_lib.checks.report import Report, ReportLine
from course_lib.runtime import places, pools, wire
from course_lib.runtime.errors import LaunchError
from course_lib.runtime.preloaded import Preloaded

NAME = "00_first_ranks"
LIMITS = Limits(cell=20, check=20, submission=60, output=2000)
CASES = ("value", "odd size", "bytes", "order")


# --- a small assignment of two exercises ----------------------------------------------------------


def cell(name: str, source: str, tags: tuple[str, ...] = (), **nbgrader) -> NotebookNode:
    made = nbformat.v4.new_code_cell(source, id=name)
    if tags:
        made.metadata["tags"] = list(tags)
    if nbgrader:
        grade = "points" in nbgrader
        full = {"grade": grade, "locked": grade, "solution": not grade, "task": False}
        own = {"schema_version": 3, "grade_id": name, **full, **nbgrader}
        made.metadata["nbgrader"] = own
    return made


ONE = "def one():\n    return []"
TWO = "def two():\n    return []\n\n\ndef three():\n    return 3"
STUB = "    # YOUR CODE HERE\n    raise NotImplementedError()"
HIDDEN = "\n### BEGIN HIDDEN TESTS\nreport = {}\n### END HIDDEN TESTS\nreport.points({})"
CHECK_ONE = 'check("00_first_ranks/hello", one{})'
CHECK_TWO = 'check("00_first_ranks/message_prediction", two, three{})'


def toy(source: bool) -> NotebookNode:
    """The instructor's notebook, or the student version."""

    def graded(name: str, call: str, points: float) -> NotebookNode:
        hidden = HIDDEN.format(call.format(', cases="hidden"'), points) if source else ""
        return cell(name, f"report = {call.format('')}{hidden}", points=points)

    return nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_markdown_cell("# A toy", id="title"),
            cell("imports", "from course_lib import check\n\nran = ['imports']"),
            cell("lab", "raise RuntimeError('labs are not run')", tags=("skip-in-grading",)),
            cell("one", ONE if source else f"def one():\n{STUB}", solution=True),
            graded("one_check", CHECK_ONE, 4),
            cell("on-purpose", "raise KeyError('on purpose')", tags=("raises-exception",)),
            cell("two", TWO if source else f"def two():\n{STUB}", solution=True),
            graded("two_check", CHECK_TWO, 6),
        ],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
    )


def cell_of(notebook: NotebookNode, name: str) -> NotebookNode:
    return next(cell for cell in notebook.cells if cell["id"] == name)


def answers(one: str = ONE, two: str = TWO, **inserted: str) -> NotebookNode:
    """A submission; `inserted` are cells of the student's own, each before the cell of that name."""
    notebook = toy(source=False)
    cell_of(notebook, "one").source = one
    cell_of(notebook, "two").source = two
    for name, source in inserted.items():
        place = next(i for i, cell in enumerate(notebook.cells) if cell["id"] == name)
        notebook.cells.insert(place, nbformat.v4.new_code_cell(source, id=f"own-{name}"))
    return notebook


@dataclass
class Toy:
    """Grades submissions of the toy; `judge` asks the first object which cases fail, and is asked about."""

    preloaded: Preloaded
    assignment: Assignment
    seeds: dict[str, int] = field(default_factory=dict)
    notebook: NotebookNode | None = None

    def judge(self, exercise: str, payload: list, seed: int, seconds: float) -> dict:
        self.seeds[exercise] = seed
        failing = wire.loads(payload)[0]()
        lines = [
            ReportLine(case, case not in failing, sentences=[f"The {case} is wrong. More of it."])
            for case in CASES
        ]
        score = 1 - len(failing) / len(CASES)
        return Report(exercise, score, lines, seed=seed, cases="hidden").to_json()

    def grade(
        self, notebook: NotebookNode | bytes, student: str = "ann", limits: Limits = LIMITS,
        judge: Callable | None = None, start: Callable | None = None, known: Sequence[Exercise] = (),
        notes: Sequence[str] = (),
    ) -> Result:  # fmt: skip
        course = Course(
            {NAME: self.assignment},
            b"a secret of the course",
            start=lambda assignment: start or spawner(self.preloaded, None),
            judge=lambda assignment: judge or self.judge,
        )
        content = notebook if isinstance(notebook, bytes) else nbformat.writes(notebook).encode()
        submission = Submission(student, NAME, Path("nowhere"))
        result, self.notebook = mark(
            submission, course, limits, HandedIn(content, notes=[*notes]), known
        )
        return result

    def outputs(self, name: str) -> list[NotebookNode]:
        assert self.notebook is not None
        return cell_of(self.notebook, name).outputs


@pytest.fixture(scope="module")
def preloaded() -> Iterator[Preloaded]:
    process = Preloaded(("autograder.sandbox.executor",))
    yield process
    process.close()


@pytest.fixture
def course(preloaded: Preloaded) -> Toy:
    return Toy(preloaded, make_assignment(NAME, toy(source=True), toy(source=False)))


def points(result: Result) -> list[float]:
    return [exercise.points for exercise in result.exercises]


# --- points, status, reason -----------------------------------------------------------------------


def test_an_honest_submission_gets_its_points(course: Toy) -> None:
    result = course.grade(answers())
    assert (result.status, result.reason, points(result)) == (statuses.GRADED, "", [4, 6])
    assert (result.changes, result.eyes) == ([], [])
    assert [exercise.name for exercise in result.exercises] == ["hello", "message_prediction"]
    assert course.outputs("lab") == []
    (error,) = course.outputs("on-purpose")
    assert error.ename == "KeyError"
    nbformat.validate(course.notebook)


def test_part_of_the_cases_is_part_of_the_points(course: Toy) -> None:
    result = course.grade(answers(two=TWO.replace("[]", "['bytes', 'order']")))
    assert (result.status, points(result)) == (statuses.GRADED, [4, 3])
    assert result.reason == "message_prediction: bytes: The bytes is wrong."
    table, value = course.outputs("two_check")
    assert "✗ order" in table.text and "More of it." in table.text
    assert "the same inputs again" not in table.text
    assert value.data["text/plain"] == "3"


def test_a_verdict_that_is_known_stays_and_the_exercise_is_not_judged(course: Toy) -> None:
    wrong = answers(one="def one():\n    return ['order']", two="def tow(): pass")
    first = course.grade(wrong)
    course.seeds.clear()
    again = course.grade(answers(), known=first.exercises[:1])
    assert points(again) == [3, 6]
    assert list(course.seeds) == ["00_first_ranks/message_prediction"]
    assert course.outputs("one_check")[1].data["text/plain"] == "3"
    assert points(course.grade(wrong, known=again.exercises)) == [3, 0]  # nothing is handed in


def test_nbgrader_reads_the_same_points(course: Toy) -> None:
    result = course.grade(answers(one="def one():\n    return ['order']", two="def tow(): pass"))
    assert points(result) == [3, 0]
    assert determine_grade(cell_of(course.notebook, "one_check")) == (3, 4)
    assert determine_grade(cell_of(course.notebook, "two_check")) == (0, 6)


def test_a_blank_submission_is_called_so(course: Toy) -> None:
    def judge(exercise: str, *_) -> dict:
        return Report(exercise, 0.0, [ReportLine("value", False)]).to_json()

    result = course.grade(toy(source=False), judge=judge)
    assert (result.status, result.score) == (statuses.BLANK, 0)
    assert result.reason == "nothing was written into any exercise"
    other = f"{ANOTHER}: 00_toy_1.ipynb"
    result = course.grade(toy(source=False), judge=judge, notes=[other])
    assert result.reason == f"nothing was written into any exercise; {other}"
    assert result.eyes == [other]


def test_a_second_notebook_is_listed_for_eyes(course: Toy) -> None:
    other = f"{ANOTHER}: 00_toy_1.ipynb"
    result = course.grade(answers(), notes=[other, "timestamp.txt holds no date and was not used"])
    assert (points(result), result.reason, result.eyes) == ([4, 6], "", [other])


@pytest.mark.parametrize(
    ("two", "reason"),
    [
        (
            "def two(:",
            "two is not defined. It stands in cell 'two': it ended with SyntaxError",
        ),
        ("1 / 0\ndef two(): pass", "it ended with ZeroDivisionError: division by zero."),
        (
            "from nowhere import x\ndef two(): pass",
            "ModuleNotFoundError: No module named 'nowhere'.",
        ),
        ("two = three = 5", "two must be a function that you write; it is of type int."),
        ("", "two is not defined."),
        (
            "def second(): pass",
            "two is not defined. Its cell defines second, and the check looks for two.",
        ),
    ],
)
def test_what_cannot_be_handed_in_costs_its_exercise_only(
    course: Toy, two: str, reason: str
) -> None:
    result = course.grade(answers(two=two))
    assert (result.status, points(result)) == (statuses.GRADED, [4, 0])
    assert result.reason.startswith("message_prediction: ") and reason in result.reason
    assert reason.split(" is ")[0] in " ".join(course.outputs("two_check")[0].text.split())


def test_graded_cells_are_not_run_and_see_no_verdict(course: Toy) -> None:
    result = course.grade(answers(two=f"found = dict(globals())\n{TWO}\nprint(sorted(found))"))
    assert result.score == 10
    assert "'report'" not in course.outputs("two")[0].text


# --- a limit costs the cell it hits ---------------------------------------------------------------


def test_a_death_costs_one_exercise(course: Toy) -> None:
    result = course.grade(answers(one="import os\nos._exit(3)"))
    assert (result.status, points(result)) == (statuses.KERNEL_DIED, [0, 6])
    assert result.reason == "cell 'one': the notebook's process ended itself (exit code 3)"
    assert result.reason in result.eyes
    assert "one is not defined. It stands in cell 'one'" in result.exercises[0].reason
    assert [exercise.limit for exercise in result.exercises] == [statuses.KERNEL_DIED, ""]
    assert course.outputs("one")[-1].ename == "KernelDied"


def test_after_a_death_the_earlier_cells_are_run_again_and_the_fatal_one_is_not(
    course: Toy,
) -> None:
    notebook = answers(
        one="state = ran + ['one']\nraise ValueError('after all is defined')",
        two="print('two', state)\nimport os\nos.kill(os.getpid(), 9)",
        one_check="def one():\n    return [] if state == ['imports', 'one'] else ['value']",
        two_check=TWO.replace("[]", "[] if state == ['imports', 'one'] else ['order']"),
    )
    result = course.grade(notebook)
    assert (result.status, points(result)) == (statuses.KERNEL_DIED, [4, 6])
    assert course.outputs("two")[0].text == "two ['imports', 'one']\n", "its prints are kept"


def test_several_deaths_leave_what_they_do_not_touch(course: Toy) -> None:
    die = "import os; os._exit({})"
    notebook = answers(one_check=die.format(1), two=die.format(2), two_check=f"{die.format(3)}")
    notebook.cells.append(nbformat.v4.new_code_cell("ran", id="last"))
    result = course.grade(notebook)
    assert (result.status, points(result)) == (statuses.KERNEL_DIED, [4, 0])
    assert course.outputs("last")[0].data["text/plain"] == "['imports']"
    assert len(result.eyes) == 3
    assert result.reason == f"{result.eyes[0]}; {result.eyes[1]}; and 1 more"


def test_a_cell_that_dies_only_when_it_is_run_again_is_left_out(course: Toy, tmp_path) -> None:
    flag = tmp_path / "flag"
    notebook = answers(
        one=f"import os\nif os.path.exists({str(flag)!r}): os._exit(1)\n{ONE}",
        two=f"open({str(flag)!r}, 'w').close()\nos._exit(2)",
        two_check=TWO,
    )
    result = course.grade(notebook)
    assert points(result) == [4, 6]
    assert any("when it was run again" in sentence for sentence in result.eyes)


STUBBORN = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"


@pytest.mark.parametrize("loop", ["while True: pass", STUBBORN], ids=["polite", "stubborn"])
def test_a_cell_without_end_costs_one_exercise(course: Toy, loop: str, monkeypatch) -> None:
    monkeypatch.setattr(execution, "GRACE", 0.5)
    limits = Limits(cell=3, check=20, submission=60)
    result = course.grade(answers(one=loop), limits=limits)
    assert (result.status, points(result)) == (statuses.TIMED_OUT, [0, 6])
    assert result.reason.startswith("cell 'one': the cell ran longer than its time limit of 3 s")


def test_a_cell_of_ones_own_that_has_no_end_is_named_by_its_first_line(course: Toy) -> None:
    """Its number alone is not the one that the student's Jupyter shows."""
    notebook = answers()
    notebook.cells.append(nbformat.v4.new_code_cell("\nwhile True:\n    pass", id="own"))
    result = course.grade(notebook, limits=Limits(cell=3, check=20, submission=60))
    assert (result.status, points(result)) == (statuses.TIMED_OUT, [4, 6])
    assert re.fullmatch(
        r"cell In\[\d+\], which begins with 'while True:': the cell ran longer than its time limit of 3 s",
        result.reason,
    )
    assert "look for a loop that does not end" in SAID[result.status]


def test_the_submission_has_an_end(course: Toy) -> None:
    limits = Limits(cell=30, check=30, submission=3)
    began = time.monotonic()
    result = course.grade(answers(two="import time\ntime.sleep(100)"), limits=limits)
    assert time.monotonic() - began < 30
    assert (result.status, points(result)) == (statuses.TIMED_OUT, [4, 0])
    assert re.fullmatch(
        r"the submission's time limit of 3 s was reached, [123] s of them in cell 'two'",
        result.reason,
    )
    assert result.exercises[1].limit == statuses.TIMED_OUT
    assert "not judged" in result.exercises[1].reason


def test_a_check_has_an_end(course: Toy) -> None:
    def judge(exercise: str, payload: list, seed: int, seconds: float) -> dict:
        assert seconds <= 0.5
        time.sleep(seconds if exercise.endswith("hello") else 0)
        failing = ["value"] if exercise.endswith("hello") else []
        lines = [ReportLine("value", not failing)]
        return Report(exercise, 0.0 if failing else 1.0, lines).to_json()

    result = course.grade(answers(), limits=Limits(check=0.5), judge=judge)
    assert (result.status, points(result)) == (statuses.TIMED_OUT, [0, 6])
    assert result.exercises[0].limit == statuses.TIMED_OUT
    assert result.reason == "hello: its check took longer than its time limit of 0.5 s"


@pytest.mark.parametrize(
    ("what", "expected", "said"),
    [
        ("memory", statuses.OUT_OF_MEMORY, "used more than the 4 GB of memory that they may use"),
        ("processes", statuses.TOO_MANY_PROCESSES, "more processes or threads than they may (256)"),
        ("files", statuses.TOO_MANY_FILES, "more files at a time than they may (1024)"),
        ("disk", statuses.DISK_FULL, "wrote more than the 512 MB that they may write"),
        ("", statuses.GRADED, "a sentence"),
    ],
)
def test_what_the_ranks_of_a_check_used_up_is_the_status(
    course: Toy, what: str, expected: str, said: str
) -> None:
    def judge(exercise: str, payload: list, seed: int, seconds: float) -> dict:
        line = ReportLine("value", not exercise.endswith("hello"), sentences=["a sentence."])
        return Report(exercise, float(line.passed), [line], limit=what).to_json()

    result = course.grade(answers(), limits=Limits(), judge=judge)
    assert (result.status, points(result)) == (expected, [0, 6])
    assert [one.limit for one in result.exercises] == [expected if what else "", ""]
    assert result.reason.startswith("hello: ") and said in result.reason


def test_long_output_costs_nothing_but_is_said(course: Toy) -> None:
    result = course.grade(answers(one=f"{ONE}\nfor i in range(5000): print(i)"))
    assert (result.status, result.score) == (statuses.TOO_MUCH_OUTPUT, 10)
    assert "bytes; 2,000 are kept" in result.reason
    assert result.eyes == []


def test_an_error_from_a_limit_is_its_status(course: Toy) -> None:
    result = course.grade(answers(one=f"{ONE}\nraise MemoryError"))
    assert (result.status, result.score) == (statuses.OUT_OF_MEMORY, 10)
    assert course.outputs("one")[-1].ename == "OutOfMemory"


def test_the_worst_status_counts() -> None:
    assert statuses.worst([]) == statuses.GRADED
    assert statuses.worst([statuses.BLANK, statuses.TIMED_OUT]) == statuses.TIMED_OUT
    assert statuses.worst([statuses.TIMED_OUT, statuses.KERNEL_DIED]) == statuses.KERNEL_DIED


# --- failures of the grader ------------------------------------------------------------------------


def test_syntax_of_another_python_is_told_as_such(course: Toy) -> None:
    notebook = answers(one="def hello():\n    return f'{'")
    notebook.metadata["language_info"] = {"name": "python", "version": "3.99.0"}
    result = course.grade(notebook)
    assert "saved by Python 3.99.0. " in result.exercises[0].reason
    assert any("this notebook was saved by Python 3.99.0" in said for said in result.changes)
    notebook.metadata["language_info"]["version"] = platform.python_version()
    assert not any("saved by" in said for said in course.grade(notebook).changes)


def test_an_exercise_that_moved_into_another_cell_keeps_its_points(course: Toy) -> None:
    """Two exercises in one cell: the second's stub, put back behind it, would take its place."""
    notebook = answers(one=f"{ONE}\n\n{TWO}")
    notebook.cells.remove(cell_of(notebook, "two"))
    result = course.grade(notebook)
    assert points(result) == [4, 6]
    assert "cell 'two' was missing and was put back" in result.changes


def test_an_answer_on_which_a_judge_failed_is_listed_for_eyes(course: Toy) -> None:
    def judge(exercise: str, *_) -> dict:
        failures = ["Traceback ...\nZeroDivisionError: division by zero"]
        lines = [ReportLine("value", True), ReportLine("bytes", False)]
        return Report(exercise, 0.5, lines, failures=failures).to_json()

    result = course.grade(answers(), judge=judge)
    assert (result.status, points(result)) == (statuses.GRADED, [2, 3])
    said = "the judge failed: ZeroDivisionError: division by zero"
    assert [eye.partition(": ")[2] for eye in result.eyes] == [said, said]


def test_a_judge_that_fails_gives_no_grade(course: Toy) -> None:
    def judge(exercise: str, *_) -> dict:
        raise JudgeFailureError(f"{exercise}: no ranks")

    result = course.grade(answers(), judge=judge)
    assert (result.status, result.exercises) == (statuses.UNGRADED, [])
    assert "no ranks" in result.reason and course.notebook is None


def test_a_notebook_process_that_does_not_start_gives_no_grade(course: Toy) -> None:
    def start(fds) -> None:
        raise LaunchError("the sandbox could not be made")

    result = course.grade(answers(), start=start)
    assert result.status == statuses.UNGRADED
    assert "the sandbox could not be made" in result.reason


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"{", "not valid JSON"), (b"\xff\xfe{}", "not UTF-8"), (b"[1]", "not a notebook")],
)
def test_what_is_no_notebook_is_the_students(course: Toy, content: bytes, said: str) -> None:
    result = course.grade(content)
    assert (result.status, result.score) == (statuses.UNREADABLE, 0)
    assert said in result.reason and course.notebook is None


def test_a_missing_notebook_is_the_students(course: Toy, tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    opened = Course({NAME: course.assignment}, b"secret", lambda a: None, lambda a: None)  # pyright: ignore
    result, notebook = mark(Submission("ann", NAME, tmp_path / NAME), opened, LIMITS)
    assert (result.status, notebook) == (statuses.MISSING, None)


# --- seeds -----------------------------------------------------------------------------------------


def test_seeds_follow_from_student_and_exercise_and_stay_secret(course: Toy) -> None:
    results = [course.grade(answers(), student) for student in ("ann", "ann", "bob")]
    assert len(set(course.seeds.values())) == 2
    seen = []
    for student in ("ann", "ann", "bob"):
        course.grade(answers(), student)
        seen.append(dict(course.seeds))
    assert seen[0] == seen[1]
    assert not set(seen[1].values()) & set(seen[2].values())
    told = str([result.to_json() for result in results])
    assert not any(str(seed) in told for one in seen for seed in one.values())


# --- restoring, and changes for a person to look at --------------------------------------------------


def test_order_is_restored_with_what_the_student_added(course: Toy) -> None:
    notebook = answers(two_check="helper = 1")
    checks = [cell for cell in notebook.cells if cell["id"].endswith("_check")]
    notebook.cells = checks[::-1] + [cell for cell in notebook.cells if cell not in checks]
    result = course.grade(notebook)
    assert (result.status, points(result)) == (statuses.GRADED, [4, 6])
    assert "cells had been put into another order" in result.eyes
    ids = [cell["id"] for cell in course.notebook.cells]
    assert [name for name in ids if name != "own-two_check"] == [
        cell["id"] for cell in toy(source=False).cells
    ]
    assert "own-two_check" in ids


def test_changed_metadata_is_restored_and_named() -> None:
    submission, released = answers(), toy(source=False)
    cell_of(submission, "one_check").metadata.nbgrader["points"] = 100
    del cell_of(submission, "two_check").metadata["nbgrader"]
    cell_of(submission, "two").cell_type = "markdown"
    submission.cells.append(copy.deepcopy(cell_of(submission, "one")))
    submission.cells[-1]["id"] = "copy"
    said = restore(submission, released)
    assert set(said.changes) == {
        "cell 'one_check': its points had been changed",
        "cell 'two' had become a markdown cell",
    }
    assert set(said.notes) == {
        "cell 'two_check' had lost its grading metadata",
        "cell 'one' was there 2 times",
    }
    for original in released.cells:
        assert cell_of(submission, original["id"]).metadata == original.metadata
    assert submission.cells[-1].metadata == {}


def test_tags_of_the_submission_count_for_nothing(course: Toy) -> None:
    notebook = answers(one_check="one = None")
    for own in notebook.cells:
        own.metadata["tags"] = ["skip-in-grading", "raises-exception"]
    cell_of(notebook, "lab").metadata["tags"] = []
    result = course.grade(notebook)
    assert points(result) == [0, 6]
    assert course.outputs("lab") == [], "a lab is not run, whatever the submission says"


def test_code_that_reaches_for_the_judge_is_named() -> None:
    reaching = {
        "import torch\ntorch.allclose = lambda *a: True": "sets torch.allclose",
        "import json\njson.dumps = mine": "sets json.dumps",
        "import http.client\nhttp.client.socket.socket.send = mine": "sets http.client.socket.socket.send",
        "def check(*a, **k): pass": "sets check",
        "import builtins\nsetattr(builtins, 'len', 1)": "sets builtins.len",
        "import sys\nsys.modules['x'] = 1": "sets sys.modules",
        "from course_lib.checks.judge import judge": "reaches for course_lib.checks.judge.judge",
        "%matplotlib inline\nimport the.answers": "reaches for the.answers",
        "if True:\n    %pip install x\nimport the.answers": "reaches for the.answers",
        "from the import answers": "reaches for the.answers",
        "import the\nthe.answers(1)": "reaches for the.answers",
        "dist.group.WORLD._get_backend(cpu).allreduce([x])": "reaches for dist.group.WORLD._get_backend",
        "forward.__globals__['recorder']": "reaches for forward.__globals__",
        "getattr(forward, '__globals__')": "reaches for __globals__",
        "hook = block._forward_hooks.popitem()": "reaches for block._forward_hooks.popitem",
        "import sys\nsys._getframe(1).f_locals": "reaches for sys._getframe",
        "import inspect": "reaches for inspect",
        "import gc\ngc.get_objects()": "reaches for gc.get_objects",
        "from ctypes import memmove": "reaches for ctypes.memmove",
        "import numpy as np\nnp.ctypeslib.ctypes.memmove": "reaches for np.ctypeslib.ctypes.memmove",
        "import http.client\nhttp.client.socket": "reaches for http.client.socket",
        "open('/proc/self/clear_refs', 'w')": "reaches for /proc/self/clear_refs",
        "open('/dev/zero', 'r+b')": "reaches for /dev/zero",
        "import sys\nfor m in sys.modules.values(): pass": "reaches for sys.modules.values",
        "vars(module)['resident'] = None": "reaches for vars",
        "module.__dict__.update(a=1)": "reaches for module.__dict__.update",
        "globals()['check'] = 1": "reaches for globals",
        "getattr(gc, 'get_' + 'objects')()": "computes a name for getattr",
        "setattr(torch, ''.join(names), 1)": "computes a name for setattr",
        "from importlib import import_module": "reaches for importlib.import_module",
        "__import__('os')": "reaches for __import__",
        "exec(text)": "reaches for exec",
        "import os\nos.fork()": "reaches for os.fork",
        "import os\nos.posix_spawnp('a', [], {})": "reaches for os.posix_spawnp",
        "read, write = os.pipe()": "reaches for os.pipe",
        "from multiprocessing import shared_memory": "reaches for multiprocessing.shared_memory",
        "import urllib.request": "reaches for urllib.request",
        "from shutil import rmtree": "reaches for shutil.rmtree",
        "open('/etc/passwd')": "reaches for /etc/passwd",
        "import os\nos.kill(1, 9)": "reaches for os.kill",
        "get_ipython().system('ls /')": "reaches for .system",
        "!cat secret": "runs a command: cat secret",
        "if True:\n    !!ls /": "runs a command: ls /",
        "files = !ls /": "runs a command: ls /",
        "%%bash\nls /": "runs a command: bash",
        "%run other.py": "runs a command: run other.py",
        "!pip install x; ls /": "runs a command: pip install x; ls /",
        "files = %pwd\nimport ctypes": "reaches for ctypes",
        "torch.add?\nimport ctypes": "reaches for ctypes",
        "x = 1  # " + 100_000 * "-": "was not looked at: it has 100,009 characters",
    }
    for source, said in reaching.items():
        found = suspicious(answers(two_check=source), toy(False), frozenset({"the.answers"}))
        assert f"cell 8 {said}" in found, source
    honest = "import torch\nfrom course_lib import check, launch\ntorch.manual_seed(0)\nx = [1]\nx[0] = 2"
    honest += (
        "\nself.inner = torch.nn.Linear(2, 2)\nself.inner.weight\nmodel.eval()\nre.compile('a')"
    )
    honest += "\ngetattr(self, f'layer{i}')\nsetattr(parent, name, new)\ngetattr(module, 'bias')"
    honest += "\nimport importlib.util\nimportlib.util.find_spec('course_lib')"
    honest += "\nclass Bucket:\n    check = 1\n    def launch(self): pass"
    honest += "\nd = {}\nd['a'] = 1\nd.update(b=2)\nself.pipe = 1\nx = 'a socket'"
    honest += (
        "\n!pip install 'torch>=2' matplotlib\n%pip install torch\n!nvidia-smi\n%matplotlib inline"
    )
    honest += "\nassert 1 \\\n    != 2\nx = 3 != 4\nprocess.kill()\nplatform.system()\ntorch.add?"
    assert suspicious(answers(two_check=honest), toy(False)) == []
    for hostile in (
        "def broken(:",
        "\n" * 90_000 + "x",
        "-" * 90_000 + "1",
        " " * 90_000 + "x",
        "a " * 45_000,
        f"{'a.' * 2000}a = 1",
    ):
        assert suspicious(answers(two_check=hostile), toy(False)) == []
    began = time.monotonic()
    suspicious(answers(two_check=f"a{'.a' * 49_000}\na{'.a[0]' * 19_000}"), toy(False))
    assert time.monotonic() - began < 60  # looking at each of its names anew takes minutes
    # for a hundred times as much of such text Python takes ten thousand times as long
    quadratic = f"x = f'{'{1}' * 10_000_000}'"
    assert len(suspicious(answers(two_check=quadratic), toy(False))) == 1
    given = toy(False)
    cell_of(given, "imports").source += "\nimport autograder"
    assert suspicious(answers(two_check="import autograder"), given) == []


def test_code_in_a_cell_that_belongs_to_no_exercise_is_looked_at() -> None:
    """In a cell of the student's own, and in a cell that was handed out and is not graded."""
    notebook = answers()
    notebook.cells.append(nbformat.v4.new_code_cell("!cat /etc/passwd"))
    assert suspicious(notebook, toy(False)) == [
        f"cell {len(notebook.cells)} runs a command: cat /etc/passwd"
    ]
    handed_out = answers()
    free = next(
        cell for cell in handed_out.cells if cell.cell_type == "code" and not grade_id(cell)
    )
    free.source += "\n%run other.py"
    assert [said.partition(" runs ")[2] for said in suspicious(handed_out, toy(False))] == [
        "a command: run other.py"
    ]


def test_an_answer_is_named_by_whatever_name_its_package_gives_it() -> None:
    exported = exported_from(reference_modules("08_context_parallel"))
    for name in ("zigzag", "ring_attention"):
        assert f"course_lib.context_parallel.{name}" in exported
    assert "course_lib.context_parallel.contiguous" not in exported
    assert exported_from(reference_modules("02_collectives")) == set(), "all of it is a reference"


# --- the instructor's notebook -------------------------------------------------------------------------


@pytest.mark.parametrize("name", assignments())
def test_every_graded_cell_of_the_course_can_be_judged_outside(name: str) -> None:
    assignment = read_assignment(name, SOLUTIONS, NOTEBOOKS)
    assert assignment.graded and assignment.maximum > 0
    for graded in assignment.graded.values():
        assert graded.check.startswith(f"{name}/") and graded.expressions


def test_the_call_on_hidden_cases_is_the_one_that_counts() -> None:
    source, released = toy(True), toy(False)
    cell_of(source, "two_check").source = (
        'check("00_first_ranks/hello", one)\n'
        'course_lib.check("00_first_ranks/message_prediction", two, m["a"], cases="hidden")'
    )
    graded = make_assignment(NAME, source, released).graded["two_check"]
    assert graded == Graded(
        "two_check", 6, "00_first_ranks/message_prediction", ("two", "m['a']"), functions=True
    )


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("assert one() == []", "calls check"),
        ("check(name, one)", "the exercise's name as a text"),
        ('check("00_first_ranks/hello", *objects)', "its objects one by one"),
        ('check("00_first_ranks/hello")', "its objects one by one"),
        ('check("00_first_ranks/helo", one)', "Did you mean 00_first_ranks/hello"),
        ('check("00_first_ranks/hello", one, two)', "the cell hands in 2"),
        (
            'check("00_first_ranks/hello", one)\ncheck("00_first_ranks/hello", two)',
            "this one has 2",
        ),
        ("check(", "plain Python"),
    ],
)
def test_a_cell_that_cannot_be_judged_outside_is_an_error_for_its_author(
    source: str, said: str
) -> None:
    notebook = toy(True)
    cell_of(notebook, "one_check").source = source
    with pytest.raises(BuildError, match="'one_check'") as raised:
        make_assignment(NAME, notebook, toy(False))
    assert said in str(raised.value)


def test_names_that_are_not_those_of_the_exercise_are_an_error_for_its_author() -> None:
    """A slip in `objects=` would build, and the check would tell students a name that no cell has."""
    source = toy(True)
    cell_of(source, "one_check").source = 'check("00_first_ranks/hello", helo)'
    graded = make_assignment(NAME, source, toy(False)).graded
    with pytest.raises(BuildError) as raised:
        compare_objects(NAME, graded)
    assert "'one_check'" in str(raised.value)
    assert "00_first_ranks/hello has objects=('hello',), and the cell hands in helo." in str(
        raised.value
    )
    for name in assignments():
        compare_objects(name, read_assignment(name, SOLUTIONS, NOTEBOOKS).graded)


@pytest.mark.parametrize(
    ("cell", "misspelt", "says"),
    [
        ("ring_shift_check", "ring_shft_check", "must be 'ring_shift_check'"),
        ("ring_shift", "ring_shft", "The exercises are hello, "),
    ],
)
def test_a_misspelt_grade_id_is_an_error(
    cell: str, misspelt: str, says: str, tmp_path: Path
) -> None:
    twin, text = tmp_path / f"{NAME}.py", (SOLUTIONS / NAME / f"{NAME}.py").read_text()
    twin.write_text(text.replace(f'"grade_id": "{cell}"', f'"grade_id": "{misspelt}"'))
    source = read_twin(twin)
    with pytest.raises(BuildError, match=says) as raised:
        compare_names(NAME, source, read_graded(NAME, source))
    assert f"cell '{misspelt}'" in str(raised.value)


def test_all_grade_ids_name_what_they_mark() -> None:
    for name in assignments():
        source = read_twin(SOLUTIONS / name / f"{name}.py")
        compare_names(name, source, read_graded(name, source))


def test_a_student_version_of_another_source_is_an_error() -> None:
    released = toy(False)
    cell_of(released, "two_check").metadata.nbgrader["points"] = 7
    with pytest.raises(BuildError, match="make notebooks"):
        make_assignment(NAME, toy(True), released)


def test_written_answers_are_left_to_a_person(preloaded: Preloaded) -> None:
    source, released = toy(True), toy(False)
    for notebook in (source, released):
        essay = nbformat.v4.new_markdown_cell("Your answer", id="essay")
        own = {"grade": True, "solution": True, "locked": False, "points": 5, "task": False}
        essay.metadata["nbgrader"] = {"grade_id": "essay", "schema_version": 3, **own}
        notebook.cells.insert(2, essay)
    course = Toy(preloaded, make_assignment(NAME, source, released))
    notebook = copy.deepcopy(released)
    cell_of(notebook, "one").source, cell_of(notebook, "two").source = ONE, TWO
    cell_of(notebook, "essay").source = "Because."
    result = course.grade(notebook)
    assert points(result) == [0, 4, 6]
    assert result.exercises[0].reason == BY_HAND
    assert (result.status, result.reason) == (statuses.GRADED, "")
    assert cell_of(course.notebook, "essay").source == "Because."


# --- the real thing ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real() -> Iterator[Course]:
    """The first notebook with its own judge, in the strongest sandbox that there is here."""
    read_files = places.read_files
    yield open_course([read_assignment(NAME, SOLUTIONS, NOTEBOOKS)], b"secret" * 5, Limits())
    places.read_files = read_files
    pools.close()
    pools.preload("course_lib.checks.rank.harness")


def reference() -> NotebookNode:
    """The student version with the instructor's answers."""
    notebook = nbformat.read(NOTEBOOKS / NAME / f"{NAME}.ipynb", as_version=4)
    source = nbformat.read(SOLUTIONS / NAME / f"{NAME}.ipynb", as_version=4)
    for own, original in zip(notebook.cells, source.cells, strict=True):
        if own.metadata.get("nbgrader", {}).get("solution"):
            own.source = original.source
    return notebook


def test_the_real_judge_behind_the_real_walls(real: Course) -> None:
    notebook = reference()
    cell_of(notebook, "hello").source = 'def hello():\n    raise ValueError(f"inputs {40 + 2}")'
    fatal = nbformat.v4.new_code_cell("import os; os._exit(1)", id="fatal")
    notebook.cells.insert(-3, fatal)
    content = nbformat.writes(notebook).encode()
    result, executed = mark(Submission("ann", NAME, Path()), real, Limits(), HandedIn(content))
    assert result.status == statuses.KERNEL_DIED, result
    lost = [exercise for exercise in result.exercises if exercise.points < exercise.maximum]
    assert [exercise.name for exercise in lost] == ["hello"], [one.report for one in lost]
    assert result.score == 9
    told = lost[0].report["lines"][0]["sentences"]
    assert "ValueError" in str(told) and "inputs 42" not in str(told)
    assert "Cell In[2], line 2" in str(told)
    assert executed is not None
    assert result.sandbox == list(real.layers)
