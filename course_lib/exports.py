"""Public names of a package that are imported when they are first used, each written once.

While an exercise is graded, the modules that answer it are hidden, but everything else still needs their
package. So such a package imports these names only for type checkers, and the rest when it is used:

    if TYPE_CHECKING:
        from .ring import ring_attention

    __getattr__, __dir__, __all__ = exports(__name__)

`exports` reads the names and their modules in the package's own source. A name that is also a module's, such
as `simulate`, is imported above in the usual way, since the module would take its place.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from collections.abc import Callable
from functools import cache
from typing import Any


def exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """A package's `__getattr__`, `__dir__` and `__all__` (see PEP 562)."""
    modules = late_names(package)

    def load(name: str) -> Any:
        """The object. It is not kept in the package, because its module may be hidden later."""
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{modules[name]}"), name)

    public = [*_names(_body(package)), *modules]

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *public})

    return load, names, sorted(public)


def late_names(package: str) -> dict[str, str]:
    """The names a package imports late, and their modules; none if it does not use `exports`.

    Neither the modules nor the package are imported to find them.
    """
    late: dict[str, str] = {}
    for node in _body(package):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name):
            late |= _names(node.body) if node.test.id == "TYPE_CHECKING" else {}
    return late


@cache
def _body(package: str) -> list[ast.stmt]:
    """The statements of a package's `__init__.py`. ImportError if there is no such package."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ImportError(f"{package} is not a package with a source", name=package)
    with open(spec.origin, encoding="utf-8") as file:
        return ast.parse(file.read()).body


def _names(statements: list[ast.stmt]) -> dict[str, str]:
    """The names and modules of `from .module import name` among the statements."""
    return {
        alias.name: node.module
        for node in statements
        if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module
        for alias in node.names
    }
