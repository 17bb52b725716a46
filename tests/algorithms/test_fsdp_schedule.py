"""A sharded step as a list: written for every argument, validated, simulated, drawn and explored.

The seconds are held against closed forms, against the figures of the notebook, and against a second clock,
in which every action looks for all that it waits for in the list.
"""

from __future__ import annotations

import itertools
import random

import pytest

from course_lib.fsdp import (
    ScheduleError,
    Times,
    fsdp_schedule,
    simulate,
    validate,
    violation,
)
from course_lib.pictures.fsdp_chart import crossing, lanes, measured_lanes
from course_lib.pictures.fsdp_explorer import LINKS, MODELS, Settings, bound, fsdp_explorer, preset


def test_a_step_of_two_units_by_hand() -> None:
    """Nothing is gathered ahead, so the rank waits for five messages of 10 s. It computes for 6 s."""
    schedule = fsdp_schedule(2, forward_prefetch=0, backward_prefetch=0)
    assert schedule == [
        ("gather", 0), ("forward", 0), ("free", 0),
        ("gather", 1), ("forward", 1),
        ("backward", 1), ("free", 1), ("reduce", 1),
        ("gather", 0), ("backward", 0), ("free", 0), ("reduce", 0),
    ]  # fmt: skip
    assert simulate(schedule, Times(forward=1, backward=2, gather=10, reduce=10)).total == 56


SIZES = range(1, 9)
AHEAD = (0, 1, 2, 3, 8)
ARGUMENTS = list(itertools.product(AHEAD, AHEAD, (True, False), (True, False)))
SLOW = Times(10, 20, 10.5, 10.5)  # of the slow motion of the specification: 8 units, two ranks


def drawn(source: random.Random) -> Times:
    return Times(*(source.randrange(1, 60) for _ in range(4)), wires=source.choice((1, 2)))


def reduce_first(schedule, units=8):
    """The same actions; in backward the gather of unit i - 1 comes after the reduce of unit i."""
    actions = list(schedule)
    for unit in reversed(range(units - 1)):
        last = max(place for place, action in enumerate(actions) if action == ("gather", unit))
        actions.pop(last)
        actions.insert(actions.index(("reduce", unit + 1)) + 1, ("gather", unit))
    return actions


# ---- the generator


@pytest.mark.parametrize("units", SIZES)
def test_every_list_is_a_step_with_few_units_whole(units):
    for forward, backward, reshard, keep_last in ARGUMENTS:
        schedule = fsdp_schedule(units, forward, backward, reshard, keep_last)
        most = 1 + max(forward, backward) if reshard else units
        validate(schedule, units, most_whole=most)
        gathers = sum(kind == "gather" for kind, _ in schedule)
        assert gathers == (2 * units - keep_last if reshard else units)
        peak = simulate(schedule, SLOW).most_whole
        assert peak == (min(units, most) if reshard else units)
        assert sum(kind == "free" for kind, _ in schedule) == gathers


@pytest.mark.parametrize("units", SIZES)
def test_a_gather_comes_before_the_computation_that_hides_it(units):
    for ahead in (1, 2, 3):
        schedule = fsdp_schedule(units, ahead, ahead)
        places = {}
        for place, action in enumerate(schedule):
            places.setdefault(action, []).append(place)
        for unit in range(units):
            first, *again = places["gather", unit]
            assert first < places["forward", max(0, unit - ahead)][0]
            if again:
                above = min(units - 1, unit + ahead)
                assert again[0] < places["backward", above][0] < places["reduce", above][0]


def test_the_order_of_fully_shard():
    """Its gathers and reductions of six blocks: the last block twice, and reduce i behind gather i - 1."""
    wire = [a for a in fsdp_schedule(6, 0, 1, keep_last=False) if a[0] in ("gather", "reduce")]
    assert wire[5:10] == [
        ("gather", 5),
        ("gather", 5),
        ("gather", 4),
        ("reduce", 5),
        ("gather", 3),
    ]


# ---- the clock


def clock(schedule, times: Times) -> dict[tuple, float]:
    """The end of each action, by its place; every action begins at the latest end of those it waits for."""
    ends: dict[int, float] = {}
    for place, (kind, unit) in enumerate(schedule):
        if kind == "free":
            continue
        earlier = [(p, *schedule[p]) for p in ends]
        computations = [p for p, k, _ in earlier if k in ("forward", "backward")]
        shared = ("gather", "reduce") if times.wires == 1 else (kind,)
        waits = list(computations)
        if kind in ("forward", "backward"):
            waits += [max(p for p, k, u in earlier if (k, u) == ("gather", unit))]
        else:
            waits += [p for p, k, _ in earlier if k in shared]
        ends[place] = max((ends[p] for p in waits), default=0) + getattr(times, kind)
    return {(place, *schedule[place]): end for place, end in ends.items()}


