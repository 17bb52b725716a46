"""Stands in nbgrader's own `autograde`, which would run submissions without a sandbox."""

from __future__ import annotations

from typing import Any

from nbconvert.exporters import NotebookExporter


class NotHereError(Exception):
    """This is not how submissions of this course are graded."""


class RefuseToAutograde(NotebookExporter):
    """Cannot be made. nbgrader makes its exporter before it touches anything; later, when formgrader's button
    asks it to grade once more, it first removes what grading has made of the submission."""

    def __init__(self, **options: Any) -> None:
        raise NotHereError(
            "submissions of this course are graded by `make grade SUBMISSIONS=folder`, in a sandbox and "
            "with a judge outside of it; nbgrader's own autograde has neither. Nothing was changed"
        )
