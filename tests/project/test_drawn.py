"""A share of many alike tests runs, all of what a change touches, and the run says so."""

from __future__ import annotations

import pytest

from tests import drawn

CLIP = "course_lib.checks.notebooks.fsdp.clip"


@pytest.fixture(autouse=True)
def not_all(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (drawn.ALL, drawn.NAMED):
        monkeypatch.delenv(name, raising=False)


def test_a_share_runs_and_every_test_runs_in_some_of_many_runs() -> None:
    names = [f"test[{number}]" for number in range(40)]
    runs = [{name for name in names if drawn.is_drawn(name, 0.4, seed)} for seed in range(40)]
    assert set.union(*runs) == set(names)
    assert 0.3 < sum(map(len, runs)) / (40 * 40) < 0.5
    assert runs[7] == {name for name in names if drawn.is_drawn(name, 0.4, 7)}


@pytest.mark.parametrize(("count", "share", "chosen"), [(9, 1 / 3, 3), (10, 1 / 3, 4), (1, 0.1, 1)])
def test_some_of_is_a_share_rounded_up(count: int, share: float, chosen: int) -> None:
    names = [str(number) for number in range(count)]
    assert len(drawn.some_of(names, share, seed=1)) == chosen
    assert drawn.some_of(names, share, seed=1) == drawn.some_of(names, share, seed=1)


def test_all_run_if_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(drawn.ALL, "1")
    assert all(drawn.is_drawn(str(number), 0.01, 3) for number in range(50))
    assert "nothing is drawn" in drawn.header()


@pytest.mark.parametrize(
    ("changed", "touched"),
    [
        ("tests/mutants/05_fsdp/clip_grad_norm.py", True),
        ("course_lib/checks/notebooks/fsdp/clip.py", True),
        ("tests/mutants/05_fsdp/fsdp_schedule.py", False),
        ("course_lib/checks/notebooks/zero/stages.py", False),
        ("README.md", False),
    ],
)
def test_an_exercise_is_touched_by_its_answers_and_by_what_judges_it(
    changed: str, touched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawn, "changed_files", lambda: frozenset({changed}))
    assert drawn.is_touched("05_fsdp/clip_grad_norm", CLIP, seed=1) is touched
    assert (changed in drawn.header()) is changed.startswith(("tests/mutants", "course_lib"))


def test_of_many_touched_exercises_some_run_with_all_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    many = [f"05_fsdp/exercise_{number}" for number in range(5 * drawn.MOST)]
    monkeypatch.delenv(drawn.NAMED, raising=False)
    monkeypatch.delenv(drawn.ALL, raising=False)
    monkeypatch.setattr(
        drawn, "changed_files", lambda: frozenset(f"tests/mutants/{name}.py" for name in many)
    )
    touched = sum(drawn.is_touched(name, CLIP, seed=1) for name in many)
    assert drawn.MOST / 2 < touched < 2 * drawn.MOST
    assert "and some of the exercises that" in drawn.header()


def test_what_git_does_not_know_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(drawn.SINCE, "HEAD")
    before = drawn.changed_files.__wrapped__()
    new = drawn.ROOT / "tests" / "not_in_git.txt"
    new.write_text("one line\n", encoding="utf-8")
    try:
        assert drawn.changed_files.__wrapped__() - before == {"tests/not_in_git.txt"}
    finally:
        new.unlink()


@pytest.mark.parametrize(
    ("changed", "share"),
    [
        ("tests/algorithms/test_tensor_parallel.py", 1.0),
        ("course_lib/tensor_parallel/linear.py", 1.0),
        ("course_lib/runtime/launch.py", 1.0),  # imported by what it imports
        ("course_lib/pipeline/plan.py", 0.4),
        ("README.md", 0.4),
    ],
)
def test_a_file_of_tests_is_touched_by_what_it_imports(
    changed: str, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (drawn.ROOT / changed).is_file()
    monkeypatch.setattr(drawn, "changed_files", lambda: frozenset({changed}))
    share_of = drawn.share_of.__wrapped__
    assert share_of(drawn.ROOT / "tests/algorithms/test_tensor_parallel.py") == share
    assert share_of(drawn.ROOT / "tests/runtime/test_launch.py") == 1.0


@pytest.mark.parametrize(
    ("changed", "touched"),
    [
        ("solutions/04_zero/04_zero.py", True),
        ("course_lib/checks/notebooks/zero/stages.py", True),
        ("course_lib/zero/stage1.py", True),
        ("solutions/05_fsdp/05_fsdp.py", False),
        ("course_lib/checks/notebooks/pipeline/stash.py", False),
    ],
)
def test_a_notebook_is_touched_by_its_source_its_imports_and_its_checks(
    changed: str, touched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (drawn.ROOT / changed).is_file()
    monkeypatch.setattr(drawn, "changed_files", lambda: frozenset({changed}))
    assert drawn.notebook_is_touched("04_zero") is touched
