"""No two functions of a notebook could be taken for one function that was renamed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from course_lib.checks import outdated
from course_lib.checks.outdated import described, renamed

SOLUTIONS = sorted((Path(__file__).resolve().parents[2] / "solutions").glob("*/*.ipynb"))
OLD = 'def f(n):\n    """Rounds."""\n    return n'


@pytest.mark.parametrize("path", SOLUTIONS, ids=lambda path: path.stem)
def test_docstring_and_parameters_tell_a_notebooks_functions_apart(path: Path) -> None:
    names: dict[tuple[str, str], set[str]] = {}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            for name, text in described("".join(cell["source"])).items():
                if text is not None:
                    names.setdefault(text, set()).add(name)
    assert [same for same in names.values() if len(same) > 1] == []


@pytest.mark.parametrize(
    ("newer", "found"),
    [
        (OLD.replace("f(", "g("), (3, "g")),
        (OLD.replace("f(", "g(").replace("return n", "return n + 1"), (3, "g")),
        (OLD, None),
        (OLD + "\n\n" + OLD.replace("f(", "g("), None),
        (OLD.replace("f(n)", "g(n, m)"), None),
        (OLD.replace("f(", "g(").replace("Rounds", "Bytes"), None),
        ("def g(n):\n    return n", None),
        ("g = f(", None),
    ],
)
def test_the_newer_name_of_a_function(newer: str, found: tuple[int, str] | None) -> None:
    assert renamed(["", "import math", OLD, newer, "check('a/f', f)"], 2, "f") == found


def test_two_functions_of_one_cell_are_not_each_others_newer_name() -> None:
    both = OLD + "\n\n" + OLD.replace("f(", "g(")
    assert renamed(["", both, OLD.replace("f(", "g(")], 1, "f") is None


def test_a_function_without_a_docstring_has_no_newer_name() -> None:
    assert renamed(["", "def f(n):\n    return n", "def g(n):\n    return n"], 1, "f") is None


def test_a_kernel_that_keeps_no_history_has_no_newer_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    """As nbval's, in which every cell is In[1] and the list of them is empty."""
    names: dict[str, Any] = {}
    exec(compile('def hello():\n    """Say it."""\n', "Cell In[1]", "exec"), names)
    shell = SimpleNamespace(history_manager=SimpleNamespace(input_hist_raw=[""]), user_ns=names)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setattr(outdated, "cell_of", lambda thing: 1)
    assert list(outdated.remarks([names["hello"]])) == []
