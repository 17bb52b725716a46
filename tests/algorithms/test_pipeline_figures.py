"""The chart of a schedule, compared by the data in it, and the box of sliders around it."""

from __future__ import annotations

import base64

import numpy as np
import pytest

from course_lib.pictures import colours
from course_lib.pictures.gantt import COLOURS, gantt, summary
from course_lib.pictures.schedule_explorer import STEPS, Explorer, explorer
from course_lib.pipeline import Durations, Pair, simulate, stage_ranks
from course_lib.pipeline.generators import (
    dualpipe,
    gpipe,
    interleaved_one_f_one_b,
    naive,
    one_f_one_b,
    zero_bubble_h1,
    zero_bubble_v,
)


def test_the_chart_has_a_cell_for_every_action() -> None:
    schedule = gpipe(2, 3)
    figure = gantt(simulate(schedule))
    cells = sum(len(collection.get_paths()) for collection in figure.axes[0].collections)
    assert cells == sum(len(row) for row in schedule) == 12


def boxes(figure) -> dict[str, list[tuple[float, float, int]]]:
    """By collection: (start, end, rank) of every cell."""
    found = {}
    for one in figure.axes[0].collections:
        ends = [path.get_extents() for path in one.get_paths()]
        found[one.get_gid()] = [(e.x0, e.x1, round((e.y0 + e.y1) / 2)) for e in ends]
    return found


def numbers(figure) -> list[str]:
    return [one.get_text() for one in figure.axes[0].texts if one.get_text().isdigit()]


def test_every_action_is_a_cell_where_and_when_it_ran():
    found = simulate(zero_bubble_h1(3, 5), Durations(1, 2, 1, communication=0.5))
    figure = gantt(found, "ZB-H1")
    drawn = boxes(figure)
    for kind in "FIW":
        expected = [(e.start, e.end, e.rank) for e in found.events if e.action.kind == kind]
        assert np.allclose(sorted(drawn[kind]), sorted(expected))
        (cells,) = [one for one in figure.axes[0].collections if one.get_gid() == kind]
        assert colours.tint(COLOURS[kind]) != COLOURS[kind]
        red, green, blue, _ = cells.get_facecolor()[0]
        assert (
            f"#{round(255 * red):02X}{round(255 * green):02X}{round(255 * blue):02X}"
            == COLOURS[kind]
        )
    assert set(drawn) == {"F", "I", "W"}
    low, high = figure.axes[0].get_ylim()
    assert low > high, "rank 0 is on top"
    assert len(numbers(figure)) == 3 * 3 * 5
    texts = [one.get_text() for one in figure.axes[0].texts]
    assert "ZB-H1" in texts
    assert summary(found) in texts


def test_later_chunks_are_paler_and_pairs_are_halved():
    drawn = boxes(gantt(simulate(interleaved_one_f_one_b(2, 4, 2))))
    assert {kind: len(cells) for kind, cells in drawn.items()} == {
        "F": 8, "B": 8, "F pale": 8, "B pale": 8
    }  # fmt: skip
    schedule = dualpipe(2, 4)
    heights = [
        path.get_extents().height
        for cells in gantt(simulate(schedule, copies=2)).axes[0].collections
        for path in cells.get_paths()
    ]
    pairs = sum(isinstance(action, Pair) for row in schedule for action in row)
    assert pairs > 0
    assert sum(height == pytest.approx(0.42) for height in heights) == 2 * pairs
    assert (
        sum(height == pytest.approx(0.84) for height in heights) == sum(map(len, schedule)) - pairs
    )


def test_a_moment_leaves_outlines_of_what_is_to_come():
    found = simulate(gpipe(2, 3))
    drawn = boxes(gantt(found, now=2))
    assert np.allclose(sorted(drawn["F"]), [(0, 1, 0), (1, 2, 0), (1, 2, 1)])
    assert len(drawn["to come"]) == 12 - 3
    assert "to come" not in boxes(gantt(found))


def test_the_critical_path_is_framed():
    found = simulate(one_f_one_b(3, 4), Durations(communication=1))
    drawn = boxes(gantt(found, critical=True))
    expected = [(one.start, one.end, one.rank) for one in found.critical_path]
    assert np.allclose(drawn["critical"], expected)


