"""`make bench` says which part it measures, how long that took the last time, and each row at once."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import benchmarks.zero
from benchmarks.__main__ import PAGE, main
from benchmarks.progress import Progress
from benchmarks.table import Row


def measured(stream: io.StringIO, seen: list[str]) -> Iterator[Row]:
    """Two rows; before the second one is measured, the first has been printed."""
    yield Row("first", "", 1.0, 2.0)
    seen.append(stream.getvalue())
    yield Row("second", "", 1.0, 2.0)


def test_a_part_is_announced_and_its_time_is_known_the_next_time(tmp_path: Path) -> None:
    lasted = tmp_path / "build" / "benchmarks.json"
    said = []
    for _ in range(2):
        stream, seen = io.StringIO(), []
        for row in Progress(stream, 1, lasted).watched("launching", measured(stream, seen)):
            print(row.what, file=stream)
        assert seen[0].endswith("first\n"), "a row is shown before the next one is measured"
        said.append(stream.getvalue().splitlines())
    assert said[0][0] == "[1/1] launching (some minutes on a busy machine) ..."
    lasted.write_text('{"launching": 148.2, "zero": 3}')
    stream = io.StringIO()
    progress = Progress(stream, 2, lasted)
    assert list(progress.watched("launching", [])) == list(progress.watched("zero", [])) == []
    heads = [line for line in stream.getvalue().splitlines() if line.startswith("[")]
    assert heads == [
        "[1/2] launching (it took 148 s last time) ...",
        "[2/2] zero (it took 3 s last time) ...",
    ]


def test_a_file_that_was_cut_off_is_no_obstacle(tmp_path: Path) -> None:
    lasted = tmp_path / "benchmarks.json"
    lasted.write_text('{"launching": 14')
    stream = io.StringIO()
    list(Progress(stream, 1, lasted).watched("zero", []))
    assert '"zero"' in lasted.read_text()


def test_ctrl_c_ends_with_the_rows_so_far(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> Iterator[Row]:
        yield Row("first", "", 1.0, 2.0)
        raise KeyboardInterrupt

    before = PAGE.read_bytes()
    monkeypatch.setattr(benchmarks.zero, "rows", interrupted)
    monkeypatch.setattr("sys.argv", ["benchmarks", "zero", "--write"])
    assert main() == 130
    output = capsys.readouterr()
    assert "| first |" in output.out
    assert "Stopped by Ctrl-C: 1 row was measured, and benchmarks.md is as it was." in output.err
    assert PAGE.read_bytes() == before


def test_on_a_terminal_the_seconds_pass(tmp_path: Path) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()

    def slow() -> Iterator[Row]:
        while "so far" not in stream.getvalue():
            pass
        yield Row("first", "", 1.0, 2.0)

    list(Progress(stream, 1, tmp_path / "lasted.json").watched("zero", slow()))
    assert re.search(r"zero: \d+ s so far", stream.getvalue())
