"""The course's additions to nbgrader's steps that make a student version."""

from __future__ import annotations

import re
from typing import Any

from nbformat import NotebookNode
from nbgrader import preprocessors
from nbgrader.preprocessors import NbGraderPreprocessor


class ClearSolutions(preprocessors.ClearSolutions):
    """nbgrader's step, but a region outside a function's body leaves a comment behind, without a `raise`.

    Answers (`answer_1 = ...` above the region) and helpers stand at the left margin. A `raise` there
    would stop "Run All" and would have to be deleted besides being answered.
    """

    COMMENT = "# YOUR CODE HERE"

    def _replace_solution_region(self, cell: NotebookNode, language: str) -> bool:
        replaced = super()._replace_solution_region(cell, language)
        if replaced and cell.cell_type == "code":
            stub = re.escape(self.code_stub[language])
            cell.source = re.sub(rf"^{stub}$", self.COMMENT, cell.source, flags=re.MULTILINE)
        return replaced


class ClearWidgets(NbGraderPreprocessor):
    """Removes the saved state of widgets, which shows what the outputs showed."""

    def preprocess(
        self, nb: NotebookNode, resources: dict[str, Any]
    ) -> tuple[NotebookNode, dict[str, Any]]:
        nb.metadata.pop("widgets", None)
        return nb, resources
