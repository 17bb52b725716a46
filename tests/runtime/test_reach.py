"""GPUs that do not reach each other are found before ranks use them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil
import pytest

from course_lib.runtime import backend, gpus, reach
from course_lib.runtime.gpus import Trial
from tests.runtime.test_backend import Machine


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": gpus.search_path()}


def test_processes_that_reach_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over gloo: the same processes and the same message."""
    monkeypatch.setattr(reach, "SECONDS", 60.0)
    assert reach.reached(2, environment(), "gloo")


def test_a_message_that_never_arrives_ends_with_its_processes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, assert_no_orphans: Callable[..., None]
) -> None:
    (tmp_path / "course_lib" / "runtime").mkdir(parents=True)
    for folder in (tmp_path / "course_lib", tmp_path / "course_lib" / "runtime"):
        (folder / "__init__.py").touch()
    script = tmp_path / "course_lib" / "runtime" / "reach.py"
    script.write_text("import os, time; open(f'{os.getpid()}.began', 'w').close(); time.sleep(600)")
    monkeypatch.chdir(tmp_path)  # `python -m` looks there first, so the processes run this script
    monkeypatch.setattr(reach, "SECONDS", 5.0)
    before = {child.pid for child in psutil.Process().children()}
    assert not reach.reached(2, {**environment(), "PYTHONPATH": str(tmp_path)}, "gloo")
    assert len(list(tmp_path.glob("*.began"))) == 2, "the processes ran another module"
    assert_no_orphans({child.pid for child in psutil.Process().children()} - before)


@pytest.mark.parametrize(
    ("works", "tried", "set_to"),
    [
        ((True, True), Trial(nccl=22809), None),
        ((False, True), Trial(nccl=22809, peers=False), "1"),
        ((False, False), None, None),
    ],
)
def test_peer_to_peer_is_left_out_where_it_does_not_work(
    monkeypatch: pytest.MonkeyPatch,
    works: tuple[bool, bool],
    tried: Trial | None,
    set_to: str | None,
) -> None:
    def reached(count: int, environment: Mapping[str, str]) -> bool:
        return works[reach.NO_PEERS in environment]

    monkeypatch.setenv(reach.NO_PEERS, "")  # set back afterwards
    monkeypatch.delenv(reach.NO_PEERS)
    monkeypatch.setattr(reach, "reached", reached)
    found = gpus.with_message(Trial(nccl=22809), 2)
    assert os.environ.get(reach.NO_PEERS) == set_to
    if tried is None:
        assert "do not reach each other over NCCL" in found.error
    else:
        assert found == tried


def test_one_gpu_has_nobody_to_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "reached", lambda *_: pytest.fail("no message is needed"))
    assert gpus.with_message(Trial(nccl=22809), 1) == Trial(nccl=22809)


def test_the_session_says_that_messages_are_slow(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    Machine(monkeypatch).has(4, Trial(nccl=22809, peers=False))
    assert backend.choose(4) == "nccl"
    assert "messages go slowly through the host's memory" in capsys.readouterr().out
