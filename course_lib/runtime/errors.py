"""The errors that `launch` raises when something went wrong in the ranks."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from course_lib.ledger.ledger import Ledger


WIDTH = (
    96  # characters of a line: as many as a cell's output holds beside JupyterLab's file browser
)


def wrapped(text: str) -> str:
    """Long lines, broken between words, because a browser breaks them anywhere."""
    lines = []
    for line in text.split("\n"):
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        kept = textwrap.wrap(
            line, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False,
            replace_whitespace=False, drop_whitespace=True,
        )  # fmt: skip
        lines += kept or [""]
    return "\n".join(lines)


class RankError(RuntimeError):
    """A rank raised, died, or ended with work in flight. `.ledger` holds all operations until then."""

    ledger: Ledger | None = None

    def _render_traceback_(self) -> list[str]:
        """In a notebook, show only the explanation, because the frames of `launch` do not help a student."""
        return [explained(self)]


def explained(error: RankError) -> str:
    """The explanation in lines that fit a notebook, for a cell that goes on after it."""
    if isinstance(error, NotWritten):
        return str(error)
    return wrapped(f"{type(error).__name__}: {str(error).removeprefix('deadlock: ')}")


class Deadlock(RankError):
    """Ranks wait for each other, or for a rank that has finished, so the wait can never end."""


class NotWritten(RankError):
    """The ranks called a function that is still only a stub. The text is a sentence that names it."""


class RankTimeout(RankError):
    """The time given to `launch` ran out."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C: the ranks were ended. The text says what each rank was doing."""

    def _render_traceback_(self) -> list[str]:
        return [wrapped(f"KeyboardInterrupt: {self}")]


class LaunchError(RuntimeError):
    """The ranks could not be started, or the function could not be sent to them."""
