"""Cells name the function that they need and that is not written yet."""

from __future__ import annotations

import functools
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from course_lib import launch, unfinished
from course_lib.runtime.errors import NotWritten
from course_lib.unfinished import NOT_YET, ready, said, text_of, tried, try_it

CELLS = '''
import functools


def stub(x):
    """Not written."""
    raise NotImplementedError


def called_stub(x):
    raise NotImplementedError()


def half(x):
    if x > 1:
        return x
    raise NotImplementedError


def left_behind(x):
    return x
    raise NotImplementedError


def refuses(x):
    if x < 0:
        raise NotImplementedError("only for positive numbers")
    return x


def calls(x):
    return 1 + stub(x)


def calls_that(x):
    return [calls(y) for y in range(x)]


class Meter:
    def __enter__(self):
        raise NotImplementedError


def uses_meter():
    with Meter() as meter:
        return meter


class Gauge:
    def __init__(self):
        self.x = 1

    def read(self):
        raise NotImplementedError()

    @property
    def unit(self):
        raise NotImplementedError()


def uses_gauge():
    return Gauge()


class Whole:
    @property
    def number(self):
        return stub(1)


@functools.cache
def cached(x):
    return calls(x)


def itself(x):
    return itself(x - 1) if x else 0
'''


@pytest.fixture(scope="module")
def cells() -> dict[str, Any]:
    main = ModuleType("notebook")
    exec(CELLS, vars(main))
    return vars(main)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("stub", "`stub` is not written yet."),
        ("called_stub", "`called_stub` is not written yet."),
        ("half", "`half` still raises NotImplementedError."),
        ("left_behind", ""),
        ("refuses", ""),
        ("itself", ""),
        ("calls", "`calls` calls `stub`, which is not written yet."),
        ("calls_that", "`calls_that` calls `stub`, which is not written yet."),
        ("Meter", "`Meter` is not written yet."),
        ("uses_meter", "`uses_meter` calls `Meter`, which is not written yet."),
        ("Gauge", "`Gauge` still lacks `read` and `unit`."),
        ("uses_gauge", "`uses_gauge` calls `Gauge`, which still lacks `read` and `unit`."),
        ("Whole", "`Whole` calls `stub`, which is not written yet."),
        ("cached", "`cached` calls `stub`, which is not written yet."),
    ],
)
def test_a_function_is_ready_or_a_sentence_names_the_stub(
    name: str, sentence: str, cells: dict[str, Any], capsys: pytest.CaptureFixture
) -> None:
    assert ready(cells[name]) == (not sentence)
    assert capsys.readouterr().out == (f"{sentence}\n" if sentence else "")


def test_every_missing_function_is_named_once(
    cells: dict[str, Any], capsys: pytest.CaptureFixture
) -> None:
    assert not ready(
        cells["calls"], cells["stub"], cells["calls"], print, functools.partial(max, 1)
    )
    assert capsys.readouterr().out == (
        "`calls` calls `stub`, which is not written yet.\n`stub` is not written yet.\n"
    )


def test_a_cell_that_raises_is_told_in_a_line(
    cells: dict[str, Any], capsys: pytest.CaptureFixture
) -> None:
    assert tried(lambda: 3, cells["itself"]) == 3
    assert tried(lambda: 1 / 0, cells["stub"]) is None
    assert tried(lambda: None + 1, cells["itself"]) is None  # type: ignore[operator]
    first, second = capsys.readouterr().out.splitlines()
    assert first == "`stub` is not written yet."
    assert second.startswith("This cell ended in TypeError: unsupported")
    assert second.endswith("What does the check of `itself` say?")
    with pytest.raises(KeyboardInterrupt):
        tried(interrupted, cells["itself"])


def interrupted() -> None:
    raise KeyboardInterrupt


def test_the_number_of_a_stub_prints_as_a_question_mark(cells: dict[str, Any]) -> None:
    number = said(cells["calls"], 3)
    assert number is NOT_YET and not number
    assert f"{2 * number / 1e9 - 1:.1f} GB, {number:>6,}|{number:<4}|{number:8,.0f}|{number}" == (
        "? GB,      ?|?   |       ?|?"
    )
    assert said(cells["half"], 3) == 3
    with pytest.raises(TypeError):
        said(cells["refuses"], None)


def test_a_prediction_that_is_not_a_number_is_told() -> None:
    assert [text_of(1234.4), text_of(NOT_YET), text_of(0.25, ".2f")] == ["1,234", "?", "0.25"]
    assert text_of(None) == "None (not a number)"


# --- jobs on ranks, and sentences once a cell --------------------------------------------------


def unwritten() -> None:
    raise NotImplementedError()


def needs_it() -> None:
    unwritten()


class Wrapper:
    def __init__(self, ready: bool = False) -> None:
        if not ready:
            raise NotImplementedError()

    def step(self) -> None:
        raise NotImplementedError()


def needs_a_method() -> None:
    Wrapper(ready=True).step()


def fails() -> None:
    raise ValueError("seven")


def of_torch() -> None:
    torch.optim.Optimizer.step(None)  # type: ignore[arg-type]  # bare, too, but no stub of the student's


def test_try_it_names_the_stub_that_the_ranks_met(capsys):
    assert try_it(needs_it, world_size=2) is None
    assert capsys.readouterr().out == "`unwritten` is not written yet.\n"
    assert try_it(Wrapper, world_size=2) is None
    assert try_it(needs_a_method, world_size=2) is None
    said = capsys.readouterr().out
    assert said == "`Wrapper` is not written yet.\n`Wrapper.step` is not written yet.\n"
    assert try_it(fails, world_size=2) is None
    assert "ValueError: seven" in capsys.readouterr().out
    assert try_it(of_torch, world_size=1) is None
    assert "is not written yet" not in capsys.readouterr().out
    assert list(try_it(lambda: 3, world_size=2) or ()) == [3, 3]


def test_launch_raises_a_sentence_for_a_stub_and_so_does_its_traceback():
    with pytest.raises(NotWritten) as raised:
        launch(needs_it, world_size=2)
    assert str(raised.value) == "`unwritten` is not written yet."
    assert raised.value._render_traceback_() == [str(raised.value)]


def test_a_sentence_is_printed_once_a_cell(capsys, monkeypatch):
    shell = SimpleNamespace(execution_count=7)
    monkeypatch.setattr(unfinished, "get_ipython", lambda: shell)
    for _ in range(3):
        unfinished.say_once("x")
    unfinished.say_once("y")
    shell.execution_count = 8
    unfinished.say_once("x")
    assert capsys.readouterr().out == "x\ny\nx\n"
