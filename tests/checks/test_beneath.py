"""A failed check names a function of another exercise that may be the cause."""

from __future__ import annotations

from typing import Any

import pytest

from course_lib import checks
from course_lib.checks import beneath, check
from course_lib.checks.report import Report, ReportLine

CELLS = """
import functools

import torch.distributed as dist


def ring_shift(tensor, group=None):
    return tensor.clone()


def from_right(tensor):
    for _ in range(dist.get_world_size() - 1):
        tensor = ring_shift(tensor)
    return tensor


def neighbour_sum(tensor):
    return ring_shift(tensor) + tensor + from_right(tensor)


class Sums:
    @staticmethod
    @functools.cache
    def run(tensor):
        return [from_right(part) for part in (tensor,)]


class Strange:
    def __getattr__(self, name):
        raise RuntimeError(name)


strange = Strange()


def alone(tensor):
    return strange and tensor
"""


@pytest.fixture
def cells() -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(CELLS, names)
    return names


def report(score: float, name: str = "ring_shift", *said: str) -> Report:
    line = ReportLine("3 ranks", score == 1.0, sentences=list(said))
    return Report(f"00_first_ranks/{name}", score, [line], possible=2)


@pytest.mark.parametrize("name", ["neighbour_sum", "Sums"])
def test_a_function_of_another_exercise_that_lost_points_is_named(name: str, cells: dict) -> None:
    failed, latest = report(0.0, "neighbour_sum"), {"00_first_ranks/ring_shift": report(0.25)}
    assert list(beneath.remarks(failed, [cells[name]], latest)) == [
        f"`{name}` calls `ring_shift`, whose last check gave 0.5 of 2 points. The cause may be there."
    ]


def test_otherwise_nothing_is_said(cells: dict) -> None:
    failed, latest = report(0.0, "neighbour_sum"), {"00_first_ranks/ring_shift": report(0.25)}
    objects = [cells["neighbour_sum"]]
    assert not list(beneath.remarks(report(1.0, "neighbour_sum"), objects, latest)), "it is right"
    assert not list(beneath.remarks(failed, objects, {"00_first_ranks/ring_shift": report(1.0)}))
    assert not list(beneath.remarks(failed, objects, {})), "it was never checked"
    assert not list(beneath.remarks(failed, [cells["alone"], 3, "a text", print], latest))
    assert not list(beneath.remarks(report(0.0), [cells["ring_shift"]], latest)), "its own exercise"
    stub = "`neighbour_sum` calls `ring_shift`, which is not written yet."
    assert not list(beneath.remarks(report(0.0, "neighbour_sum", stub), objects, latest))


def test_a_function_that_says_it_wraps_itself_ends_the_search(cells: dict) -> None:
    cells["alone"].__wrapped__ = cells["alone"]
    assert beneath.names_called(cells["alone"]) == []


def test_the_check_says_so_below_its_table(
    cells: dict, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(checks, "latest", {"00_first_ranks/ring_shift": report(0.0)})
    check("00_first_ranks/neighbour_sum", cells["neighbour_sum"])
    assert "calls `ring_shift`, whose last check gave 0.0 of 2 points." in capsys.readouterr().out
    check("00_first_ranks/neighbour_sum", cells["neighbour_sum"], cases="hidden")
    assert "last check" not in capsys.readouterr().out
