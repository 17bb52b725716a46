"""The frame for functions of tensors: the arguments of a call, and the sentences about its results."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from course_lib.checks.judge import judge
from course_lib.checks.judge.case import Case, Draw, exercise
from course_lib.checks.judge.functions import About, Call, Part, function_case, values_line
from course_lib.runtime import wire

ABOUT = About(
    "store",
    "the row",
    {"row": "the row is", "scale": "the scale is", "after.cache": "the cache is"},
)
NEW = "Work on a new tensor: `x = x * a` and not `x *= a`."
HALVED = "It was halved twice."


def near(actual: Tensor, wanted: Tensor, came: object) -> Tensor:
    return (actual - wanted).abs() <= 0.1


@exercise(points=1, objects=("store", "again"))
def stores(draw: Draw) -> Iterator[Case]:
    """Two functions that write x into a row of the cache, and return it with its largest element."""
    x, cache = torch.arange(4.0), torch.zeros(2, 4)
    after = torch.stack([x, cache[1]])
    wanted = {
        "scale": Part(torch.tensor(3.0), near),
        "row": Part(lambda came: (x / came["scale"]).bfloat16(), form=Part(x.bfloat16()).spec),
        "after.cache": after,
    }
    calls = [
        Call(
            name, ABOUT, {"cache": cache, "x": x}, wanted, args=[(0, -1)], kwargs={"dtype": torch.bfloat16},
            outputs=("row", "scale"), slips=lambda name, came: {HALVED: bool((came["scale"] == 1).all())},
            object=k,
        )
        for k, name in enumerate(("store", "again"))
    ]  # fmt: skip
    yield function_case("one process", calls, [values_line(call, call.name) for call in calls])


def right(cache, x, place, *, dtype):
    assert place == (0, -1) and not x.requires_grad
    cache[place[0]] = x
    return (x / x.max()).to(dtype), x.max()


def unwritten(cache, x, place, *, dtype):
    raise NotImplementedError


def messages(monkeypatch: pytest.MonkeyPatch, *objects: Callable) -> list[str]:
    monkeypatch.setattr(judge, "find", lambda name: stores)
    report = judge.judge("stores", wire.dumps(objects), 1)
    return [str(said) for line in report["lines"] for said in line["sentences"]]


def test_a_row_that_was_stored_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    assert messages(monkeypatch, right, right) == []


def rough(cache, x, place, *, dtype):
    cache[0] = x
    return (x / 3.05).to(dtype), torch.tensor(3.05)


def test_a_result_is_judged_beside_another(monkeypatch: pytest.MonkeyPatch) -> None:
    assert messages(monkeypatch, rough, rough) == []


def unstored(cache, x, place, *, dtype):
    return (x / x.max()).to(dtype), x.max()


def halved(cache, x, place, *, dtype):
    return (x / x.max()).to(dtype), torch.tensor(1.0)


def wide(cache, x, place, *, dtype):
    return x / x.max(), x.max()


def alone(cache, x, place, *, dtype):
    return (x / x.max()).to(dtype)


def three(cache, x, place, *, dtype):
    return (x / x.max()).to(dtype), x.max(), cache


def in_place(cache, x, place, *, dtype):
    cache[0] = x
    largest = x.max()
    return x.div_(largest).to(dtype), largest


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (unstored, ["the cache is not what the row gives: element [0, 3] is 0 instead of 3."]),
        (halved, ["the scale is not what the row gives: it is 1 instead of 3.", HALVED]),
        (wide, ["the row is float32[4]; bfloat16[4] is expected."]),
        (alone, ["the scale is None; float32[] is expected.", "Is there a `return` at its end?"]),
        (three, ["the row is tuple; bfloat16[4] is expected."]),
        (in_place, ["x was changed: it belongs to the caller.", NEW]),
        (unwritten, ["store is not written yet."]),
    ],
)  # fmt: skip
def test_it_is_said_what_is_wrong(
    function: Callable, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert messages(monkeypatch, right, function) == said
