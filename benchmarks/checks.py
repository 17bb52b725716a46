"""How long a student waits for all checks of notebook 02: right answers, and every exercise a deadlock."""

from __future__ import annotations

import ast
import contextlib
import io
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from autograder.twin import read_twin
from benchmarks.table import Row
from course_lib.checks import check

ASSIGNMENT = "02_collectives"
TWIN = Path(__file__).parent.parent / "solutions" / ASSIGNMENT / f"{ASSIGNMENT}.py"


# What a student writes who lets every rank receive before it sends. Run among the notebook's names, so
# that it travels to the ranks by value, as a notebook's function does.
DEADLOCK = """
def deadlock(*args, **kwargs):
    rank, n = dist.get_rank(), dist.get_world_size()
    if n > 1:
        dist.recv(torch.empty(1), (rank - 1) % n)
        dist.send(torch.empty(1), (rank + 1) % n)
"""


def imports(source: str) -> str:
    """The import statements of a cell that are not inside a function."""
    lines = [
        line for line in ast.parse(source).body if isinstance(line, ast.Import | ast.ImportFrom)
    ]
    return "\n".join(ast.unparse(line) for line in lines)


def visible_checks() -> tuple[dict[str, Any], list[str]]:
    """The solutions' names, and the source of every visible call of `check`, from the notebook."""
    space: dict[str, Any] = {"__name__": "__main__", "check": check}
    calls = []
    for cell in read_twin(TWIN).cells:
        if cell.cell_type == "code":
            exec(imports(cell.source), space)
        about = cell.metadata.get("nbgrader", {})
        if about.get("solution"):
            exec(compile(cell.source, f"<{about['grade_id']}>", "exec"), space)
        elif about.get("grade"):
            calls.append(cell.source.partition("### BEGIN HIDDEN TESTS")[0])
    return space, calls


def seconds(space: dict[str, Any], calls: list[str], judge: Callable[[float], bool]) -> float:
    """Time of all calls; every score must satisfy `judge`, else the figure would mean nothing."""
    began = time.perf_counter()
    for call in calls:
        with contextlib.redirect_stdout(io.StringIO()) as said:
            exec(call, space)
        if not judge(space["report"].score):
            raise RuntimeError(
                f"an unexpected score of {space['report'].score}:\n{said.getvalue()}"
            )
    return time.perf_counter() - began


def rows() -> Iterator[Row]:
    space, calls = visible_checks()
    took = seconds(space, calls, lambda score: score == 1)
    yield Row(f"visible checks of notebook 02 ({len(calls)}), right answers", "", took, 15, "s")
    exec(DEADLOCK, space)
    wrong = space.pop("deadlock")
    broken = {k: wrong if callable(v) and k != "check" else v for k, v in space.items()}
    took = seconds(broken, calls, lambda score: True)
    yield Row("the same, every function a deadlock", "", took, 60, "s")
