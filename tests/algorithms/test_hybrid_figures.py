"""The step, the table and the figures that notebook 10 takes from the library."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from course_lib import launch
from course_lib.checks.notebooks.four_dimensions import timing
from course_lib.facts.four_dimensions import axis_bytes
from course_lib.ledger.axes import differing_axes
from course_lib.ledger.record import Record
from course_lib.mesh.trial import MICROBATCHES, ROWS, SEQ, TRIAL, one_step, step_of
from course_lib.pictures import hybrid_figures
from course_lib.planning import by_hand
from course_lib.planning.table_1 import TABLE_1, row_tflops

CUBE = {"pp": 2, "dp": 2, "tp": 2}


def test_a_sheets_squares_name_their_readers() -> None:
    first, second = [range(0, 1), range(3, 4)], [range(1, 3)]
    parts = [(range(0, 1), first), (range(0, 1), second), (range(0, 1), second)]
    figure = hybrid_figures.sheet_figure(parts, rows=2, seq=4)
    assert texts(figure) == ["0", "1,2", "1,2", "0", "", "", "", ""]
    colours = [square.get_facecolor() for square in figure.axes[0].patches]
    assert colours[0] == colours[3] != colours[1] == colours[2]
    assert set(colours[4:]) == {(1.0, 1.0, 1.0, 1.0)}, "squares without a reader are white"


def texts(figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def test_equal_tensors_are_one_piece() -> None:
    ones, zeros = torch.ones(2), torch.zeros(2)
    held = [{"a": ones, "b": ones}, {"a": zeros}, {"a": ones.clone(), "b": ones}]
    figure = hybrid_figures.pieces_figure(held, ["a", "b"])
    assert texts(figure) == ["piece 1", "piece 2", "piece 1", "piece 1", "piece 1"]


def test_a_row_gives_the_checks_tflops() -> None:
    for row in TABLE_1:
        seconds = by_hand.step_seconds(*timing.row_args(row, 0.6))
        mine = row_tflops(row, by_hand.step_seconds, by_hand.A100, by_hand.SELENE, 0.6)
        assert mine == pytest.approx(timing.row_tflops(row, seconds), rel=1e-12)


def test_the_trial_step_sends_what_the_closed_forms_say() -> None:
    run = launch(one_step, CUBE, world_size=8, backend="gloo")
    for rank, stage in ((0, 0), (7, 1)):
        sent = dict.fromkeys(CUBE, 0.0)
        for operation in step_of(run.ledger.operations(rank)):
            axes = differing_axes(operation.group, CUBE)
            if len(axes) == 1:
                sent[axes[0]] += operation.bytes_sent
        wanted = axis_bytes(TRIAL, CUBE, MICROBATCHES, ROWS, SEQ, stage)
        assert sent["pp"] == wanted["pp"]
        assert sent["tp"] == wanted["tp"]
        assert sent["dp"] == wanted["dp"] + 8, "the replicas also sum their numbers of targets"
    steps = [step_of(run.ledger.operations(rank)) for rank in range(8)]
    figure = hybrid_figures.nodes_figure(Record(8, steps), per_node=4)
    assert len(figure.axes[0].lines) == 2


def test_bars_lines_and_marks_are_drawn() -> None:
    bars = hybrid_figures.memory_bars({"plain": (1.0, 3.0), "less": (0.5, 1.0)}, room=2)
    assert texts(bars) == ["3.0", "1.0"]
    lines = hybrid_figures.published_figure({"1B": 130, "2B": 140}, [("x", [1, 2])], (0, 312))
    assert len(lines.axes[0].lines) == 2
    layouts = [SimpleNamespace(sizes={"tp": tp}) for tp in (1, 2, 2)]
    verdicts = [
        SimpleNamespace(fits=fits, layout=layout, nbytes=1e9, seconds=2.0)
        for fits, layout in zip((True, True, False), layouts, strict=True)
    ]
    marks = hybrid_figures.divisions_figure(verdicts, room=76)
    assert [line.get_label() for line in marks.axes[0].lines[:2]] == ["tp 1", "tp 2"]
