"""The question before something that cannot be undone."""

from __future__ import annotations

import sys


def said_no(word: str, doing: str, nothing: str) -> int:
    """0 if the person types `word`; else the exit code, 1 for another answer, 2 without a terminal.

    doing: "delete all of it"; nothing: "Nothing was deleted".
    """
    if not sys.stdin.isatty():
        print(f"{nothing}: without a terminal, say --yes.", file=sys.stderr)
        return 2
    if input(f"Type {word} to {doing}: ").strip() != word:
        print(f"{nothing}.")
        return 1
    return 0
