"""The data that travel to a worker for one submission, and its answer: plain data, whatever the machine.

A worker reads none of the class's files. Everything that it needs is here, so that the same work can be
done on another machine, and a grade depends on nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import nbformat
from nbformat import NotebookNode

from autograder.outcome.limits import Limits
from autograder.outcome.result import Exercise, Result


@dataclass(frozen=True)
class Work:
    """Everything that grading one submission needs.

    content: the notebook as it was handed in. notes: remarks of the intake, for `Result.changes`.
    source, released: the assignment's notebooks, the instructor's and the students'. sandbox: "auto",
    "require" or "off". library: a hash that the worker's own library must have; "" for any. known: verdicts
    of an earlier grading that still hold.
    """

    student: str
    assignment: str
    content: bytes
    source: str
    released: str
    limits: Limits
    secret: bytes
    sandbox: str = "auto"
    library: str = ""
    notes: Sequence[str] = ()
    known: Sequence[Exercise] = ()


@dataclass(frozen=True)
class Done:
    """The worker's answer. notebook: executed, as nbformat's JSON, "" if it could not be read.

    page: the feedback page, "" for none. untouched: see `Entries.enter`.
    """

    result: Result
    notebook: str = ""
    page: str = ""
    untouched: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, result: Result, notebook: NotebookNode | None, page: str = "") -> Done:
        if notebook is None:
            return cls(result, page=page)
        return cls(result, nbformat.writes(notebook), page, untouched_answers(notebook))

    def to_json(self) -> dict[str, Any]:
        return {
            "result": self.result.to_json(),
            "notebook": self.notebook,
            "page": self.page,
            "untouched": self.untouched,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Done:
        """The inverse of `to_json`. KeyError, ValueError or TypeError for anything else."""
        return cls(
            Result.from_json(data["result"]), data["notebook"], data["page"], data["untouched"]
        )


def untouched_answers(notebook: NotebookNode) -> list[str]:
    """grade_ids of the exercises that are as they were handed out, by nbgrader's checksums."""
    from nbgrader.utils import compute_checksum, is_solution  # it takes seconds: not for all

    return [
        cell.metadata["nbgrader"]["grade_id"]
        for cell in notebook.cells
        if is_solution(cell) and cell.metadata["nbgrader"].get("checksum") == compute_checksum(cell)
    ]
