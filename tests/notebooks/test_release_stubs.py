"""The stubs that a student finds in place of the solutions."""

from __future__ import annotations

import nbformat
import pytest
from nbconvert.exporters.exporter import ResourcesDict

from autograder.course.student_version import ClearSolutions

FUNCTION = '''def f(x):
    """Doc."""
    ### BEGIN SOLUTION
    return x + 1
    ### END SOLUTION'''
ANSWER = """answer_1 = ...
### BEGIN SOLUTION
answer_1 = 5
### END SOLUTION"""
HELPER = """### BEGIN SOLUTION
def helper(x):
    return x + 1
### END SOLUTION"""


def stub(source: str) -> str:
    cell = nbformat.v4.new_code_cell(
        source, metadata={"nbgrader": {"solution": True, "grade": False, "grade_id": "a"}}
    )
    notebook = nbformat.v4.new_notebook(cells=[cell])
    return ClearSolutions().preprocess(notebook, ResourcesDict())[0].cells[0].source


def test_a_functions_body_raises_until_it_is_written() -> None:
    name: dict = {}
    exec(stub(FUNCTION), name)
    with pytest.raises(NotImplementedError):
        name["f"](1)


def test_an_answer_keeps_its_dots_and_does_not_stop_run_all() -> None:
    name: dict = {}
    exec(stub(ANSWER), name)
    assert name["answer_1"] is ...
    assert "5" not in stub(ANSWER)


def test_helpers_and_a_body_in_one_cell_each_get_their_own_stub() -> None:
    assert stub(f"{HELPER}\n\n\n{FUNCTION}").split("\n") == [
        "# YOUR CODE HERE",
        "",
        "",
        "def f(x):",
        '    """Doc."""',
        "    # YOUR CODE HERE",
        "    raise NotImplementedError()",
    ]
