"""How long a student waits for all checks of a notebook: right answers, and every exercise a deadlock."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from autograder.course.twin import read_twin
from benchmarks.table import Row

SOLUTIONS = Path(__file__).parent.parent / "solutions"
REACH = {  # seconds
    "01_why_distribute": 15,
    "02_collectives": 15,
    "03_data_parallel": 30,
    "04_zero": 30,
    "05_fsdp": 30,
    "06_tensor_parallel": 30,
    "07_pipeline": 30,
    "08_context_parallel": 30,
    "09_precision_and_memory": 30,
    "10_four_dimensions": 30,
    "11_experts": 8,
    "12_in_operation": 8,
    "13_capstone": 15,
}
NOT_RUN = {"skip-in-grading", "raises-exception"}  # cells that the solutions do not need


# The mistake of a student who lets every rank receive before it sends. Run among the notebook's names, so
# that it travels to the ranks by value, as a notebook's function does.
DEADLOCK = """
def deadlock(*args, **kwargs):
    rank, n = dist.get_rank(), dist.get_world_size()
    if n > 1:
        dist.recv(torch.empty(1), (rank - 1) % n)
        dist.send(torch.empty(1), (rank + 1) % n)
"""


def visible_checks(assignment: str) -> tuple[dict[str, Any], list[str]]:
    """The solutions' names, and the source of every visible call of `check`, from the notebook."""
    space: dict[str, Any] = {"__name__": "__main__"}
    calls = []
    for cell in read_twin(SOLUTIONS / assignment / f"{assignment}.py").cells:
        about = cell.metadata.get("nbgrader", {})
        if cell.cell_type != "code" or NOT_RUN & set(cell.metadata.get("tags", ())):
            continue
        if about.get("grade"):
            calls.append(cell.source.partition("### BEGIN HIDDEN TESTS")[0])
            continue
        name = f"<{about.get('grade_id', 'cell')}>"
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(cell.source, name, "exec"), space)
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
    for assignment, reach in REACH.items():
        space, calls = visible_checks(assignment)
        number = assignment.partition("_")[0]
        took = seconds(space, calls, lambda score: score == 1)
        what = f"visible checks of notebook {number} ({len(calls)}), right answers"
        yield Row(what, "", took, reach, "s")
        if number != "02":
            continue
        exec(DEADLOCK, space)
        wrong = space.pop("deadlock")
        broken = {k: wrong if callable(v) and k != "check" else v for k, v in space.items()}
        took = seconds(broken, calls, lambda score: True)
        yield Row("the same, every function a deadlock", "", took, 60, "s")
