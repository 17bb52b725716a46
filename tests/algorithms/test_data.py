"""The training text and its batches: the same on every machine, shared without loss or repetition."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch

from course_lib.data import batch, decode, library_text
from course_lib.data.text import MODULES, VALIDATION, _files

ROOT = Path(__file__).resolve().parents[2]


# ---- the text


def test_the_text_is_the_library_that_runs():
    text = bytes(library_text().tolist())
    assert Path(re.__file__).read_bytes() in text
    assert Path(os.__file__).read_bytes() in text
    assert library_text().dtype == torch.uint8
    assert 5_000_000 < len(text) < 10_000_000


def test_whole_modules_are_held_back_about_a_tenth():
    train, held_back = library_text("train"), library_text("validation")
    source = Path(sysconfig.get_path("stdlib"), "tarfile.py").read_bytes()
    assert source in bytes(held_back.tolist())
    assert source not in bytes(train.tolist())
    assert 0.07 < len(held_back) / (len(train) + len(held_back)) < 0.13
    assert set(MODULES) > VALIDATION


def test_no_tests_of_packages_and_nothing_twice():
    library = Path(sysconfig.get_path("stdlib"))
    files = [file for name in MODULES for file in _files(library, name)]
    assert len(files) == len(set(files)) > 250
    assert not [file for file in files if {"test", "tests"} & set(file.relative_to(library).parts)]
    assert list(MODULES) == sorted(MODULES)


def test_another_process_reads_the_same_whatever_its_folder_and_hash_seed(tmp_path):
    show = (
        "import hashlib; from course_lib.data import library_text; "
        "print(hashlib.sha256(library_text().numpy()).hexdigest())"
    )
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "COURSE_ROLE": "test"}
    seen = {
        subprocess.run(
            [sys.executable, "-c", show],
            env={**environment, "PYTHONHASHSEED": hash_seed},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(seen) == 1 and len(seen.pop()) == 65


def test_line_ends_of_windows_are_those_of_unix(tmp_path, monkeypatch):
    for name in MODULES:
        (tmp_path / f"{name}.py").write_bytes(f"import {name}\r\n".encode())
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    text = decode(library_text.__wrapped__("train"))
    assert text.startswith("import _collections_abc\nimport _pydecimal\n") and "\r" not in text


def test_a_python_without_its_sources_is_told_so(tmp_path, monkeypatch):
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(FileNotFoundError, match="no source of the module _collections_abc"):
        library_text.__wrapped__("train")


def test_only_two_splits():
    with pytest.raises(ValueError, match="split is train or validation, not 'test'"):
        library_text("test")


def test_decode_spells_bytes():
    assert decode(torch.tensor(list("Müller\n".encode()))) == "Müller\n"
    assert decode(torch.tensor([255, 65])) == "\ufffdA"


# ---- batches


def test_targets_are_the_next_tokens(seed):
    text = torch.arange(1000, dtype=torch.int32)
    inputs, targets = batch(text, seed, batch_size=6, length=11, seed=seed)
    assert inputs.shape == targets.shape == (6, 11)
    assert inputs.dtype == targets.dtype == torch.int64
    assert torch.equal(targets, inputs + 1)
    assert torch.equal(inputs, inputs[:, :1] + torch.arange(11))


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 6, 12])
def test_the_batches_of_all_ranks_are_the_batch_of_one(world_size, seed):
    step = random.Random(seed).randrange(10**6)
    whole = batch(library_text(), step, batch_size=12, length=7, seed=seed)
    parts = [
        batch(
            library_text(),
            step,
            batch_size=12,
            length=7,
            seed=seed,
            rank=rank,
            world_size=world_size,
        )
        for rank in range(world_size)
    ]
    assert torch.equal(torch.cat([inputs for inputs, _ in parts]), whole[0])
    assert torch.equal(torch.cat([targets for _, targets in parts]), whole[1])


def test_the_same_again_and_another_for_another_step_or_seed(seed):
    text = torch.arange(10**6)

    def starts(step: int, seed: int) -> list[int]:
        return batch(text, step, batch_size=8, length=3, seed=seed)[0][:, 0].tolist()

    assert starts(5, seed) == starts(5, seed)
    drawn = {tuple(starts(step, one)) for step in range(20) for one in range(seed, seed + 20)}
    assert len(drawn) == 400  # step 1 of seed 0 is not step 0 of seed 1
    assert starts(0, 0) == STARTS, "batches must not change between versions of anything"


# `random.Random` draws the same numbers in every version of Python.
STARTS = [367798, 266219, 853217, 706567, 949985, 799196, 178871, 523465]


def test_every_place_of_the_text_is_reached():
    text = torch.arange(5)
    inputs, targets = batch(text, 0, batch_size=200, length=3)
    assert set(inputs[:, 0].tolist()) == {0, 1}
    assert set(targets[:, -1].tolist()) == {3, 4}


def test_what_is_returned_may_be_sent_and_changed():
    text = torch.arange(100)
    for tensor in batch(text, 0, batch_size=4, length=10):
        assert tensor.is_contiguous()
        tensor.zero_()
    assert torch.equal(text, torch.arange(100))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"batch_size": 6, "world_size": 4}, "batch_size=6 rows cannot be shared equally by 4 "),
        ({"batch_size": 0}, "batch_size=0 rows"),
        ({"rank": 2, "world_size": 2}, "rank 2 of 2: ranks count from 0"),
        ({"rank": -1, "world_size": 2}, "rank -1 of 2"),
        ({"world_size": 0}, "rank 0 of 0"),
        ({"length": 100}, "length=100: a row and the token after it must fit into the text's 100"),
        ({"length": 0}, "length=0"),
    ],
)
def test_bad_sizes_get_a_sentence(given, said):
    with pytest.raises(ValueError, match=said):
        batch(torch.arange(100), 0, **{"batch_size": 4, "length": 10, **given})