def test_two_clocks_agree(seed):
    source = random.Random(seed)
    for _ in range(150):
        units, arguments = source.choice(SIZES), source.choice(ARGUMENTS)
        schedule, times = fsdp_schedule(units, *arguments), drawn(source)
        simulation = simulate(schedule, times)
        assert [event.end for event in simulation.events] == list(clock(schedule, times).values())
        assert simulation.total == max(event.end for event in simulation.events)
        compute = units * (times.forward + times.backward)
        assert simulation.exposed == pytest.approx(1 - compute / simulation.total)


def test_an_event_names_its_lane():
    for wires in (1, 2):
        simulation = simulate(fsdp_schedule(3), Times(1, 1, 1, 1, wires=wires))
        lane = {event.kind: event.lane for event in simulation.events}
        assert lane == {
            "forward": "compute",
            "backward": "compute",
            "gather": "wire",
            "reduce": "wire" if wires == 1 else "wire 2",
        }


@pytest.mark.parametrize("units", SIZES)
@pytest.mark.parametrize("keep_last", [True, False])
def test_nothing_ahead_is_all_exposed(units, keep_last, seed):
    source = random.Random(seed)
    for _ in range(20):
        times = Times(*(source.randrange(1, 60) for _ in range(4)))
        schedule = fsdp_schedule(units, 0, 0, keep_last=keep_last)
        wire = (2 * units - keep_last) * times.gather + units * times.reduce
        wanted = units * (times.forward + times.backward) + wire
        assert simulate(schedule, times).total == wanted


@pytest.mark.parametrize("units", range(2, 9))
@pytest.mark.parametrize("keep_last", [True, False])
def test_a_short_message_is_hidden_whole(units, keep_last, seed):
    """The first gather and the last reduce have nothing to hide behind, nor has a gather at the turn."""
    source = random.Random(seed)
    for _ in range(20):
        gather, reduce = source.randrange(1, 20), source.randrange(1, 20)
        times = Times(
            gather + source.randrange(20), gather + reduce + source.randrange(20), gather, reduce
        )
        total = simulate(fsdp_schedule(units, keep_last=keep_last), times).total
        compute = units * (times.forward + times.backward)
        assert total == compute + (2 - keep_last) * gather + reduce


@pytest.mark.parametrize("units", range(2, 9))
@pytest.mark.parametrize("keep_last", [True, False])
def test_a_busy_wire_bounds_the_step(units, keep_last):
    """The sum of its messages, and the computation at the turn that no message covers."""
    times = Times(10, 20, 40, 40)
    total = simulate(fsdp_schedule(units, keep_last=keep_last), times).total
    assert total == 40 * (3 * units - keep_last) + times.forward


@pytest.mark.parametrize(
    ("arguments", "times", "total", "whole"),
    [
        ((0, 0, True, False), SLOW, 492, 1),
        ((0, 0, True, True), SLOW, 481.5, 1),
        ((1, 1, True, False), SLOW, 281, 2),
        ((1, 1, True, True), SLOW, 270.5, 2),
        ((2, 2, True, True), SLOW, 264.5, 3),
        ((1, 1, False, True), SLOW, 264.5, 8),
        ((8, 8, True, True), SLOW, 264.5, 8),
        ((1, 1, True, True), Times(10, 20, 5, 5), 250, 2),
        ((1, 1, True, False), Times(10, 20, 5, 5), 255, 2),
        ((1, 1, True, True), Times(10, 20, 40, 40), 930, 2),
        ((1, 1, True, False), Times(10, 20, 40, 40), 970, 2),
    ],
)
def test_eight_units_take_so_long(arguments, times, total, whole):
    simulation = simulate(fsdp_schedule(8, *arguments), times)
    assert (simulation.total, simulation.most_whole) == (total, whole)


def test_a_reduce_before_the_next_gather_costs_most_of_the_gain():
    late = reduce_first(fsdp_schedule(8))
    validate(late, 8, most_whole=2)
    assert simulate(late, SLOW).total == 411.5
    assert sorted(late) == sorted(fsdp_schedule(8)), "the same actions"
    two_wires = Times(10, 20, 10.5, 10.5, wires=2)
    assert simulate(late, two_wires).total > simulate(fsdp_schedule(8), two_wires).total


def test_more_prefetch_is_never_slower(seed):
    source = random.Random(seed)
    for _ in range(100):
        units, times = source.choice(SIZES), drawn(source)
        totals = [simulate(fsdp_schedule(units, p, p), times).total for p in range(5)]
        assert totals == sorted(totals, reverse=True)


# ---- wrong lists


def without(schedule, *actions):
    return [action for action in schedule if action not in actions]


GOOD = fsdp_schedule(4)


