"""Run All of a student version in which nothing is written yet: cells wait, and say for what."""

from __future__ import annotations

from pathlib import Path

import pytest

from course_lib.rerun import run
from tests import drawn

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "notebooks").glob("*/*.ipynb"))
REMEDY = "Cells ask `ready` first, or use `try_it` or `said`: course_lib/unfinished.py shows how."


@pytest.mark.parametrize("notebook", drawn.drawn_notebooks(NOTEBOOKS, 0.2))
def test_run_all_ends_without_red(notebook: Path) -> None:
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
    assert not red, "\n".join([*red, REMEDY])