def test_frames_at_the_edge_are_whole():
    figure = gantt(simulate(one_f_one_b(3, 4)), now=2, critical=True)
    whole = {one.get_gid(): not one.get_clip_on() for one in figure.axes[0].collections}
    assert whole == {"F": False, "to come": True, "critical": True}
    left, right = figure.axes[0].get_xlim()
    ends = [end for start, end, _ in boxes(figure)["to come"]]
    assert max(ends) == right and left == 0


def test_the_line_below_names_both_denominators():
    assert summary(simulate(gpipe(4, 8))) == (
        "total 33 · bubble 27.3% of the total, 37.5% of the ideal time · 8 activations in flight on a rank"
    )
    assert summary(simulate(naive(2, 2))).endswith("1 activation in flight on a rank")
    assert "1 to 4 activations" in summary(simulate(one_f_one_b(4, 8)))


GENERATORS = {
    "gpipe": gpipe,
    "interleaved": interleaved_one_f_one_b,
    "dualpipe": dualpipe,
    "v": zero_bubble_v,
}


@pytest.fixture
def box() -> Explorer:
    return explorer(GENERATORS, copies={"dualpipe": 2})


def test_the_durations_are_of_all_layers_of_a_rank(box):
    """With any number of chunks or copies a rank computes for m (F + I + W)."""
    for name in GENERATORS:
        found = box.simulation(name, 4, 8, 4, Durations(1, 2, 1))
        assert found.busy == pytest.approx([8 * 4] * 4), name
    assert len(stage_ranks(box.simulation("interleaved", 2, 4, 3, Durations()).schedule)) == 6


def parts(view) -> dict:
    """The controls by their description, the image and the sentence."""
    columns, times, sentence, image = view.children
    controls = [one for column in columns.children for one in column.children]
    controls += times.children[1:]
    found = {one.description: one for one in controls}
    return {**found, "sentence": sentence, "image": image}


def test_sliders_redraw_the_chart_and_say_what_cannot_be(box):
    found = parts(box.widget())
    assert bytes(found["image"].value).startswith(b"\x89PNG")
    for name, value in (
        ("schedule", "v"), ("stages", 3), ("microbatches", 9), ("F", 2.0), ("message", 0.5),
        ("% of time", 40), ("critical path", True),
    ):  # fmt: skip
        before = bytes(found["image"].value)
        found[name].value = value
        assert bytes(found["image"].value) != before, name
        assert found["sentence"].value == ""
    before = bytes(found["image"].value)
    found["schedule"].value = "dualpipe"
    assert "stages=3: DualPipe needs an even number" in found["sentence"].value
    found["stages"].value = 4
    assert "at least 8, a multiple of 2" in found["sentence"].value
    assert bytes(found["image"].value) == before
    assert found["image"].layout.visibility == "hidden", "it is a chart of other settings"
    assert found["chunks"].disabled
    found["stages"].value = 2
    found["microbatches"].value = 8
    assert found["sentence"].value == ""
    assert found["image"].layout.visibility == "visible"
    found["schedule"].value = "interleaved"
    assert not found["chunks"].disabled
    before = bytes(found["image"].value)
    found["chunks"].value = 4
    assert bytes(found["image"].value) != before


def test_at_first_all_of_the_time_is_shown(box):
    """The browser gives the slider the value of the play button that it is linked to."""
    view = box.widget()
    play, time, _ = view.children[1].children
    assert play.value == time.value == STEPS


def test_a_wrong_schedule_of_ones_own_is_a_sentence():
    found = parts(explorer({"mine": lambda stages, microbatches: [[]] * stages}).widget())
    assert found["sentence"].value == "the schedule is empty: no rank does anything"


def test_outside_a_kernel_there_is_a_still_picture(box):
    bundle = box._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "image/png"}
    assert base64.b64decode(bundle["image/png"]).startswith(b"\x89PNG")
    assert bundle["text/plain"] == "Explorer(gpipe, interleaved, dualpipe, v)"
    assert box.chart("gpipe", 2, 2, 1, Durations(), moment=STEPS).axes[0].lines[:] == []
    with pytest.raises(ValueError, match="nothing to explore"):
        explorer({})
