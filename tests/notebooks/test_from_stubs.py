"""Run All of a student version in which nothing is written yet: cells wait, and say for what."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from course_lib.submit import run

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "notebooks").glob("*/*.ipynb"))
AT_ONCE = 2  # notebooks of a run; all of them with COURSE_ALL_TESTS


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_run_all_ends_without_red(notebook: Path, seed: int) -> None:
    drawn = random.Random(seed).sample(NOTEBOOKS, AT_ONCE)
    if notebook not in drawn and not os.environ.get("COURSE_ALL_TESTS"):
        pytest.skip("two notebooks are drawn in each run: make test-all runs all of them")
    red = []
    for cell in run(notebook, minutes=5):
        on_purpose = "raises-exception" in cell["metadata"].get("tags", [])
        for output in cell.get("outputs", []):
            if output.get("name") == "stderr":
                red.append(f"{cell['source'][:80]!r} wrote to stderr: {output['text'][:500]}")
            if output["output_type"] == "error" and not on_purpose:
                red.append(
                    f"{cell['source'][:80]!r} ended in {output['ename']}: {output['evalue'][:500]}"
                )
    assert not red, "\n".join(red)
