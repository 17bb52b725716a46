"""Fingerprints of a solution without its names, comments, docstrings and layout.

A cell becomes the sequence of its syntax tree's parts, in which every name that the cell itself binds is
the same sign. Of this sequence all runs of RUN parts are hashed, and of every WINDOW neighbouring hashes
the smallest is kept (winnowing: Schleimer, Wilkerson and Aiken, SIGMOD 2003): two texts that share
RUN + WINDOW - 1 parts in a row share a fingerprint, wherever these stand.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

RUN = 10
WINDOW = 4
LONGEST = 100_000  # characters: of a longer cell no fingerprints are taken


@dataclass(frozen=True)
class Shape:
    """One text without its names. `whole`: equal for texts that differ in names and layout only."""

    whole: str
    prints: frozenset[int]
    parts: int


def shape(source: str, released: frozenset[int] = frozenset()) -> Shape | None:
    """The shape of a cell, without the fingerprints in `given`; None if the cell is not Python."""
    words = parts(source)
    if words is None:
        return None
    whole = hashlib.sha256("\n".join(words).encode()).hexdigest()
    return Shape(whole, frozenset(winnowed(hashes(words))) - released, len(words))


def given_prints(sources: Sequence[str]) -> frozenset[int]:
    """Every run of texts that were handed out: in a solution they are not the student's own."""
    return frozenset(print_ for text in sources for print_ in hashes(parts(text) or ()))


@functools.lru_cache(maxsize=10_000)  # copied and untouched texts come again and again
def parts(source: str) -> tuple[str, ...] | None:
    """The parts of the syntax tree in their order; None if the text is not Python."""
    try:
        tree = ast.parse(source[:LONGEST])
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    bound = {name for node in ast.walk(tree) for name in _binds(node)}
    words: list[str] = []
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, ast.Module | ast.Load | ast.Store | ast.Del | ast.Expr):
            words.append(_sign(node, bound))
        waiting += reversed(list(_inside(node)))
    return tuple(words)


def _binds(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return [node.id]
    if isinstance(node, ast.arg):
        return [node.arg]
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    return []


def _sign(node: ast.AST, bound: set[str]) -> str:
    kind = type(node).__name__
    if isinstance(node, ast.Name):
        return "v" if node.id in bound else node.id
    if isinstance(node, ast.Attribute):
        return f".{node.attr}"
    if isinstance(node, ast.keyword):
        return "v=" if node.arg in bound else f"{node.arg}="
    if isinstance(node, ast.Constant):
        return "text" if isinstance(node.value, str | bytes) else repr(node.value)[:40]
    if isinstance(node, ast.AugAssign):
        return "Assign"
    return kind


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    """The children of a node, without docstrings, lone constants and annotations."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "type_comment", "decorator_list", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            lone = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
            if isinstance(child, ast.AST) and not lone:
                yield child


def hashes(words: Sequence[str]) -> list[int]:
    """A number for every run of RUN parts, the same in every process."""
    numbers = [zlib.crc32(part.encode()) for part in words]
    return [hash(tuple(numbers[i : i + RUN])) for i in range(len(numbers) - RUN + 1)]


def winnowed(all_hashes: Sequence[int]) -> set[int]:
    """The smallest of every WINDOW neighbours."""
    count = max(1, len(all_hashes) - WINDOW + 1)
    return {min(all_hashes[i : i + WINDOW]) for i in range(count)} if all_hashes else set()
