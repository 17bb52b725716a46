"""Likeness: copies are found after any renaming, and no student is accused of text that all write."""

from __future__ import annotations

import ast
import random
import re
from pathlib import Path

import nbformat
import pytest

from autograder.course.config import NOTEBOOKS, SOLUTIONS, assignments
from autograder.report.alike import (
    LEAST,
    SHARE,
    Answers,
    Likeness,
    Originals,
    answers,
    compare,
    groups,
    originals,
    reference_modules,
)
from autograder.report.fingerprints import shape
from autograder.sample.mutants import MUTANTS, read_mutants
from autograder.sample.sample_class import CHANGES, EXTRA, PERFECT, instead, make_sample_class

ASSIGNMENTS = assignments()
FEW = 2  # exercises of an assignment of which none need be large


def read(folder: Path, assignment: str):
    return nbformat.read(folder / assignment / f"{assignment}.ipynb", as_version=4)


@pytest.fixture(scope="module")
def against() -> dict[str, Originals]:
    found = {}
    for name in ASSIGNMENTS:
        source = read(SOLUTIONS, name)
        modules = reference_modules(f"{name}/{exercise}" for exercise in answers(source))
        found[name] = originals(source, read(NOTEBOOKS, name), modules)
    return found


def renamed(text: str, seed: int) -> str:
    """The same program under other names, with comments, a docstring and another layout."""
    tree, chance = ast.parse(text), random.Random(seed)
    own = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    own |= {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.body.insert(0, ast.Expr(ast.Constant(f"What {node.name} does.")))
            node.returns = None
    changed = ast.unparse(ast.fix_missing_locations(tree))
    for name in own:
        changed = re.sub(
            rf"(?<![.\w'\"]){name}(?!\w)", f"x{chance.randrange(10**6)}_{name[:1]}", changed
        )
    return re.sub(r"\n(?= +\S)", lambda _: chance.choice(["\n", "\n\n"]), changed) + "\n# mine\n"


# --- fingerprints --------------------------------------------------------------------------------


@pytest.mark.parametrize("assignment", ASSIGNMENTS)
def test_names_comments_and_layout_do_not_count(assignment: str, seed: int) -> None:
    for exercise, text in answers(read(SOLUTIONS, assignment)).items():
        one, other = shape(text), shape(renamed(text, seed))
        assert one is not None and other is not None
        assert one.whole == other.whole, exercise


def test_what_a_program_does_counts() -> None:
    text = "def f(a, b):\n    return dist.send(a, b)"
    for change in (
        ("send", "recv"),
        ("dist", "torch"),
        ("return ", ""),
        ("send(a, b)", "send(a, 1)"),
    ):
        assert shape(text.replace(*change)).whole != shape(text).whole


@pytest.mark.parametrize("text", ["def f(:", "\0", "(" * 5_000, "x = " + "-" * 100_000 + "1"])
def test_what_is_no_python_has_no_shape(text: str) -> None:
    assert shape(text) is None


# --- accusations ---------------------------------------------------------------------------------


@pytest.mark.parametrize("assignment", ASSIGNMENTS)
def test_a_renamed_copy_of_the_reference_is_found(
    assignment: str, against: dict[str, Originals], seed: int
) -> None:
    texts = answers(read(SOLUTIONS, assignment))
    copied = {name: renamed(text, seed) for name, text in texts.items()}
    found = {one.exercise for one in compare({"copier": copied}, against[assignment])}
    assert found == large(texts, against[assignment])
    assert found or len(texts) <= FEW


def test_equal_copies_of_the_reference_are_one_finding(against: dict[str, Originals]) -> None:
    """Else three students with one file would stand in three rows, as if they had nothing in common."""
    texts = answers(read(SOLUTIONS, ASSIGNMENTS[0]))
    found = compare(dict.fromkeys(("ann", "cem", "dov"), texts), against[ASSIGNMENTS[0]])
    assert found and all(one.reference for one in found)
    assert {one.students for one in found} == {("ann", "cem", "dov")}
    assert str(found[0]).endswith("own solution, and they are the same but for names")


def large(texts: Answers, own: Originals) -> set[str]:
    """The exercises whose answers are long enough to be compared."""
    return {name for name, text in texts.items() if len(shape(text, own.released).prints) >= LEAST}


@pytest.mark.parametrize("assignment", ASSIGNMENTS)
def test_right_solutions_of_ones_own_are_not_accused(
    assignment: str, against: dict[str, Originals]
) -> None:
    """Every right mutant was written without looking at ours; each is a student here.

    Two of one file have one author, and may be named for each other.
    """
    submitted = {
        f"{file.stem}: {one.title}": {file.stem: one.text}
        for file in (MUTANTS / assignment).glob("*.py")
        for one in read_mutants(file)
        if one.right
    }
    assert len(submitted) >= 2 * len(list((MUTANTS / assignment).glob("*.py"))) > 0
    for one in compare(submitted, against[assignment]):
        assert not one.reference, one
        assert len({student.partition(": ")[0] for student in one.students}) == 1, one


@pytest.mark.parametrize("assignment", ASSIGNMENTS)
def test_of_wrong_solutions_only_equal_ones_are_named(
    assignment: str, against: dict[str, Originals]
) -> None:
    """All mutants have one author, and some the same text: only those with the same text may be named."""
    submitted = {
        f"{file.stem}: {one.title}": {file.stem: one.text}
        for file in (MUTANTS / assignment).glob("*.py")
        for one in read_mutants(file)
    }
    for one in compare(submitted, against[assignment]):
        assert not one.reference and one.share == 1.0, one
        wholes = {shape(submitted[student][one.exercise]).whole for student in one.students}
        assert len(wholes) == 1, one


def test_what_was_handed_out_is_nobodys_own(against: dict[str, Originals]) -> None:
    for name in ASSIGNMENTS:
        untouched = answers(read(NOTEBOOKS, name))
        assert compare({"a": untouched, "b": untouched}, against[name]) == []
        for cell in read(NOTEBOOKS, name).cells:
            if cell.cell_type == "code":
                copied = shape(cell.source, against[name].released)
                assert copied is None or not copied.prints


def test_the_sample_class_is_named_for_the_reference_that_it_is_made_from(
    tmp_path: Path, against: dict[str, Originals]
) -> None:
    make_sample_class(tmp_path, ASSIGNMENTS)
    for name in ASSIGNMENTS:
        found = compare(
            {
                folder.name: answers(nbformat.read(folder / name / f"{name}.ipynb", as_version=4))
                for folder in tmp_path.iterdir()
                if folder.name not in CHANGES  # some of these are not notebooks
                and (folder / name).exists()
            },
            against[name],
        )
        assert all(one.reference for one in found)
        named = {student for one in found for student in one.students}
        compared = large(answers(read(SOLUTIONS, name)), against[name])
        assert bool(named & {PERFECT, EXTRA}) == bool(compared)
        assert "sample-blank" not in named


NOTHING = Originals({}, frozenset())


def program(number: int, lines: int = 30) -> str:
    """A program that resembles no other."""
    chance = random.Random(number)
    calls = [
        f"    a = step_{chance.randrange(9**6)}(a, b.part_{chance.randrange(9**6)}, {chance.randrange(99)})"
        for _ in range(lines)
    ]
    return "\n".join(["def f(a, b):", *calls, "    return a"])


def test_students_who_share_a_solution_are_named_together() -> None:
    submitted = {f"s{number}": {"f": program(number)} for number in range(12)}
    submitted["s3"] = {"f": renamed(program(7), 1)}
    parts = program(9).split("\n")
    submitted["s5"] = {"f": "\n".join([*parts[:4], "    a = extra(a)", *parts[4:]])}
    found = compare(submitted, NOTHING)
    assert [(one.students, one.share == 1.0) for one in found] == [
        (("s3", "s7"), True),
        (("s5", "s9"), False),
    ]
    assert found[1].share >= SHARE


def test_a_whole_class_with_one_solution_is_one_finding() -> None:
    submitted = {f"s{number:03}": {"f": program(1)} for number in range(200)}
    (found,) = compare(submitted, NOTHING)
    assert len(found.students) == 200


def test_what_many_share_says_nothing_about_two() -> None:
    idiom = program(0, lines=40).split("\n")[1:-1]

    def one(number: int) -> str:
        own = program(number + 1, lines=6).split("\n")
        return "\n".join([own[0], *idiom, *own[1:]])

    assert compare({f"s{number}": {"f": one(number)} for number in range(60)}, NOTHING) == []


def test_findings_of_the_same_students_stand_together() -> None:
    some = [
        Likeness("a_check", ("x", "y"), 1.0),
        Likeness("b", ("z",), 0.9, True),
        Likeness("c", ("x", "y"), 0.85),
    ]
    assert list(groups(some)) == [("x", "y"), ("z",)]
    assert [str(one) for one in some] == [
        "a: the same but for names",
        "b: 90% of it is in the course's own solution",
        "c: 85% shared",
    ]


def test_a_mutant_takes_the_place_of_a_decorated_function() -> None:
    reference = "import torch\n\n\n@torch.no_grad()\n@staticmethod\ndef step(x):\n    return x\n\n\nlast = 1"
    text = instead(reference, "def step(x):\n    return 2 * x")
    assert "@" not in text and text.count("def step") == 1
    assert text.startswith("import torch") and "last = 1" in text
