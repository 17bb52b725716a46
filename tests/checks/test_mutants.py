"""Every exercise against solutions that are wrong in the ways in which students are wrong.

`tests/mutants/<assignment>/<exercise>.py` holds them (see `autograder.sample.mutants`). A cell titled
`# %% wrong: ...` must lose points, and one of the check's messages must match its `# says:` pattern, that is,
name the mistake. A cell titled `# %% right: ...` is right and not written like ours: it must lose nothing, in
the hidden cases either. Nor may a cell titled `# %% base: ...`, which others are patches on, unless it says
what it leaves out. The check's remark on NCCL must match a right cell's `# on NCCL:` pattern; without one
the check must not speak of NCCL. (`test_imitated_devices.py` runs right cells where NCCL's order and a GPU
are imitated.) If an exercise is about something, one wrong solution misses it, and the check says that it
keeps half of the points at most.

A run judges a quarter of a file's cells, drawn by its seed, with one at least that is right and one that
misses the idea; COURSE_ALL_TESTS=1 judges all, and so does a change that touches the exercise
(`tests/drawn.py`).

Once the mistake of a wrong one is named, its remaining cases are not run: they could only cost it more. A
wrong cell of some files, drawn in each run, is judged by all cases, and its score is compared with the stored
one (`tests/checks/scores.py`); with COURSE_ALL_TESTS=1 every one is. The cells of a file are judged by the
same cases, which are drawn once.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import math
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist

import course_lib
from autograder.sample.mutants import MUTANTS, Mutant, read_mutants
from course_lib.checks import check
from course_lib.checks.judge import case, judge
from course_lib.checks.judge.case import Case, Draw, Exercise, Finding
from course_lib.checks.judge.find import find, of_assignment
from course_lib.checks.judge.remarks import TITLE
from course_lib.checks.report import Report
from tests import drawn
from tests.checks import scores

ASSIGNMENTS = sorted(folder.name for folder in MUTANTS.iterdir() if folder.is_dir())
FILES = sorted(MUTANTS.glob("*/*.py"))
SHARE = 1 / 4  # of the cells; each run draws others
WHOLE = 0.3  # of the exercises


def judged(name: str, mutant: Mutant, seed: int, *, whole: bool = False) -> tuple[Report, str]:
    """Run a cell as the notebook would and check what it defines; (report, what was printed).

    whole: all cases of a wrong one, and not only those up to the one that names its mistake.
    """
    main = ModuleType("__main__")
    vars(main).update(torch=torch, dist=dist, math=math, device=course_lib.device)
    source = f"<mutant {mutant.title}>"
    linecache.cache[source] = (len(mutant.text), None, mutant.text.splitlines(True), source)
    exec(compile(mutant.text, source, "exec"), vars(main))
    wanted = find(name).objects
    missing = [word for word in wanted if word not in vars(main)]
    assert not missing, (
        f"{name}: the check takes {', '.join(wanted)}, and the cell {mutant.title!r} of tests/mutants does "
        f"not define {', '.join(missing)}"
    )
    objects = [vars(main)[word] for word in wanted]
    printed = io.StringIO()
    end = contextlib.nullcontext() if whole or mutant.right else until_told(mutant)
    with contextlib.redirect_stdout(printed), end:
        report = check(name, *objects, seed=seed, cases="hidden" if mutant.right else "visible")
    return report, printed.getvalue()


@contextlib.contextmanager
def until_told(mutant: Mutant) -> Iterator[None]:
    """Inside, a wrong mutant's cases are no longer run once a finding matches `says`.

    The cases left count as failed for the same reason, as after two deadlocks.
    """
    run_case, told = judge.judge_case, list[Finding]()

    def judge_case(
        session: judge.Session, case: Case, *args: Any, **kwargs: Any
    ) -> list[judge.Judged]:
        if told:
            return [judge.Judged(case, line, told[0]) for line in case.lines]
        judged = run_case(session, case, *args, **kwargs)
        said = (one.finding for one in judged if not one.finding.ok)
        told.extend(
            found for found in said if any(re.search(mutant.says, str(s)) for s in found.sentences)
        )
        return judged

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judge, "judge_case", judge_case)
        yield


def drawing_once(exercise: Exercise, longer: float = 2) -> Exercise:
    """The exercise, whose cases are drawn once from each seed, and what is expected of them computed once.

    They have twice the time: beside other tests a slow solution must not become one that never ends. Those in
    which memory is measured come last: they take the longest, and most mistakes are told by then.
    """
    made: dict[tuple[int, bool], list[Case]] = {}

    def cases(draw: Draw) -> Iterator[Case]:
        key = draw.generator.initial_seed(), draw.hidden
        if key not in made:
            in_order = sorted(exercise.cases(draw), key=lambda one: bool(one.moments))
            made[key] = [replace(one, timeout=longer * one.timeout) for one in in_order]
        return iter(made[key])

    return replace(exercise, cases=cases)


@contextlib.contextmanager
def judging_only(exercise: Exercise) -> Iterator[None]:
    """Inside, the judge finds this exercise, whatever its name, and no error in a hint is forgiven."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judge, "find", lambda _: exercise)
        patch.setattr(case, "hints_may_fail", False)
        yield


