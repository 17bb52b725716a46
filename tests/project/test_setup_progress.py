"""Set-up says how far it is: a line that changes in a terminal, a few lines in a log."""

from __future__ import annotations

import io

import make_venv
import pytest
from pip_progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def told(lines: list[str], total: int, stream: io.StringIO | None = None) -> list[str]:
    """The lines that a person sees while pip prints `lines`; a terminal's stand behind each other."""
    stream = stream or io.StringIO()
    progress = Progress(total, stream)
    for line in lines:
        progress.read(line)
    return [
        line.strip() for line in stream.getvalue().replace("\r\033[K", "\n").split("\n") if line
    ]


def wheels(count: int) -> list[str]:
    """pip's lines on so many packages of 2 MB, as pip before 23.1 prints them."""
    return [
        line
        for k in range(count)
        for line in (
            f"Collecting p{k}==1.0 (from -r requirements.lock (line {k}))",
            f"  Downloading p{k}-1.0-py3-none-any.whl (2.0 MB)",
        )
    ]


def test_a_log_has_ten_lines_and_a_sum() -> None:
    lines = told([*wheels(130), "Installing collected packages: p0, p1"], 130)
    assert len(lines) == 11
    assert lines[0] == "13 of 130 packages, 26 MB: p12-1.0 (2.0 MB)"
    assert lines[-1] == "unpacking 130 of 130 packages, 260 MB"


def test_a_large_download_has_a_line_when_it_begins() -> None:
    large = "Downloading torch-2.13.0%2Bcpu-cp311-cp311-linux_x86_64.whl (190.2 MB)"
    assert told([large], 130) == ["1 of 130 packages, 190 MB: torch-2.13.0%2Bcpu (190.2 MB)"]
    assert told([large.replace("%2B", "+")], 1) == ["torch-2.13.0+cpu (190.2 MB)"]


def test_packages_of_other_systems_and_those_that_are_there_do_not_count() -> None:
    lines = told(
        [
            "Ignoring colorama: markers 'sys_platform == \"win32\"' don't match your environment",
            "Requirement already satisfied: idna==3.20 in ./lib (3.20)",
            "Processing /srv/wheels/attrs-26.1.0-py3-none-any.whl",
        ],
        4,
    )
    assert lines == ["1 of 2 packages: attrs-26.1.0"]


def test_descriptions_of_packages_are_no_downloads() -> None:
    """pip from 23.1 on asks for all descriptions first, and then for the packages."""
    lines = told(
        [
            "Collecting anyio==4.16.0",
            "  Downloading anyio-4.16.0-py3-none-any.whl.metadata (4.6 kB)",
            "Using cached anyio-4.16.0-py3-none-any.whl (112 kB)",
        ],
        2,
        Terminal(),
    )
    assert lines == [
        "1 of 2 packages looked up: anyio==4.16.0",
        "1 of 2 packages: anyio-4.16.0 (112 kB)",
    ]


def test_a_terminal_shows_the_share_of_a_file() -> None:
    lines = ["Downloading a-1-py3-none-any.whl (8.0 MB)", "Progress 2000000 of 8000000"]
    assert told(lines, 3, Terminal())[-1] == "1 of 3 packages, 8 MB: a-1 (8.0 MB), 25 %"
    assert told(lines, 30) == [], "a log has no line for each"


def test_a_line_is_cut_to_the_terminals_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    stream = Terminal()
    told([f"Downloading {'long' * 20}-1.0-py3-none-any.whl (8.0 MB)"], 3, stream)
    assert len(stream.getvalue().removeprefix("\r\033[K")) == 39


def test_the_lock_has_packages_to_count() -> None:
    assert 100 < make_venv.locked_packages() < 300


@pytest.mark.parametrize(("said", "can"), [("pip 23.2.1 from x", False), ("pip 24.1 from x", True)])
def test_a_new_pip_is_asked_for_its_bytes(
    monkeypatch: pytest.MonkeyPatch, said: str, can: bool
) -> None:
    answer = make_venv.subprocess.CompletedProcess(["pip"], 0, stdout=said)
    monkeypatch.setattr(make_venv, "run", lambda command: answer)
    assert make_venv.pip_counts_bytes() is can
