"""Lists code in a submission that a person should look at, since it reaches for its judge.

Nothing here costs points: the verdict is made where no cell can reach it. The list shows what stands in the
text of a cell: the names below, as a module, a name, an attribute or a whole text; paths of the system's
folders; commands of a shell; a new value for something that belongs to a module; and names that are put
together. All code counts that was not handed out, also in cells that belong to no exercise. It does not see a
name that is made out of sight, such as one read from a file.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator

from nbformat import NotebookNode

from autograder.course.scores import one_line
from autograder.course.twin import grade_id

PACKAGES = (
    "autograder", "nbgrader", "course_lib.checks.client", "course_lib.checks.judge",
    "course_lib.checks.notebooks", "course_lib.checks.rank", "course_lib.ledger.recorder",
    "course_lib.ledger.group", "course_lib.runtime", "torch._C", "sys.modules",
)  # fmt: skip
WORDS = frozenset({
    # code that does not stand in the cell, and modules by another name
    "import_module", "reload", "runpy", "__import__", "exec_module",
    # memory outside of Python's objects; processes, pipes, sockets
    "ctypes", "_ctypes", "ctypeslib", "cffi", "mmap", "memmap", "memfd_create", "_posixshmem",
    "multiprocessing", "subprocess", "pty", "socket", "fork", "forkpty", "popen", "mkfifo", "eventfd",
    "unshare", "setns", "pidfd_open", "pipe2",
    # the network, and whole folders that would go
    "urllib", "urlopen", "requests", "httpx", "aiohttp", "ftplib", "smtplib", "rmtree",
    # IPython's own ways to a shell and to other code
    "getoutput", "run_cell", "run_cell_magic", "run_line_magic",
    # ways to a caller, a closure's variables, the watchers of a module, all objects
    "inspect", "__dict__", "__closure__", "__globals__", "__code__", "__wrapped__", "cell_contents",
    "f_back", "f_locals", "f_globals", "_getframe", "currentframe", "tb_frame", "get_objects",
    "get_referrers", "get_referents", "_forward_hooks", "_backward_hooks",
    # means of watching operations; the group that is not recorded
    "_python_dispatch", "_disable_current_modes", "__torch_dispatch__", "_get_backend",
})  # fmt: skip
BUILT_IN = ("exec", "eval", "compile", "globals", "locals", "vars")
OF_OS = re.compile(r"(os)?\.(system|pipe|exec\w+|spawn\w+|posix_spawn\w*|kill|killpg)")
FOLDERS = ("/proc/", "/dev/", "/etc/", "/root/", "/sys/")
GUARDED = ("check", "launch", "Report")
ROOTS = ("builtins", "course_lib", "dist", "linecache", "numpy", "np", "sys", "torch")
# Lines of IPython that are not Python: "%time f()", "!ls", "torch.add?", and "files = !ls".
MAGIC = re.compile(r"^([ \t]*)(?:[%!?].*|[\w.]+\?{1,2}[ \t]*)$", re.MULTILINE)
ASSIGNED = re.compile(r"^([\w, \t]+=)[ \t]*[%!].*$", re.MULTILINE)
SHELL = re.compile(
    r"^(?:[ \t]*|[\w,][\w, \t]*=[ \t]*)"
    r"(?:!+(?!=)|%{1,2}(?=(?:bash|sh|script|system|sx|run|load|cmd|perl|ruby)\b))(.+)$",
    re.MULTILINE,
)
# Commands that put the course and its packages in place, as on Colab.
USUAL = re.compile(
    r"[ \t]*(?:\[ -d [\w./-]+ \] \|\| )?(?:pip3?|python3? -m pip|nvidia-smi"
    r"|git (?:clone|-C [\w./-]+ pull|pull))\b"
    r"[\w \t.,=<>~:/\[\]@\"'-]*"
)
MOST = 10  # sentences about one submission
NAMES = 20  # of a dotted expression, from its end
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
    usual = _of_all(handed_out, references)
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
        new = (said for said in _found(cell.source, references) if said not in usual)
        sentences += [one_line(f"{where} {said}") for said in dict.fromkeys(new)]
    return sentences[:MOST]


@functools.lru_cache(maxsize=16)
def _of_all(sources: tuple[str, ...], references: frozenset[str]) -> frozenset[str]:
    """Kept for the next submission of the same notebook: a class hands in hundreds."""
    return frozenset(said for source in sources for said in _found(source, references))


def _found(source: str, references: frozenset[str]) -> Iterator[str]:
    """The names and texts of a cell, in words: "reaches for ctypes", "sets torch.allclose"."""
    for command in SHELL.findall(source):
        if not USUAL.fullmatch(command):
            yield f"runs a command: {command.strip()}"
    try:
        tree = ast.parse(ASSIGNED.sub(r"\1 None", MAGIC.sub(r"\1pass", source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return  # it does not run either
    nodes = list(ast.walk(tree))
    inner = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    imported = {name for node in nodes for name in _bound_by_import(node)}
    methods = {
        id(statement) for node in nodes if isinstance(node, ast.ClassDef) for statement in node.body
    }
    for node in nodes:
        names = _imported(node)
        if isinstance(node, ast.Name) or (
            isinstance(node, ast.Attribute) and id(node) not in inner
        ):
            names = [_dotted(node)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value] if node.value in WORDS or node.value.startswith(FOLDERS) else []
        yield from (f"reaches for {name}" for name in names if _listed(name, references))
        yield from _put_together(node)
        for name in _bound(node) if id(node) not in methods else ():
            root, _, rest = name.partition(".")
            if name in GUARDED or (rest and (root in ROOTS or root in imported)):
                yield f"sets {name}"


def _listed(name: str, references: frozenset[str]) -> bool:
    parts = name.split(".")
    package = any(f"{name}.".startswith(f"{listed}.") for listed in (*PACKAGES, *references))
    word = not WORDS.isdisjoint(parts) or name in BUILT_IN
    return package or word or name.startswith(FOLDERS) or OF_OS.fullmatch(name) is not None


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def _bound_by_import(node: ast.AST) -> list[str]:
    aliases = node.names if isinstance(node, ast.Import | ast.ImportFrom) else []
    return [alias.asname or alias.name.partition(".")[0] for alias in aliases]


def _put_together(node: ast.AST) -> Iterator[str]:
    """getattr(gc, "get_" + "objects"); `self`'s own names may be ("layer3")."""
    if not isinstance(node, ast.Call) or _dotted(node.func) not in ("getattr", "setattr"):
        return
    holder, *names = node.args[:2]
    own = isinstance(holder, ast.Name) and holder.id == "self"
    parts = (ast.BinOp, ast.JoinedStr, ast.Call, ast.Subscript)
    if not own and any(isinstance(name, parts) for name in names):
        yield f"computes a name for {_dotted(node.func)}"


def _bound(node: ast.AST) -> list[str]:
    """Names and attributes to which a statement gives a new value, dotted."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else []
    if isinstance(node, ast.AugAssign | ast.AnnAssign):
        targets = [node.target]
    elif isinstance(node, ast.Call) and _dotted(node.func) == "setattr" and len(node.args) == 3:
        name = node.args[1]
        return [f"{_dotted(node.args[0])}.{name.value}"] if isinstance(name, ast.Constant) else []
    several = (t.elts if isinstance(t, ast.Tuple | ast.List) else [t] for t in targets)
    return [_dotted(target) for some in several for target in some]


def _dotted(node: ast.expr) -> str:
    """ "torch.allclose", or the last NAMES of it; subscripts are left out."""
    names: list[str] = []
    while isinstance(node, ast.Attribute | ast.Subscript) and len(names) < NAMES:
        names += [node.attr] if isinstance(node, ast.Attribute) else []
        node = node.value
    root = node.id if isinstance(node, ast.Name) else ""
    return ".".join([root, *reversed(names)]) if root or names else ""
