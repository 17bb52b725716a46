"""The capstone's figures, compared by the data in them, and the page that holds them."""

from __future__ import annotations

from pathlib import Path

import pytest

from course_lib.pictures.layouts_figure import field, long_run, parity, traffic
from course_lib.pictures.your_page import YourPage


def test_a_page_has_results_and_empty_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two frames: the first is filled by the student's function, the second names its section."""
    monkeypatch.chdir(tmp_path)
    page = YourPage("Your page", {"fifteen layouts": "§3", "half a page": "§7"})
    page.add("fifteen layouts", "one <loss>", by="your make_step")
    shown = page.show("mine")
    text = (tmp_path / "mine.html").read_text()
    assert "one &lt;loss&gt;" in text and "your make_step" in text
    assert "empty: §7" in text
    assert (tmp_path / "mine.png").read_bytes().startswith(b"\x89PNG")
    assert repr(shown) == "1 of 2 frames; see mine.html, mine.png"


SENT = {
    "one process": {"numbers": 24.0},
    "ddp 4": {"dp": 4e6, "numbers": 24.0},
    "2 x 2": {"tp": 1e6, "dp+cp": 3e6},
}


def test_an_empty_result_empties_the_frame_and_an_unknown_title_is_refused() -> None:
    page = YourPage("Your page", {"speed": "§1"})
    page.add("speed", {"ddp": 12_345.6}, by="you")
    assert "12,346" in page.html()
    page.add("speed", {}, by="you")
    assert "empty: §1" in page.html() and "12,346" not in page.html()
    with pytest.raises(KeyError, match="not a frame of the page: speed"):
        page.add("fast", "x", by="you")


def test_figures_and_tables_are_part_of_the_document() -> None:
    page = YourPage("Your page", {"curves": "§3", "table": "§4"})
    page.add("curves", parity({"one": [2.0, 1.0], "two": [2.0, 1.0 + 1e-9]}), by="you")

    class Table:
        def _repr_html_(self) -> str:
            return "<table><tr><td>517</td></tr></table>"

    page.add("table", Table(), by="you")
    text = page.html()
    assert "data:image/png;base64," in text and "<td>517</td>" in text


def test_parity_draws_every_curve_and_its_largest_distance() -> None:
    figure = parity({"one": [2.0, 1.0], "two": [2.5, 1.0], "three": [2.0, 1.0]})
    curves, apart = figure.axes
    assert len(curves.lines) == 3
    distances = [line.get_xdata()[0] for line in apart.lines if line.get_marker() == "o"]
    assert distances[1] == pytest.approx(0.5) and max(distances[0], distances[2]) < 1e-15


def test_bars_have_the_bytes_and_crosses_the_predictions() -> None:
    predicted = {("ddp 4", "dp"): 2e6, ("2 x 2", "dp+cp"): 1.5e6, ("a layout to come", "pp"): 5e5}
    (axes,) = traffic(SENT, predicted, halve=True).axes
    bars = sorted(
        patch.get_width() for patch in axes.patches if patch.get_width() and patch.get_y()
    )
    assert bars[-3:] == pytest.approx([0.5, 1.5, 2.0])
    crosses = [line.get_xdata()[0] for line in axes.lines if len(line.get_xdata())]
    assert crosses == pytest.approx([2.0, 0.5 + 1.5, 0.5])


def test_the_map_has_a_point_a_layout_and_only_arrows_between_them() -> None:
    peaks = dict.fromkeys(SENT, 8e6)
    (axes,) = field(SENT, peaks, [("one process", "ddp 4"), ("ddp 4", "not run")]).axes
    points = [(line.get_xdata()[0], line.get_ydata()[0]) for line in axes.lines]
    assert points == [(0.0, 8.0), (4.0, 8.0), (4.0, 8.0)]
    assert len(axes.texts) == 3 + 1


def test_a_killed_run_has_a_cross_and_a_band() -> None:
    (axes,) = long_run([3.0, 2.0, 1.5, 1.2], killed=2, restarted=1).axes
    assert [line.get_xdata()[0] for line in axes.lines if line.get_marker() == "x"] == [2]
    assert axes.patches[0].get_x() == 1


def test_nothing_measured_is_said_and_not_an_error() -> None:
    for figure in (parity({}), traffic({}), field({}, {})):
        assert figure.texts[0].get_text() == "nothing was measured"