@pytest.fixture(autouse=True)
def hints_are_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(case, "hints_may_fail", False)


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_the_check_tells_right_from_wrong(
    file: Path, seed: int, capfd: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{file.parent.name}/{file.stem}"
    exercise = find(name)
    drawing = drawing_once(exercise)
    monkeypatch.setattr(judge, "find", lambda _: drawing)
    failures, missed = [], False
    mutants = read_mutants(file, bases=True)
    whole = drawn.everything() or drawn.is_touched(name, exercise.cases.__module__, seed)
    if not whole:
        mutants = some_of(mutants, seed)
    print(f"{name}: judged are", *(f"  {mutant.title}" for mutant in mutants), sep="\n")
    to_compare = compared(mutants, seed, whole)
    for mutant in mutants:
        report, printed = judged(name, mutant, seed, whole=mutant.title in to_compare)
        stored = scores.stored_score(name, mutant.title)
        if mutant.title in to_compare and stored not in (None, round(report.score, scores.DIGITS)):
            failures.append(
                f"keeps {report.score:.4f}, and {stored} is stored: {mutant.title}\n{printed}\n"
                f"if that is right: python -m tests.checks.scores write {name}"
            )
        missed |= any("The exercise is about" in said for said in report.messages)
        if mutant.right and report.score < 1:
            failures.append(f"right, but lost points: {mutant.title}\n{printed}")
        remarks = [str(s) for line in report.lines if line.title == TITLE for s in line.sentences]
        if mutant.right and bool(remarks) != bool(mutant.on_nccl):
            failures.append(f"remarks on NCCL, {mutant.on_nccl!r}: {mutant.title}\n{printed}")
        if mutant.on_nccl and not any(re.search(mutant.on_nccl, said) for said in remarks):
            failures.append(f"no remark matches {mutant.on_nccl!r}: {mutant.title}\n{printed}")
        if not mutant.right and report.score == 1:
            failures.append(f"wrong, but got full points: {mutant.title}\n{printed}")
        if not mutant.right and not any(re.search(mutant.says, said) for said in report.messages):
            failures.append(f"no message matches {mutant.says!r}: {mutant.title}\n{printed}")
    if drawing.point and whole and not missed:
        failures.append(f"no wrong answer misses the point, {drawing.point!r}: there must be one")
    where = f"cells of {file.relative_to(MUTANTS.parents[1])}, with the messages of their check:"
    assert not failures, "\n\n".join([where, *failures])
    assert capfd.readouterr().err == ""


def some_of(mutants: list[Mutant], seed: int) -> list[Mutant]:
    """The cells that a run judges: SHARE of all, with a right one and one that misses the idea."""
    titles = drawn.some_of([mutant.title for mutant in mutants], SHARE, seed)
    for needed in (lambda one: one.right, lambda one: one.misses == "idea"):
        candidates = [mutant.title for mutant in mutants if needed(mutant)]
        if candidates and not titles & set(candidates):
            titles |= drawn.some_of(candidates, 1 / len(candidates), seed)
    return [mutant for mutant in mutants if mutant.title in titles]


def compared(mutants: list[Mutant], seed: int, everything: bool) -> set[str]:
    """The titles of the wrong cells that are judged whole: one in some exercises, as drawn, or all."""
    wrong = [mutant.title for mutant in mutants if not mutant.right]
    if everything:
        return set(wrong)
    draw = random.Random(f"{seed} {wrong}")
    return {draw.choice(wrong)} if wrong and draw.random() < WHOLE else set()


def test_a_cell_that_does_not_define_all_names_is_named(seed: int) -> None:
    """An exercise with one more question fails on every cell written before."""
    cell = Mutant(
        "questions", False, "an old one", "answer_1 = 1.2e-4\nanswer_3 = 'wait'", "latency"
    )
    with pytest.raises(
        AssertionError, match=r"'an old one' of tests/mutants does not define answer_2"
    ):
        judged("00_first_ranks/questions", cell, seed)


@pytest.mark.parametrize("assignment", ASSIGNMENTS)
def test_every_exercise_has_mutants(assignment: str) -> None:
    known = of_assignment(assignment)
    files = {file.stem: file for file in FILES if file.parent.name == assignment}
    lacking = sorted(set(known) - set(files))
    assert not lacking, (
        f"tests/mutants/{assignment}: a file of answers is missing for each of {lacking}"
    )
    idle = sorted(set(files) - set(known))
    assert not idle, f"{idle}: no exercise is imported in the __init__.py of {assignment}'s checks"
    for name, file in files.items():
        cells = read_mutants(file)
        assert sum(not cell.right for cell in cells) >= 6, (
            f"{name} has fewer than six wrong solutions"
        )
        assert sum(cell.right for cell in cells) >= 2, f"{name} has fewer than two right solutions"
        silent = [cell.title for cell in cells if not cell.right and not cell.says]
        assert not silent, f"{name}: the check must say something of {silent}: `# says:`"
        titles = [cell.title for cell in cells]
        assert len(set(titles)) == len(titles), f"{name} has two cells of one title"
