"""The sample class of a course, whichever assignments the course has."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from autograder.book.store import Store
from autograder.commands import grade
from autograder.course.config import assignments
from autograder.sample.sample_class import (
    EXTRA,
    OF_MUTANTS,
    PERFECT,
    STUDENTS,
    instead,
    make_sample_class,
)


def test_of_the_whole_course_nobody_is_left_out(tmp_path: Path) -> None:
    assert make_sample_class(tmp_path, assignments()) == []


def test_the_same_class_is_made_each_time(tmp_path: Path) -> None:
    """Or `make grade` would grade submissions again of which nothing has changed."""
    made = []
    for _ in range(2):
        make_sample_class(tmp_path / "class", ["00_first_ranks"])
        files = sorted((tmp_path / "class").rglob("*.ipynb"))
        made.append({path.parent.parent.name: path.read_bytes() for path in files})
    assert made[0] == made[1]


@pytest.mark.parametrize("assignment", assignments())
def test_a_course_may_have_any_single_assignment(
    assignment: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Students whose mistake no wrong answer shows are left out, and the command says so."""
    options = Namespace(submissions=None, out=tmp_path)
    there = {one.student for one in grade._submissions(options, [assignment])}
    idle = [one for one in OF_MUTANTS if one not in there]
    assert there >= set(STUDENTS) - {PERFECT, EXTRA, *OF_MUTANTS}
    assert len(there & {PERFECT, EXTRA}) == 1, "whose it is depends on whether it has extra credit"
    said = (
        f"Left out: {', '.join(idle)}. No wrong answer to an exercise of {assignment} has a title"
    )
    assert (said in capsys.readouterr().out) == bool(idle)


def test_a_class_is_graded_where_the_sample_class_was_before(tmp_path: Path) -> None:
    """The sample students' results are removed; other files among the results stay."""
    store = Store(tmp_path)
    for assignment in ("00_toy", ".last/00_toy"):
        for student in ("ann", "sample-perfect"):
            path = store.folder / assignment / f"{student}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("{}")
    (store.folder / "last-changes").write_text("ann 00_toy: 7 points\n")
    store.forget("sample-perfect")
    left = {path.relative_to(store.folder).as_posix() for path in store.folder.rglob("*.*")}
    assert left == {".last", ".last/00_toy/ann.json", "00_toy/ann.json"}
    assert (store.folder / "last-changes").exists()


def test_a_mutant_takes_the_place_of_a_decorated_function() -> None:
    reference = "import torch\n\n\n@torch.no_grad()\n@staticmethod\ndef step(x):\n    return x\n\n\nlast = 1"
    text = instead(reference, "def step(x):\n    return 2 * x")
    assert "@" not in text and text.count("def step") == 1
    assert text.startswith("import torch") and "last = 1" in text
