"""Schedules placed by hand: refusals with their reasons, numbers beside the generators', the widget."""

from __future__ import annotations

from typing import Any

import pytest

from course_lib.pictures.schedule_workbench import GENERATORS, Workbench
from course_lib.pipeline import (
    ScheduleError,
    gpipe,
    one_f_one_b,
    peak_activations,
    simulate,
    violation,
    zero_bubble_h1,
)
from course_lib.pipeline.actions import Action, Schedule

BY_NAME = {"gpipe": gpipe, "one_f_one_b": one_f_one_b, "zero_bubble_h1": zero_bubble_h1}


def test_the_chart_has_a_cell_for_every_placed_action() -> None:
    figure = Workbench(3, 2).place("0F0 1F0 2F0 2B0").chart()
    cells = sum(len(collection.get_paths()) for collection in figure.axes[0].collections)
    assert cells == 4


def in_time(schedule: Schedule) -> str:
    """All actions in the order in which they begin, as a person would place them."""
    return " ".join(str(event.action) for event in simulate(schedule).events)


@pytest.mark.parametrize("name", BY_NAME)
@pytest.mark.parametrize(("stages", "microbatches"), [(1, 1), (2, 3), (4, 6)])
def test_a_generators_schedule_can_be_placed_and_has_its_numbers(
    name: str, stages: int, microbatches: int
) -> None:
    schedule = BY_NAME[name](stages, microbatches)
    bench = Workbench(stages, microbatches).place(in_time(schedule))
    assert bench.rows == [list(row) for row in schedule]
    assert bench.missing == 0 and violation(bench.rows, stages, microbatches) is None
    lines = bench.table().split("\n")
    own, others = lines[1], lines[2:-1]
    assert own.replace("yours", name).split() in [line.split() for line in others]
    times = simulate(schedule)
    most = max(peak_activations(schedule))
    assert own.split() == ["yours", f"{times.total:g}", f"{times.of_total:.1%}", f"{most:g}"]
    assert [line.split()[0] for line in others] == list(GENERATORS) == list(BY_NAME)
    assert lines[-1] == "complete, 0 refused"


@pytest.mark.parametrize(
    ("placed", "then", "reason"),
    [
        ("", "1F0", "1F0 needs 0F0, which rank 0 has not done yet"),
        ("0F0 1F0", "0B0", "0B0 needs 1B0, which rank 1 has not done yet"),
        ("0F0", "1B0", "1B0 needs 1F0, which rank 1 has not done yet"),
        ("0F0 1F0 1B0 0B0", "0W0", "0W0 needs 0I0, which rank 0 has not done yet"),
        ("0F0", "0F0", "rank 0 did 0F0 before, as its action 0"),
        ("0F0 1F0 1I0", "1B0", "1I0 was done before. A backward is either whole"),
        ("0F0 1F0 1B0", "1I0", "1B0 was done before. A backward is either whole"),
        ("0F0 1F0 1I0 1W0", "1W0", "rank 1 did 1W0 before"),
        ("0F0 0F1", "0F2", "there is no microbatch 2, only 0 to 1"),
        ("", "2F0", "there is no stage 2, only 0 to 1"),
    ],
)
def test_an_illegal_action_is_refused_with_its_reason(placed: str, then: str, reason: str) -> None:
    bench = Workbench(2, 2).place(placed)
    before = [list(row) for row in bench.rows]
    with pytest.raises(ScheduleError, match=reason):
        bench.place(then)
    assert bench.rows == before and bench.refused == 1
    assert bench.table().endswith("1 refused")


def test_half_a_backward_is_enough_for_the_stage_before() -> None:
    bench = Workbench(2, 1).place("0F0 1F0 1I0 0B0 1W0")
    assert bench.missing == 0 and violation(bench.rows, 2, 1) is None


def test_every_action_that_is_accepted_can_be_completed(seed: int) -> None:
    """Whatever is placed, something can follow until the schedule is complete."""
    import random

    draw, bench = random.Random(seed), Workbench(3, 3)
    while bench.missing:
        every = [Action(s, kind, k) for s in range(3) for kind in "FBIW" for k in range(3)]
        legal = [action for action in every if not bench.reason(action)]
        assert legal, bench.rows
        bench.place(str(draw.choice(legal)))
    assert violation(bench.rows, 3, 3) is None


def test_actions_before_the_refused_one_stay_and_can_be_taken_back() -> None:
    bench = Workbench(2, 2)
    with pytest.raises(ScheduleError):
        bench.place("0F0 1F0 0B1")
    assert bench.rows == [[Action(0, "F", 0)], [Action(1, "F", 0)]]
    assert bench.undo().undo().undo().rows == [[], []]
    with pytest.raises(ValueError, match="is not an action"):
        bench.place("0F0 forward")
    with pytest.raises(ValueError, match="is a pair"):
        bench.place("(0F1;0B0)OVERLAP_F_B")
    with pytest.raises(ValueError, match="at least one stage"):
        Workbench(0, 2)


def test_other_generators_and_sizes_that_they_do_not_have() -> None:
    def even(stages: int, microbatches: int) -> Schedule:
        if microbatches % 2:
            raise ValueError("the number of microbatches has to be even")
        return gpipe(stages, microbatches)

    assert "even" in Workbench(2, 2, {"even": even}).table()
    assert Workbench(2, 3, {"even": even}).table().split("\n")[1].split() == ["even", "—", "—", "—"]


def controls(view: Any) -> tuple[list[dict[str, Any]], dict[str, Any], Any, Any, Any]:
    """(the buttons of each rank by kind, those below, the table, the sentence, the image)."""
    above, sentence, image = view.children
    column, table = above.children
    *ranks, ends = [
        {part.description: part for part in row.children if part.description}
        for row in column.children
    ]
    return ranks, ends, table, sentence, image


def test_buttons_place_the_next_microbatch_and_say_why_not() -> None:
    bench = Workbench(2, 2)
    ranks, ends, table, sentence, image = controls(bench.widget())
    assert len(ranks) == 2 and all(list(row) == ["F", "B", "I", "W"] for row in ranks)
    assert all(button.disabled for button in ends.values())
    empty = image.value
    for rank, kind in ((0, "F"), (0, "F"), (1, "F"), (1, "I"), (0, "B"), (1, "W")):
        before = image.value, table.value
        ranks[rank][kind].click()
        assert image.value != before[0] and table.value != before[1] and not sentence.value
    assert [" ".join(map(str, row)) for row in bench.rows] == ["0F0 0F1 0B0", "1F0 1I0 1W0"]
    before = image.value
    ranks[0]["B"].click()
    assert sentence.value == "0B1 needs 1B1, which rank 1 has not done yet."
    assert image.value == before and "1 refused" in table.value
    ends["undo"].click()
    assert bench.rows[1] == [Action(1, "F", 0), Action(1, "I", 0)] and not sentence.value
    ends["start again"].click()
    assert bench.rows == [[], []] and image.value == empty and "0 refused" in table.value
    assert all(button.disabled for button in ends.values())


def test_without_a_kernel_it_shows_what_is_placed() -> None:
    shown = Workbench(2, 2).place("0F0 1F0 1B0")._repr_mimebundle_()
    assert set(shown) == {"text/plain", "image/png"}
    assert "yours" in shown["text/plain"] and "5 actions are missing" in shown["text/plain"]
    assert set(Workbench(2, 2)._repr_mimebundle_()) == {"text/plain", "image/png"}
