"""The run of the operations room, its levers, and the picture that shows them."""

from __future__ import annotations

from dataclasses import asdict, replace
from statistics import median

import pytest

from course_lib.operation import LEVERS, diagnose, draw_profiles, pull, record, settled
from course_lib.operation.recording import RANKS, STEPS, Recording
from course_lib.pictures.operations_room import QUANTITIES, SEED, Setting, operations_room

BY_CHANCE = 300  # its first draw gives the popular experts to rank 7 in too many steps
# The first lever of notebook 12 for each kind of incident, and the fields of a profile that each lever sets.
CURES = {
    "straggler": "take host out",
    "unequal work": "balance",
    "data": "prefetch",
    "checkpoint": "save behind",
    "latency": "larger messages",
}
SETS = {
    "take host out": "computing",
    "balance": "computing",
    "prefetch": "data",
    "save behind": "checkpoint",
    "more microbatches": "bubble",
    "larger messages": "messages",
    "faster network": "beta",
}
FOLLOW = {"waiting", "moving", "hidden"}  # from the others


def test_a_seed_is_a_run(recording: Recording) -> None:
    assert record(SEED) == record(SEED) != record(SEED + 1)
    assert len(recording.profiles) == len(recording.loss) == STEPS


@pytest.fixture(params=[SEED, 1, 2])
def recording(request: pytest.FixtureRequest) -> Recording:
    return record(request.param)


def test_the_shares_of_every_rank_add_up_to_the_step(recording: Recording) -> None:
    for run in recording.profiles:
        kinds = (run.computing, run.waiting, run.moving, run.data, run.checkpoint)
        for parts in zip(*kinds, strict=True):
            assert run.bubble + sum(parts) == pytest.approx(run.step(), abs=1e-12)
            assert min(parts) >= 0
        assert all(map(float.__le__, run.hidden, run.computing))
        assert min(run.waiting) == 0


def test_each_incident_is_diagnosed_at_its_steps_and_the_others_are_healthy(seed: int) -> None:
    for number in (SEED, BY_CHANCE, *range(seed, seed + 20)):
        recording = record(number)
        assert sorted(kind for kind, _ in recording.incidents) == sorted(CURES)
        for step, run in enumerate(recording.profiles):
            here = [finding for finding, steps in recording.incidents.items() if step in steps]
            assert diagnose(run) == here


def test_the_lever_of_a_cause_cures_it_and_no_other_lever_does(recording: Recording) -> None:
    quiet = median(run.step() for run in recording.profiles)
    for (kind, rank), steps in recording.incidents.items():
        for step in steps:
            run = recording.profiles[step]
            for lever in LEVERS:
                after = pull(run, lever)
                if lever == CURES[kind]:
                    assert diagnose(after) == []
                    assert after.step() == pytest.approx(quiet, rel=0.02)
                else:
                    assert diagnose(after) == [(kind, rank)]
                    assert 0.98 * run.step() < after.step() <= run.step() * (1 + 1e-9)


@pytest.mark.parametrize("lever", LEVERS)
def test_a_lever_changes_what_it_says_and_only_that(lever: str, recording: Recording) -> None:
    changed = set()
    for run in recording.profiles:
        before, after = asdict(run), asdict(pull(run, lever))
        changed |= {name for name in before if before[name] != after[name]}
        assert pull(run, lever).step() <= run.step() * (1 + 1e-9)
    assert SETS[lever] in changed
    assert changed <= {SETS[lever]} | FOLLOW


def test_levers_by_hand() -> None:
    healthy = next(run for run, findings in draw_profiles(3) if not findings)
    ones = [1.0] * 4
    run = settled(
        replace(
            healthy, computing=[1.0, 1.0, 1.0, 1.5], data=[0.0, 0.0, 1.25, 0.0], checkpoint=[0.6] * 4,
            messages=[1000] * 4, bytes=[100] * 4, alpha=1e-4, beta=1e-3, bubble=0.2, hidden=ones,
            peak_memory=ones, late=(3, 0.5),
        )
    )  # fmt: skip
    assert run.waiting == [1.25, 1.25, 0.0, 0.75]
    assert run.step() == pytest.approx(0.2 + 2.25 + 0.1 + 0.1 + 0.6)
    steps = {lever: pull(run, lever).step() - run.step() for lever in LEVERS}
    assert steps == pytest.approx({
        "take host out": 0.0, "balance": 0.0,  # rank 2 is the last one, since it waits for its input
        "prefetch": -0.75,  # 0.25 s of the input are left, which is hidden by nothing: rank 3 is then last
        "save behind": -0.58,
        "more microbatches": -0.1,
        "larger messages": -0.1 + 63e-4,
        "faster network": -0.05,
    })  # fmt: skip
    assert pull(run, "prefetch").data == [0, 0, 0.25, 0]
    assert pull(run, "take host out").computing == [1, 1, 1, 1]
    assert pull(run, "balance").computing == [1, 1, 1, 1.5]  # a slow chip stays slow
    assert pull(replace(run, late=None), "balance").computing == [1.125] * 4
    assert pull(replace(run, late=None), "take host out") == replace(run, late=None)


def test_the_room_shows_another_run_than_the_graded_six() -> None:
    graded = {run.step() for run, _ in draw_profiles(1)}
    assert not graded & {run.step() for run in operations_room().recording.profiles}
    assert all(len(run.computing) == 8 for run, _ in draw_profiles(1)) and RANKS == 16


# ---- the picture


@pytest.mark.parametrize("show", QUANTITIES)
def test_the_heat_map_shows_every_quantity(show: str) -> None:
    room = operations_room()
    heat, bars = room.chart(Setting(show=show)).axes
    (image,) = heat.images
    values = image.get_array()
    assert values is not None and values.shape == (RANKS, STEPS)
    assert heat.get_title("left").startswith(QUANTITIES[show][0])
    assert len(bars.patches) == 7 * RANKS


def test_the_table_holds_the_step_and_what_the_lever_makes_of_it() -> None:
    room = operations_room()
    for (kind, rank), steps in room.recording.incidents.items():
        step = steps[0]
        table = room.table(Setting(step=step, lever=CURES[kind]))
        run = room.recording.profiles[step]
        assert f"{run.step():.3f} s" in table and f"{pull(run, CURES[kind]).step():.3f} s" in table
        assert rank is None or f"rank {rank}, by" in table
        assert kind not in table.replace("find_straggler", "")  # the reader is to name it


def test_controls_draw_again() -> None:
    box = operations_room().widget()
    above, image = box.children
    column, table = above.children
    controls = {
        control.description: control
        for row in column.children
        for control in [getattr(row, "children", [row])[0]]
    }
    assert set(controls) == {"step", "show", "lever"}
    for name, value in (("step", 17), ("show", "data"), ("lever", "prefetch")):
        before = image.value, table.value
        controls[name].value = value
        assert image.value != before[0] and (name == "show") == (table.value == before[1])


def test_without_a_kernel_it_shows_the_first_setting() -> None:
    shown = operations_room(Setting(step=42))._repr_mimebundle_()
    assert "step 42" in shown["text/plain"] and set(shown) == {"text/plain", "image/png"}
