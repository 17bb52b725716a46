"""Stands in nbgrader's pipeline where submissions would be run without a sandbox."""

from __future__ import annotations

from typing import Any

from nbformat import NotebookNode
from nbgrader.preprocessors import NbGraderPreprocessor


class NotHereError(Exception):
    """This is not how submissions of this course are graded."""


class RefuseToAutograde(NbGraderPreprocessor):
    """Ends nbgrader's own `autograde` before it runs anything."""

    def preprocess(
        self, nb: NotebookNode, resources: dict[str, Any]
    ) -> tuple[NotebookNode, dict[str, Any]]:
        raise NotHereError(
            "submissions of this course are graded by `make grade SUBMISSIONS=folder`, in a sandbox and "
            "with a judge outside of it; nbgrader's own autograde has neither"
        )
