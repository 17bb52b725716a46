"""Finds code in a submission that a person should look at, since it reaches for its judge.

Nothing here costs points. The verdict is made where no cell can reach it, so an attempt changes nothing;
but its author may also have copied. Only code that is written plainly is found.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator

from nbformat import NotebookNode

from autograder.course.scores import one_line
from autograder.course.twin import grade_id

MODULES = (
    "autograder", "course_lib.checks.client", "course_lib.checks.judge", "course_lib.checks.notebooks",
    "course_lib.checks.rank", "course_lib.ledger.recorder", "course_lib.runtime", "nbgrader",
    "ctypes", "_ctypes", "cffi", "mmap", "_posixshmem",  # memory outside of Python's objects
    "importlib.import_module", "importlib.reload", "runpy",  # modules whose names do not stand in the cell
    "multiprocessing", "subprocess", "pty", "socket",  # where a rank could keep what it may not hold
    "torch.utils._python_dispatch", "torch._C",  # the means of watching operations
)  # fmt: skip
# Functions by their whole name: code that does not stand in the cell, processes, pipes, files in memory.
CALLS = (
    "exec", "eval", "compile", "__import__", "importlib.import_module", "importlib.reload", "os.system",
    "os.popen", "os.fork", "os.forkpty", "os.pipe", "os.pipe2", "os.memfd_create", "os.mkfifo", "os.eventfd",
    "os.unshare", "os.setns", "os.pidfd_open",
)  # fmt: skip
STARTS = ("os.exec", "os.spawn", "os.posix_spawn")
GUARDED = ("check", "launch", "Report")
# Attributes of these are not a student's to set.
ROOTS = ("builtins", "course_lib", "dist", "linecache", "numpy", "np", "sys", "torch")
# Attributes that lead to a caller, a closure's variables, the watchers of a module, all objects.
INSIDES = (
    "__closure__", "__globals__", "__code__", "__wrapped__", "_forward_hooks", "_backward_hooks",
    "cell_contents", "f_back", "f_locals", "_getframe", "currentframe", "tb_frame", "get_objects",
    "get_referrers", "_python_dispatch", "_disable_current_modes", "__torch_dispatch__",
    "_get_backend",  # of a process group: the one that is not recorded
)  # fmt: skip
NAMESPACES = ("__dict__", "vars()", "globals()", "locals()")
MAGIC = re.compile(r"^([ \t]*)[%!].*$", re.MULTILINE)
MOST = 10  # sentences about one submission
# Characters that are read of one cell, and of all: a parser's time can grow as the square.
LONGEST, READ = 100_000, 1_000_000


def suspicious(
    notebook: NotebookNode, released: NotebookNode, references: frozenset[str] = frozenset()
) -> list[str]:
    """Sentences about the code that the student wrote into `notebook`.

    references: modules that hold the answers, and the names by which packages export their content. Code
    of the student version itself is not reported.
    """
    known = {cell.source for cell in released.cells}
    handed_out = tuple(cell.source for cell in released.cells if cell.cell_type == "code")
    released_reaches = _reaches_of_all(handed_out, references)
    sentences: list[str] = []
    left = READ
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type != "code" or cell.source in known:
            continue
        where = f"cell {grade_id(cell)!r}" if grade_id(cell) else f"cell {index + 1}"
        if len(cell.source) > min(LONGEST, left):
            sentences.append(f"{where} was not looked at: it has {len(cell.source):,} characters")
            continue
        left -= len(cell.source)
        new = [
            reach for reach in _reaches(cell.source, references) if reach not in released_reaches
        ]
        sentences += [one_line(f"{where} {what}") for what in dict.fromkeys(new)]
    return sentences[:MOST]


@functools.lru_cache(maxsize=16)
def _reaches_of_all(sources: tuple[str, ...], references: frozenset[str]) -> frozenset[str]:
    """Kept for the next submission of the same notebook: a class hands in hundreds."""
    return frozenset(reach for source in sources for reach in _reaches(source, references))


def _reaches(source: str, references: frozenset[str]) -> Iterator[str]:
    """Forbidden actions of a cell, in words: "imports ...", "sets torch.allclose"."""
    try:
        tree = ast.parse(MAGIC.sub(r"\1pass", source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return  # it does not run either
    of_classes = {
        statement
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        for statement in node.body
    }
    for node in ast.walk(tree):
        for module in _imported(node):
            if module in references or module == "sys.modules" or _inside(module, MODULES):
                yield f"imports {module}"
        if isinstance(node, ast.Attribute):
            if _dotted(node) in references:
                yield f"reaches for {_dotted(node)}"
            *before, last = _dotted(node).split(".")
            if last in INSIDES:
                yield f"reaches for {last}"
            if before == ["sys"] and last == "modules":
                yield "reaches for sys.modules"
        if isinstance(node, ast.Call):
            yield from _called(node)
        yield from _written(node)
        for name in _bound(node) if node not in of_classes else ():
            if name in GUARDED or (name.partition(".")[0] in ROOTS and "." in name):
                yield f"sets {name}"


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return []


def _called(node: ast.Call) -> Iterator[str]:
    name = _dotted(node.func)
    if name in CALLS or name.startswith(STARTS):
        yield f"calls {name}"
    if name in ("getattr", "setattr", "operator.attrgetter") and _computed(node):
        yield f"computes a name for {name}"
    if isinstance(node.func, ast.Attribute) and node.func.attr in ("update", "setdefault", "pop"):
        yield from _namespace(node.func.value)


def _computed(node: ast.Call) -> bool:
    """Whether an attribute's name is put together in the call; `self`'s own may be ("layer3")."""
    holder, *names = [*node.args, None][:2] if len(node.args) > 1 else [None, *node.args]
    own = isinstance(holder, ast.Name) and holder.id == "self"
    put_together = (ast.BinOp, ast.JoinedStr, ast.Call, ast.Subscript)
    return not own and any(isinstance(name, put_together) for name in names)


def _written(node: ast.AST) -> Iterator[str]:
    """`vars(module)["name"] = ...` and its like."""
    targets = getattr(node, "targets", []) if isinstance(node, ast.Assign | ast.Delete) else []
    if isinstance(node, ast.AugAssign | ast.AnnAssign):
        targets = [node.target]
    for target in (target for each in targets for target in _single(each)):
        if isinstance(target, ast.Subscript):
            yield from _namespace(target.value)


def _namespace(node: ast.expr) -> Iterator[str]:
    """Whether `node` is the dictionary of an object's attributes, or of a module's names; not of `self`'s."""
    name = _dotted(node)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) <= 1:
        name = f"{node.func.id}()"
        node = node.args[0] if node.args else node.func
    own = isinstance(node, ast.Name | ast.Attribute) and _dotted(node).partition(".")[0] == "self"
    if name.rpartition(".")[2] in NAMESPACES and not own:
        yield f"writes into {name.rpartition('.')[2]}"


def _inside(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


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
    return [_dotted(name) for target in targets for name in _single(target)]


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
