"""Colours of a terminal and of a notebook's output, where they are shown.

Jupyter, Colab and VS Code show them in what a cell prints, and so does a terminal. A file, a pipe and
a reader who sets `NO_COLOR` (no-color.org) get the plain text. It says the same, since no two things differ
in colour alone.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Any

CODES = {"green": "32", "red": "31", "yellow": "33", "bold": "1", "dim": "2"}
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def coloured(text: str, colour: str, stream: Any = None) -> str:
    """`text` in one of CODES if `stream` (standard output) shows colours; else `text` itself."""
    return f"\x1b[{CODES[colour]}m{text}\x1b[0m" if text and shown(stream) else text


def plain(text: str) -> str:
    """The text without its colours."""
    return ESCAPE.sub("", text)


def shown(stream: Any = None) -> bool:
    """Whether what is printed to `stream` (standard output) is shown in colour."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    stream = sys.stdout if stream is None else stream
    in_notebook = type(stream).__module__ == "ipykernel.iostream"
    return in_notebook or stream.isatty()
