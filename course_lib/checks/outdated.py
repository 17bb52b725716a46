"""A function of an earlier cell, because a newer cell did not run to its end, or has another name for it.

After a mistake in the grammar, or in the function's name, a notebook still holds the function as it was,
and a check would judge that one without a word.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

from course_lib.runtime.places import file_name

NUMBER = re.compile(r"Cell In\[(\d+)\]\Z")
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def remarks(objects: Iterable[Any]) -> Iterator[str]:
    """A sentence for each function or class that is older than the newest cell with its definition."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None:
        return
    cells = shell.history_manager.input_hist_raw  # its number 0 is empty, and the last one runs now
    for thing in objects:
        name, own = getattr(thing, "__name__", ""), cell_of(thing)
        if not (name and 0 < own < len(cells) and shell.user_ns.get(name) is thing):
            continue  # a kernel that keeps no history runs every cell as In[1]
        about = f"This table is about the `{name}` of In[{own}]."
        newest = max((n for n in range(1, len(cells)) if defines(cells[n], name)), default=0)
        cell, other = renamed(cells, own, name) or (0, "")
        if cell > newest:
            yield (
                f"In[{cell}] defines `{other}`, and no `{name}`. {about} If `{other}` is your newer version, "
                f"name it `{name}`."
            )
        elif newest > own:
            yield f"The newest cell that defines `{name}`, In[{newest}], did not run to its end. {about}"


def renamed(cells: list[str], own: int, name: str) -> tuple[int, str] | None:
    """The newest cell after In[own] in which its function has another name, and that name.

    It is the same function if docstring and parameters are: a student writes below those of the exercise.
    """
    before = described(cells[own])
    if not before.get(name):
        return None
    for number in range(len(cells) - 1, own, -1):
        now = described(cells[number])
        others = [other for other, text in now.items() if text == before[name] and other not in before]
        if others and name not in now:
            return number, others[0]
    return None


def described(source: str) -> dict[str, tuple[str, str] | None]:
    """Of each function and class that a cell defines at its top, docstring and parameters; None without a
    docstring, which alone says little."""
    try:
        tops = ast.parse(source).body
    except SyntaxError:  # one of IPython's own lines, or a mistake
        return {}
    texts = {}
    for top in tops:
        if isinstance(top, DEFINITIONS):
            text = ast.get_docstring(top)
            parameters = "" if isinstance(top, ast.ClassDef) else ast.unparse(top.args)
            texts[top.name] = None if text is None else (text, parameters)
    return texts


def cell_of(thing: Any) -> int:
    """The number of the cell in which a function or a class was made; 0 if it is of no cell."""
    parts = vars(thing).values() if inspect.isclass(thing) else [thing]
    for part in parts:
        code = getattr(part, "__code__", None)
        match = NUMBER.match(file_name(code.co_filename)) if isinstance(code, types.CodeType) else None
        if match:
            return int(match[1])
    return 0


def defines(source: str, name: str) -> bool:
    """Whether a cell defines the name at its top: not in a string, nor behind a magic such as %%writefile."""
    try:
        tops = ast.parse(source).body
    except SyntaxError:
        return not source.startswith("%%") and begins(source, name)
    return any(isinstance(top, DEFINITIONS) and top.name == name for top in tops)


def begins(source: str, name: str) -> bool:
    return re.search(rf"^(?:async +def|def|class) +{re.escape(name)}\b", source, re.MULTILINE) is not None
