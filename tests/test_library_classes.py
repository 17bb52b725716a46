"""The library's classes pass the checks of the exercises in which a student writes them.

Library and notebook may differ in their text: the check holds them equal. It hides the library from the
ranks, so each package is copied out under another name first.
"""

from __future__ import annotations

import importlib
import inspect
import shutil
from pathlib import Path

import pytest

import course_lib
from course_lib.checks.judge.judge import judge
from course_lib.runtime import wire

CLASSES = {  # exercise: module and class
    "03_data_parallel/naive_data_parallel": ("data_parallel.naive", "NaiveDataParallel"),
    "03_data_parallel/bucketed_data_parallel": ("data_parallel.bucketed", "BucketedDataParallel"),
    "04_zero/zero1_optimizer": ("zero.stage1", "Zero1Optimizer"),
    "04_zero/zero2_optimizer": ("zero.stage2", "Zero2Optimizer"),
    "04_zero/zero3_module": ("zero.stage3", "Zero3Module"),
}
# Lines that may fail, and why.
DIFFERENT = {
    "04_zero/zero1_optimizer": {
        "memory after the step: no more than P + 3P/N": "the row of gradients stays, as notebook 04 says",
        "without the shard's gradient: P + 2P/N": "likewise",
    },
}


@pytest.fixture(scope="module")
def lifted(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The name of a package outside of course_lib that holds copies of its packages."""
    name = "copied_out"
    folder = tmp_path_factory.mktemp("lifted")
    for package in {module.partition(".")[0] for module, _ in CLASSES.values()}:
        shutil.copytree(Path(inspect.getfile(course_lib)).parent / package, folder / name / package)
        (folder / name / package / "__init__.py").unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield name


@pytest.mark.parametrize("exercise", CLASSES)
def test_the_librarys_class_passes_the_check(exercise: str, lifted: str, seed: int) -> None:
    module, name = CLASSES[exercise]
    written = getattr(importlib.import_module(f"{lifted}.{module}"), name)
    report = judge(exercise, wire.dumps((written,)), seed, "hidden")
    failed = {line["title"]: line["sentences"] for line in report["lines"] if not line["passed"]}
    assert failed.keys() == DIFFERENT.get(exercise, {}).keys(), failed
