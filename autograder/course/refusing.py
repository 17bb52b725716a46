"""A step for nbgrader's own `autograde` that refuses: it would run submissions without a sandbox."""

from __future__ import annotations

from typing import Any

from nbconvert.exporters import NotebookExporter


class NotHereError(Exception):
    """This is not how submissions of this course are graded."""


class RefuseToAutograde(NotebookExporter):
    """An exporter that cannot be made. nbgrader makes its exporter before it touches anything.

    A later refusal would be too late: to grade again, as formgrader's button asks it to, nbgrader first
    removes the files that grading has made of the submission.
    """

    def __init__(self, **options: Any) -> None:
        raise NotHereError(
            "submissions of this course are graded by `make grade SUBMISSIONS=folder`, in a sandbox and "
            "with a judge outside of it; nbgrader's own autograde has neither. Nothing was changed"
        )
