"""Ranks load the libraries that the environment asks for now, and not those of the kernel's start."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from course_lib import launch
from course_lib.runtime import gpus, libraries, pools

ANY = "libm.so.6"  # a library that is on every machine, and that Python has not loaded before all others


def loaded() -> str:
    return os.environ.get("LD_PRELOAD", "")


def find_library() -> Path:
    """The file of ANY that this process has loaded."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return next(Path(line.split()[-1]) for line in lines if line.endswith(ANY))


def test_a_library_that_is_named_later_reaches_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    first = pools.preloaded()
    assert launch(loaded, world_size=2)[0] == "" and pools.preloaded() is first
    library = find_library()
    monkeypatch.setenv(libraries.NCCL, str(library))
    assert list(launch(loaded, world_size=2)) == [str(library)] * 2
    second = pools.preloaded()
    assert second is not first and not first.alive(), "the old one has ended"
    assert launch(loaded, world_size=2)[0] == str(library) and pools.preloaded() is second
    monkeypatch.delenv(libraries.NCCL)
    assert launch(loaded, world_size=2)[0] == ""


def test_the_kernels_own_environment_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(libraries.NCCL, str(find_library()))
    monkeypatch.setenv("LD_PRELOAD", "/usr/lib/other.so")
    made = libraries.of_ranks(os.environ)
    assert made["LD_PRELOAD"] == f"{find_library()} /usr/lib/other.so"
    assert os.environ["LD_PRELOAD"] == "/usr/lib/other.so"


def test_a_file_that_is_not_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(libraries.NCCL, "/nowhere/libnccl.so.2")
    with pytest.raises(
        ValueError, match=r"COURSE_NCCL is '/nowhere/libnccl\.so\.2', but there is no"
    ):
        launch(loaded, world_size=2)
    monkeypatch.delenv(libraries.NCCL)
    assert launch(loaded, world_size=2)[0] == ""


def test_a_wheel_that_was_replaced_gives_ranks_on_gpus_a_new_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = pools.preloaded()
    monkeypatch.setattr(libraries, "wheels", lambda: ["nvidia-nccl-cu12 2.30.7"])
    assert not process.outdated(on_gpus=False) and process.outdated(on_gpus=True)


def test_the_trial_loads_what_ranks_load(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def run(command: list[str], env: dict[str, str], **options: object) -> SimpleNamespace:
        seen.append(env.get("LD_PRELOAD"))
        return SimpleNamespace(returncode=0, stdout='{"error": "", "nccl": 22809}\n', stderr="")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(gpus, "_trials", {})
    monkeypatch.setattr(gpus, "gpu_count", lambda: 1)
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    assert gpus.trial() is gpus.trial() and seen == [None]
    monkeypatch.setenv(libraries.NCCL, str(find_library()))
    gpus.trial()
    monkeypatch.setattr(libraries, "wheels", lambda: ["nvidia-nccl-cu12 2.30.7"])
    gpus.trial()
    assert seen == [None, str(find_library()), str(find_library())]
