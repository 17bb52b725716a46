"""The solutions in the notebooks and the functions of course_lib are the same code.

What a student reads as the solution is then what the library's own tests have tried. Compared are the
syntax trees: names, arguments, defaults and bodies, without docstrings, comments and annotations.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import jupytext
import pytest

ROOT = Path(__file__).resolve().parent.parent
TWINS = sorted(twin for twin in ROOT.glob("solutions/*/*.py") if twin.stem == twin.parent.name)

# Functions that may differ, and why.
EXEMPT = {
    ("first_ranks", "hello"): "asks course_lib.device(); the library's module knows torch alone",
    ("data_parallel", "shard_indices"): "the library's refuses bad input with a sentence",
    (
        "tensor_parallel",
        "vocab_parallel_cross_entropy",
    ): "the library's keeps less for backward, and refuses bad input with a sentence",
    ("pipeline", "zero_bubble_h1"): "written out; the library's shares its loop with ZB-H2",
    ("pipeline", "peak_activations"): "a formula; the library's counts in any schedule",
    (
        "pipeline",
        "run_schedule",
    ): "the library's does halves, several stages of a rank and what stages share",
    (
        "context_parallel",
        "tiled_attention",
    ): "a Function of its own; the library's serves the ring too",
    ("context_parallel", "ring_attention"): "whole blocks; the library's come in tiles",
    (
        "context_parallel",
        "ulysses_attention",
    ): "tokens in succession; the library's takes any layout",
}
# What must at least be found, so that the comparison cannot come to nothing by a change of names.
EXPECTED = {
    "first_ranks": {"exchange", "ring_shift"},
    "collectives": {"broadcast", "reduce_scatter", "all_gather", "ring_all_reduce", "all_to_all"},
    "zero": {"memory_per_rank", "flatten_and_shard"},
    "tensor_parallel": {
        "identity_all_reduce",
        "all_reduce_identity",
        "all_gather_reduce_scatter",
        "reduce_scatter_all_gather",
    },
    "pipeline": {"naive", "gpipe", "one_f_one_b", "interleaved_one_f_one_b", "dualpipe"},
    "context_parallel": {"online_softmax_merge", "zigzag"},
}


def functions(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    """The functions that stand at the top of a module or cell."""
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def solution_functions(twin: Path) -> Iterator[ast.FunctionDef]:
    """Every function of the notebook's solution cells."""
    for cell in jupytext.read(twin, fmt="py:percent").cells:
        if cell.metadata.get("nbgrader", {}).get("solution"):
            yield from functions(ast.parse(cell.source)).values()


def library_functions(name: str) -> dict[str, ast.FunctionDef]:
    """The functions of course_lib.<name>: of the module, or of all files of the package."""
    found = importlib.util.find_spec(f"course_lib.{name}")
    assert found is not None and found.origin is not None, f"there is no course_lib.{name}"
    origin = Path(found.origin)
    files = sorted(origin.parent.rglob("*.py")) if origin.name == "__init__.py" else [origin]
    together: dict[str, ast.FunctionDef] = {}
    for file in files:
        together |= functions(ast.parse(file.read_text(encoding="utf-8")))
    return together


class WithoutAnnotations(ast.NodeTransformer):
    """`x: int = 1` is `x = 1`."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is None:
            return node
        return ast.copy_location(ast.Assign([node.target], node.value), node)


def without_words(function: ast.FunctionDef) -> str:
    """The function as text, in one layout, without docstrings, comments and annotations."""
    copy = WithoutAnnotations().visit(ast.parse(ast.unparse(function)).body[0])
    for node in ast.walk(copy):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
            if ast.get_docstring(node, clean=False) is not None:
                node.body = node.body[1:] or [ast.Pass()]
        if isinstance(node, ast.arg):
            node.annotation = None
    return ast.unparse(copy)


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.stem)
def test_solutions_are_the_librarys_functions(twin: Path) -> None:
    name = twin.stem.partition("_")[2]
    library = library_functions(name)
    compared = set()
    for function in solution_functions(twin):
        if function.name in library and (name, function.name) not in EXEMPT:
            compared.add(function.name)
            assert without_words(function) == without_words(library[function.name]), (
                f"{function.name} of {twin.name} and of course_lib.{name} differ: make them equal"
            )
    missing = EXPECTED.get(name, set()) - compared
    assert not missing, f"not found in both {twin.name} and course_lib.{name}: {sorted(missing)}"


def test_a_difference_is_seen() -> None:
    def text(source: str) -> str:
        return without_words(next(iter(functions(ast.parse(source)).values())))

    one = 'def f(x: int, group=None) -> int:\n    """Doc."""\n    y: int = x + 1  # why\n    return y\n'
    same = "def f(x, group=None):\n    y = (x + 1)\n    return y\n"
    assert text(one) == text(same)
    assert text(one) != text(same.replace("+", "-"))
    assert text(one) != text(same.replace("group=None", "group"))


def test_every_exemption_is_needed() -> None:
    for name, function in EXEMPT:
        assert function in library_functions(name), f"course_lib.{name} has no {function} any more"