@pytest.mark.parametrize(
    ("schedule", "says"),
    [
        ([("fetch", 0), *GOOD], "there is no action 'fetch'"),
        ([*GOOD, ("reduce", 4)], "there is no unit 4, only 0 to 3"),
        ([("gather", 0), *GOOD], "unit 0 is gathered while it is whole"),
        ([*GOOD, ("free", 2)], "unit 2 is freed while it is not whole"),
        ([*GOOD, ("reduce", 0)], "unit 0 is reduced twice"),
        ([("reduce", 0), *GOOD], "reduced before its backward"),
        ([("gather", 0), ("forward", 0), ("forward", 0)], "unit 0 does its forward twice"),
        ([("gather", 1), ("forward", 1)], "the forward of unit 1 comes before that of unit 0"),
        ([("gather", 3), ("backward", 3)], "backward begins before unit 0 has done its forward"),
        ([("forward", 0)], "unit 0 computes its forward without weights"),
        (without(GOOD, ("reduce", 0)), "unit 0 is never reduced"),
        (without(GOOD, ("backward", 0), ("reduce", 0)), "unit 0 never does its backward"),
        ([], "unit 0 never does its forward"),
        (
            GOOD[:-2] + GOOD[-1:],
            "unit 0 is still whole at the end: nothing freed it after its last gather",
        ),
    ],
)
def test_the_first_mistake_is_a_sentence(schedule, says):
    assert says in (violation(schedule, 4) or "")
    with pytest.raises(ScheduleError, match=says):
        validate(schedule, 4)


def test_every_action_is_needed(seed):
    """A step without one of its actions is none, and the sentence speaks of its unit or the next."""
    for arguments in random.Random(seed).sample(ARGUMENTS, 12):
        schedule = fsdp_schedule(5, *arguments)
        for place in range(len(schedule)):
            assert violation(schedule[:place] + schedule[place + 1 :], 5), schedule[place]


def test_too_many_whole_units():
    everything = fsdp_schedule(8, 8, 8)
    assert violation(everything, 8) is None
    assert violation(everything, 8, most_whole=2) == "3 units are whole at once, and 2 are allowed"


def test_a_wrong_list_has_no_times():
    with pytest.raises(ScheduleError, match="unit 0 is never reduced"):
        simulate(without(GOOD, ("reduce", 0)), SLOW)
    with pytest.raises(ValueError, match="wires is 1 or 2, not 3"):
        Times(1, 1, 1, 1, wires=3)
    with pytest.raises(ValueError, match="gather=-1"):
        Times(1, 1, -1, 1)


# ---- pictures


def test_pictures_of_all_kinds_of_steps(seed):
    source = random.Random(seed)
    for units in (1, 2, 8, 16):
        picture = lanes(fsdp_schedule(units), drawn(source))
        assert len(picture.axes) >= 2, "lanes above, whole units below"


def test_a_picture_of_steps_that_ran_has_a_bar_for_each_event():
    events = [("gather", 0, 0.0, 20.0), ("forward", 0, 20.0, 40.0), ("reduce", 0, 40.0, 61.0)]
    picture = measured_lanes({"one": (61.0, events), "two": (40.0, events[:2])})
    assert [ax.get_title(loc="left") for ax in picture.axes] == ["one", "two"]
    assert [len(ax.patches) for ax in picture.axes] == [3, 2]


def test_the_dotted_lines_are_drawn_where_forward_and_gather_cross():
    speed, links = 4e14, {"fast": (8, 450e9), "slow": (64, 50e9)}
    least = {name: (n - 1) / n * speed / each_way for name, (n, each_way) in links.items()}
    (ax,) = crossing(4e8, speed, links, least).axes
    lines = {str(line.get_label()): line for line in ax.lines}
    slope = lines["forward"].get_ydata()[0] / lines["forward"].get_xdata()[0]
    dotted = [line.get_xdata()[0] for line in ax.lines if line.get_linestyle() == ":"]
    for name, tokens in zip(links, dotted, strict=True):
        assert lines[f"gather, {name}"].get_ydata()[0] == pytest.approx(slope * tokens), name


def test_the_explorer_takes_a_generator_and_says_what_bounds_the_step():
    explorer = fsdp_explorer(fsdp_schedule)
    for model, tokens, where in itertools.product(MODELS, (256, 16384), LINKS):
        simulation = explorer.simulation(Settings(), preset(model, tokens, where))
        assert simulation.most_whole == 2
        sentence = bound(simulation)
        assert sentence.startswith("The wire" if tokens == 256 else "The arithmetic"), where
    explorer.chart(Settings(units=3, reshard=False), SLOW)
    with pytest.raises(ScheduleError, match="unit 0 never does its forward"):
        fsdp_explorer(lambda *_: []).simulation(Settings(), SLOW)
    assert fsdp_explorer().widget().children
