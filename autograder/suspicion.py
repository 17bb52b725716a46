"""What in a submission a person should look at: code that reaches for what judges it.

Nothing here costs points. The verdict is made where no cell can reach it, so an attempt changes nothing;
but whoever makes one may also have copied. Only what is written plainly is seen.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from nbformat import NotebookNode

from autograder.scores import one_line
from autograder.twin import grade_id

MODULES = (
    "autograder", "course_lib.checks.engine", "course_lib.ledger.recorder", "course_lib.runtime", "nbgrader",
    "ctypes", "mmap",  # memory that is nobody's object
)  # fmt: skip
GUARDED = ("check", "launch", "Report")
# Attributes of these are not a student's to set.
ROOTS = ("builtins", "course_lib", "dist", "linecache", "numpy", "np", "sys", "torch")
# What leads from an object to its caller, to what a closure keeps, to what watches a module, to all objects.
INSIDES = (
    "__closure__", "_forward_hooks", "_backward_hooks", "cell_contents", "f_back", "f_locals", "get_objects",
    "get_referrers", "tb_frame",
)  # fmt: skip
GROUPS = (
    "WORLD",
    "group",
    "pg",
    "process_group",
)  # `.inner` of these is the group that is not recorded
MAGIC = re.compile(r"^([ \t]*)[%!].*$", re.MULTILINE)
MOST = 10  # sentences about one submission
# Characters that are read of one cell, and of all: a parser's time can grow as the square.
LONGEST, READ = 100_000, 1_000_000


def suspicious(
    notebook: NotebookNode, released: NotebookNode, references: frozenset[str] = frozenset()
) -> list[str]:
    """Sentences about the code that the student wrote into `notebook`.

    references: modules that hold the answers. What the student version says itself is not held against
    anybody.
    """
    given = {one for cell in released.cells for one in _reaches(cell, references)}
    known = {cell.source for cell in released.cells}
    found: list[str] = []
    left = READ
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type != "code" or cell.source in known:
            continue
        where = f"cell {grade_id(cell)!r}" if grade_id(cell) else f"cell {index + 1}"
        if len(cell.source) > min(LONGEST, left):
            found.append(f"{where} was not looked at: it has {len(cell.source):,} characters")
            continue
        left -= len(cell.source)
        new = [one for one in _reaches(cell, references) if one not in given]
        found += [one_line(f"{where} {one}") for one in dict.fromkeys(new)]
    return found[:MOST]


def _reaches(cell: NotebookNode, references: frozenset[str]) -> Iterator[str]:
    """What a cell does that it has no business to do: "imports ...", "sets torch.allclose"."""
    if cell.cell_type != "code":
        return
    try:
        tree = ast.parse(MAGIC.sub(r"\1pass", cell.source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return  # it does not run either
    for node in ast.walk(tree):
        for module in _imported(node):
            if module in references or _inside(module, MODULES):
                yield f"imports {module}"
        if isinstance(node, ast.Attribute):
            *before, last = _dotted(node).split(".")
            if last in INSIDES or (last == "inner" and set(before) & set(GROUPS)):
                yield f"reaches for {last}"
        for name in _bound(node):
            if name in GUARDED or (name.partition(".")[0] in ROOTS and "." in name):
                yield f"sets {name}"


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []


def _inside(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == one or module.startswith(f"{one}.") for one in packages)


def _bound(node: ast.AST) -> list[str]:
    """Names and attributes to which a statement gives a new value, dotted."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        return [node.name]
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        targets = [node.target]
    elif isinstance(node, ast.Call) and _dotted(node.func) == "setattr" and len(node.args) == 3:
        holder, name, _ = node.args
        if isinstance(name, ast.Constant):
            return [f"{_dotted(holder)}.{name.value}"]
    return [_dotted(one) for target in targets for one in _single(target)]


def _single(target: ast.expr) -> list[ast.expr]:
    return list(target.elts) if isinstance(target, ast.Tuple | ast.List) else [target]


def _dotted(node: ast.expr) -> str:
    """ "torch.allclose" for the expression of that name; subscripts are left out."""
    names: list[str] = []
    while isinstance(node, ast.Attribute | ast.Subscript):  # a student may nest them deeply
        if isinstance(node, ast.Attribute):
            names.append(node.attr)
        node = node.value
    root = node.id if isinstance(node, ast.Name) else ""
    return ".".join([root, *reversed(names)])
